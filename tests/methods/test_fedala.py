"""FedALA: the reduction to FedAvg, three rounds by hand, when learning the weights ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import SGD, Parts, first_parts, linear, mean_parts, parts_of, sizes, slope
from harness import assert_close, run_to_end, small, small_world
from numpy.testing import assert_allclose

from suture.errors import ConfigError
from suture.methods.fedala import FedAla
from suture.methods.fedavg import FedAvg

WORLD = small_world()
IDS = WORLD.clients.ids


def test_with_weights_at_one_it_is_fedavg() -> None:
    left = run_to_end(small(FedAla, ala_rate=0.0), WORLD.clients, WORLD.task)
    right = run_to_end(small(FedAvg), WORLD.clients, WORLD.task)
    assert_close(left.server, right.server, 0.0)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert all(torch.equal(value, theirs.params[name]) for name, value in mine.params.items())


def test_only_the_last_layers_are_weighed() -> None:
    method = small(FedAla, adaptive_layers=2)
    end = run_to_end(method, WORLD.clients, WORLD.task)
    names = set(method.backbone(WORLD.task).personal_names(2))
    assert all(set(state.adapted) == names for state in end.states)
    assert all(0 <= float(value.min()) <= float(value.max()) <= 1 for s in end.states for value in s.adapted.values())


def test_three_rounds_by_hand() -> None:
    """Algorithm 1: nothing is learnt in the first round, two steps in the second (`start_steps`), one in the third."""
    lr, rate = SGD["lr"], 40.0
    values = {"ala_rate": rate, "ala_share": 1.0, "start_steps": 2}
    method = linear(FedAla, values, **SGD, rounds=3)
    w = first_parts(method)
    last: dict[str, Parts] = {name: first_parts(method) for name in IDS}
    weights: dict[str, Parts] = {name: [np.ones_like(part) for part in w] for name in IDS}
    for steps in (0, 2, 1):
        trained: list[Parts] = []
        for name in IDS:
            for _ in range(steps):
                start = [o + (c - o) * a for o, c, a in zip(last[name], w, weights[name], strict=True)]
                both = zip(weights[name], slope(name, start), w, last[name], strict=True)
                weights[name] = [np.clip(a - rate * g * (c - o), 0, 1) for a, g, c, o in both]
            start = [o + (c - o) * a for o, c, a in zip(last[name], w, weights[name], strict=True)]
            last[name] = [part - lr * g for part, g in zip(start, slope(name, start), strict=True)]
            trained.append(last[name])
        w = mean_parts(trained, sizes())
    assert any((part < 0.9).any() for parts in weights.values() for part in parts), "weights must move for this to say much"
    end = run_to_end(method, WORLD.clients, WORLD.task)
    for got, expected in zip(parts_of(end.server), w, strict=True):
        assert_allclose(got, expected, atol=1e-5)
    for state in end.states:
        for got, expected in zip(parts_of(state, "adapted"), weights[state.ids[0]], strict=True):
            assert_allclose(got, expected, atol=1e-4)


def test_a_loss_has_settled_when_ten_of_them_hardly_differ() -> None:
    method = small(FedAla, settled=0.1)
    moving, still = (torch.linspace(1, end, 12) for end in (0.2, 0.99))
    losses = list(torch.stack([moving, still], 1))
    assert method.has_settled(losses[:10]).tolist() == [False, False]
    assert method.has_settled(losses[:11]).tolist() == [False, True]


def test_dp_sgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedala learns from training nodes, without noise"):
        small(FedAla, training={"dp_sigma": 1.0})
