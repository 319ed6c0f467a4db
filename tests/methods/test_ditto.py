"""Ditto: local training beside FedAvg, two rounds by hand, what the pull does."""

from __future__ import annotations

import torch
from by_hand import SGD, Parts, first_parts, linear, mean_parts, parts_of, sizes, slope
from harness import run_to_end, small, small_world
from numpy.testing import assert_allclose

from suture.methods.ditto import Ditto
from suture.methods.fedavg import FedAvg
from suture.methods.local import Local
from suture.privacy.mechanisms import NoisyGradients

IDS = small_world().clients.ids


def test_without_pull_it_is_local_training_beside_fedavg() -> None:
    world = small_world()
    mine = run_to_end(small(Ditto, pull=0.0), world.clients, world.task)
    fedavg, local = (run_to_end(small(kind), world.clients, world.task) for kind in (FedAvg, Local))
    for name, value in mine.server.tensors().items():
        assert torch.equal(value, fedavg.server.tensors()[name])
    for state, alone in zip(mine.states, local.states, strict=True):
        for name, value in alone.params.items():
            assert torch.equal(state.own[name], value)
    assert torch.equal(mine.scores.value, local.scores.value)


def test_the_stronger_the_pull_the_nearer_to_the_common_model() -> None:
    world, apart = small_world(), []
    for pull in (0.0, 1.0, 10.0):
        end = run_to_end(linear(Ditto, {"pull": pull}, optimizer="sgd", lr=0.05, rounds=8), world.clients, world.task)
        common = end.server.params["layer1.weight"]
        apart.append(float(sum((state.own["layer1.weight"] - common).square().sum() for state in end.states)))
    assert apart[0] > 1.2 * apart[1] > 1.2 * apart[2] > 0


def test_two_rounds_by_hand() -> None:
    """Algorithm 1 of the paper."""
    lr, pull, epochs = SGD["lr"], 0.3, 2
    method = linear(Ditto, {"pull": pull}, **SGD, rounds=2, local_epochs=epochs)
    w = first_parts(method)
    own = {name: first_parts(method) for name in IDS}
    for _ in range(2):
        trained: list[Parts] = []
        for name in IDS:
            y, v = [part.copy() for part in w], own[name]
            for _ in range(epochs):
                y = [part - lr * g for part, g in zip(y, slope(name, y), strict=True)]
                v = [part - lr * (g + pull * (part - c)) for part, g, c in zip(v, slope(name, v), w, strict=True)]
            trained.append(y)
            own[name] = v
        w = mean_parts(trained, sizes())
    end = run_to_end(method, small_world().clients, small_world().task)
    for got, expected in zip(parts_of(end.server), w, strict=True):
        assert_allclose(got, expected, atol=1e-5)
    for state in end.states:
        for got, expected in zip(parts_of(state, "own"), own[state.ids[0]], strict=True):
            assert_allclose(got, expected, atol=1e-5)


def test_both_models_are_in_the_account_of_dp_sgd() -> None:
    (stated,) = small(Ditto, training={"dp_sigma": 1.0, "local_epochs": 3}).mechanisms()
    assert isinstance(stated, NoisyGradients) and stated.epochs == 6
