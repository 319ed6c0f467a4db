"""FedGTA: the reductions to Local and FedAvg, and a round by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import array, linear, piece, softmax
from harness import run_to_end, small, small_world
from numpy.testing import assert_allclose

from suture.errors import ConfigError
from suture.methods.fedavg import FedAvg
from suture.methods.fedgta import FedGta, confidence, mixed_moments
from suture.methods.local import Local

WORLD = small_world()


def test_full_mixing_by_size_is_fedavg() -> None:
    mine = run_to_end(small(FedGta, threshold=-1.0, weigh_by="size"), WORLD.clients, WORLD.task)
    fedavg = run_to_end(small(FedAvg), WORLD.clients, WORLD.task)
    known = mine.server.select(WORLD.clients.ids)
    for name, value in fedavg.server.params.items():
        torch.testing.assert_close(known.params[name], value.expand_as(known.params[name]), rtol=1e-5, atol=1e-6)
    for state, theirs in zip(mine.states, fedavg.states, strict=True):
        torch.testing.assert_close(state.params, theirs.params, rtol=1e-4, atol=1e-5)


def test_without_mixing_it_is_local() -> None:
    mine = run_to_end(small(FedGta, threshold=1.0), WORLD.clients, WORLD.task)
    local = run_to_end(small(Local), WORLD.clients, WORLD.task)
    for state, theirs in zip(mine.states, local.states, strict=True):
        torch.testing.assert_close(state.params, theirs.params, rtol=1e-5, atol=1e-6)


def test_confidence_is_greatest_without_doubt_and_counts_neighbours() -> None:
    graph = WORLD.clients
    sure = torch.eye(3)[torch.arange(graph.num_nodes) % 3]
    degrees = 1 + torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    torch.testing.assert_close(confidence(graph, sure), graph.segments.sum(degrees.float().unsqueeze(1))[:, 0] * 3 / np.e)
    assert (confidence(graph, torch.full((graph.num_nodes, 3), 1 / 3)) < confidence(graph, sure)).all()


def test_the_first_moments_are_shares_of_classes() -> None:
    graph = WORLD.clients
    label = torch.eye(3)[graph.y]
    told = mixed_moments(graph, label, 2)
    for k in range(len(graph.ids)):
        inside = graph.y[graph.segments.client == k]
        shares = torch.bincount(inside, minlength=3) / inside.numel()
        torch.testing.assert_close(told[k], torch.cat([shares, shares, torch.zeros(3), shares * (1 - shares)]))


@pytest.mark.parametrize("threshold", [-1.0, 0.97, 1.0])
def test_a_round_of_fedgta_by_hand(threshold: float) -> None:
    """From the trained models that clients keep: confidence, moments and averages by the paper's equations."""
    method = linear(FedGta, {"threshold": threshold, "hops": 3, "restart": 0.3, "orders": 4})
    world = small_world()
    end = run_to_end(method, world.clients, world.task)
    models, confidence, signature = [], [], []
    for state in end.states:
        features, labels, rows, adjacency = piece(state.ids[0])
        weight, bias = array(state, "params.layer1.weight")[0], array(state, "params.layer1.bias")[0]
        models.append(weight)
        first = softmax(features @ weight + bias)
        first[rows] = np.eye(3)[labels[rows]]
        looped = adjacency + np.eye(len(adjacency))
        degree = looped.sum(1)
        operator = looped / np.sqrt(np.outer(degree, degree))
        now = first
        for _ in range(3):
            now = 0.3 * first + 0.7 * operator @ now
        now = now / now.sum(1, keepdims=True)
        entropy = -np.sum(now * np.log(np.where(now > 0, now, 1)), 1)
        confidence.append(np.sum(degree * (3 / np.e - entropy)))
        centred = now - now.mean(0)
        signature.append(np.concatenate([(y**q).mean(0) for y in (now, centred) for q in (1, 2, 3, 4)]))
    unit = np.array(signature) / np.linalg.norm(signature, axis=1, keepdims=True)
    share = (unit @ unit.T >= threshold - 1e-9) * np.array(confidence)
    if threshold == 0.97:
        assert 4 < (share > 0).sum() < 16, "the threshold must divide the clients for this test to say something"
    share = share / share.sum(1, keepdims=True)
    got = end.server.select([state.ids[0] for state in end.states]).tensors()["params.layer1.weight"]
    assert_allclose(got.numpy(), np.einsum("ij,jfc->ifc", share, np.array(models)), atol=1e-5)
    assert end.server.ids[0] == "" and torch.equal(  # newcomers still get the initial model
        end.server.select([""]).tensors()["params.layer1.weight"], method.initial_params(world.task)["layer1.weight"]
    )


def test_dp_sgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedgta tells moments of its labels"):
        small(FedGta, training={"dp_sigma": 1.0})
