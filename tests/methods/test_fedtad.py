"""FedTAD: the reduction to FedAvg, reliability by hand, and a round of distilling in plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import piece
from harness import run_to_end, small, small_world
from numpy.testing import assert_allclose
from torch import Tensor

from suture.core.streams import generator
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.methods.fedavg import FedAvg
from suture.methods.fedtad.generator import fresh_generator
from suture.methods.fedtad.method import FedTad
from suture.methods.fedtad.reliability import class_reliability, return_chances

WORLD = small_world()
IDS = WORLD.clients.ids


def test_without_distilling_it_is_fedavg() -> None:
    mine = run_to_end(small(FedTad, distil_epochs=0), WORLD.clients, WORLD.task)
    fedavg = run_to_end(small(FedAvg), WORLD.clients, WORLD.task)
    for name, value in fedavg.server.params.items():
        assert torch.equal(mine.server.params[name], value)
    assert mine.server.reliability == {}


def walks_of(adjacency: np.ndarray, steps: int) -> np.ndarray:
    """Chances of return by powers of the transition matrix."""
    looped = adjacency + np.eye(len(adjacency))
    walk = looped / looped.sum(0)
    return np.stack([np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, steps + 1)], 1)


def test_chances_of_return_are_those_of_the_walk() -> None:
    got, bounds = return_chances(WORLD.clients, 4).numpy(), WORLD.clients.segments.bounds
    for k, name in enumerate(IDS):
        assert_allclose(got[bounds[k] : bounds[k + 1]], walks_of(piece(name)[3], 4), atol=1e-6)


def test_reliability_by_hand() -> None:
    got = class_reliability(WORLD.clients, 3, 5).numpy()
    for k, name in enumerate(IDS):
        features, labels, rows, adjacency = piece(name)
        h = np.concatenate([features, walks_of(adjacency, 5)], 1)
        unit = h / np.linalg.norm(h, axis=1, keepdims=True)
        expected = np.zeros(3)
        for row in rows:
            near = np.append(np.flatnonzero(adjacency[:, row]), row)
            expected[labels[row]] += np.mean(unit[near] @ unit[row])
        assert_allclose(got[k], expected, atol=1e-5)


def test_a_client_without_edges_counts_its_labels() -> None:
    graph = WORLD.without_edges(IDS[0]).clients
    labels = torch.bincount(graph.y[graph.train.nodes[graph.train.segments.client == 0]], minlength=3)
    torch.testing.assert_close(class_reliability(graph, 3, 5)[0], labels.float())


def dense_gcn(params: Tree, k: int, x: Tensor) -> Tensor:
    """Two GCN layers and a head on the kNN graph of the features, as Kipf and Welling write them."""
    unit = F.normalize(x.detach(), dim=1)
    near = (unit @ unit.T - 9 * torch.eye(len(x))).topk(5, dim=1).indices
    adjacency = torch.zeros(len(x), len(x)).scatter_(1, near, 1.0)
    looped = torch.maximum(adjacency, adjacency.T) + torch.eye(len(x))
    root = looped.sum(1).rsqrt()
    operator = root.unsqueeze(1) * looped * root
    h = torch.relu(operator @ x @ params["layer1.weight"][k] + params["layer1.bias"][k])
    h = torch.relu(operator @ h @ params["layer2.weight"][k] + params["layer2.bias"][k])
    return h @ params["head.weight"][k] + params["head.bias"][k]


def test_a_round_in_plain_torch() -> None:
    """Client by client and class by class, with torch's own Adam, from the models that clients keep."""
    nodes, rate = 12, 0.01
    values = {"distil_epochs": 1, "generator_steps": 2, "model_steps": 3, "pseudo_nodes": nodes, "distil_rate": rate}
    method = small(FedTad, **values, lambda1=0.7, lambda2=0.4, training={"rounds": 1, "local_epochs": 1})
    end = run_to_end(method, WORLD.clients, WORLD.task)
    local = {name: torch.cat([state.params[name] for state in end.states]) for name in end.server.params}
    reliable = class_reliability(WORLD.clients, 3, 5)
    share = reliable / reliable.sum(0)
    sizes = WORLD.clients.num_train.float() / WORLD.clients.num_train.sum()
    order = [IDS.index(state.ids[0]) for state in end.states]
    share, sizes = share[order], sizes[order]
    mean = {name: (sizes.view(-1, *[1] * (v.dim() - 1)) * v).sum(0, keepdim=True) for name, v in local.items()}
    made = fresh_generator(40, 3, generator(WORLD.task.seed, "fedtad"))
    noise = torch.randn(nodes, 32, generator=generator(WORLD.task.seed, "fedtad", 1, 0))
    label = torch.arange(nodes) % 3

    def features(tree: Tree) -> Tensor:
        h = torch.cat([tree["codes"][0][label], noise], 1)
        for number in (1, 2, 3):
            h = torch.tanh(h @ tree[f"generator{number}.weight"][0] + tree[f"generator{number}.bias"][0])
        return h @ tree["generator4.weight"][0] + tree["generator4.bias"][0]

    def apart(x: Tensor) -> Tensor:
        common, total = dense_gcn(mean, 0, x), torch.zeros(())
        for k in range(len(share)):
            for c in range(3):
                gap = (common - dense_gcn(local, k, x).detach())[label == c].abs().mean()
                total = total + share[k, c] * gap
        return total

    made = {name: value.requires_grad_() for name, value in made.items()}
    adam = torch.optim.Adam(made.values(), lr=rate, eps=1e-6)
    for _ in range(2):
        x = features(made)
        known = sum(
            share[k, c] * F.cross_entropy(dense_gcn(local, k, x)[label == c], label[label == c])
            for k in range(len(share))
            for c in range(3)
        )
        both = list(zip(noise, x, strict=True))
        pairs = [(z - y).square().mean() * (a - b).abs().mean() for z, a in both for y, b in both]
        loss = 0.7 * known - apart(x) + 0.4 * torch.exp(-torch.stack(pairs).mean())
        adam.zero_grad()
        loss.backward()
        adam.step()
    x = features(made).detach()
    mean = {name: value.detach().requires_grad_() for name, value in mean.items()}
    adam = torch.optim.Adam(mean.values(), lr=rate, eps=1e-6)
    for _ in range(3):
        adam.zero_grad()
        apart(x).backward()
        adam.step()
    for name, value in made.items():
        torch.testing.assert_close(end.server.made[name], value.detach(), rtol=1e-3, atol=1e-4)
    for name, value in mean.items():
        torch.testing.assert_close(end.server.params[name], value.detach(), rtol=1e-3, atol=1e-4)


def test_networks_that_cannot_be_asked_layer_by_layer_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.kind gprgnn cannot be asked so: choose one of gcn, sage, gat, mlp"):
        small(FedTad, model={"kind": "gprgnn"})


def test_dp_sgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedtad tells how far each class can be relied on"):
        small(FedTad, training={"dp_sigma": 1.0})
