"""The two example methods, loaded from their files as anybody's would be: the free tests, and one round of each in numpy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import SGD, array, linear, piece, softmax
from numpy.testing import assert_allclose

from suture.core.trusted import let_in
from suture.methods.fedavg import FedAvg
from suture.plugins import load
from suture.testing import MethodTests, small_world
from suture.testing.world import run_to_end

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPELLED = [f"{EXAMPLES / 'fedamp.py'}:FedAMP", f"{EXAMPLES / 'feddyn.py'}:FedDyn"]
let_in(SPELLED)
FedAMP, FedDyn = map(load, SPELLED)


class TestFedAMP(MethodTests):
    method = FedAMP


class TestFedDyn(MethodTests):
    method = FedDyn


@pytest.mark.parametrize("file", ["fedamp.py", "feddyn.py"])
def test_an_example_is_short_and_wraps_nothing(file: str) -> None:
    text = (EXAMPLES / file).read_text()
    assert len(text.splitlines()) <= 100
    assert not any(f"def {box}(" in text for box in ("round", "local_update", "train", "evaluate", "plan"))


IDS = small_world().clients.ids


def test_feddyn_that_is_not_held_is_fedavg_in_its_first_round() -> None:
    """Slopes are zero at first; what remains, alpha / 2 of a squared distance, vanishes with alpha."""
    world = small_world()
    method = dataclasses.replace(linear(FedDyn, **SGD, local_epochs=3), alpha=1e-7)
    mine = run_to_end(method, world.clients, world.task)
    fedavg = run_to_end(linear(FedAvg, **SGD, local_epochs=3), world.clients, world.task)
    # h / alpha is the mean of what clients went, so that the server's model went twice as far.
    start = method.initial_params(world.task)["layer1.weight"].double().numpy()
    went = array(fedavg.server, "params.layer1.weight") - start
    assert_allclose(array(mine.server, "params.layer1.weight") - start, 2 * went, atol=1e-5)


def test_two_rounds_of_feddyn_by_hand() -> None:
    """Algorithm 1 of the paper, with plain means."""
    lr, epochs, alpha = 0.5, 2, 0.3
    method = linear(FedDyn, **SGD, rounds=2, local_epochs=epochs, weighting="uniform")
    method = dataclasses.replace(method, alpha=alpha)
    world = small_world()
    start = method.initial_params(world.task)
    x = [start["layer1.weight"][0].double().numpy(), start["layer1.bias"][0].double().numpy()]
    h = [np.zeros_like(part) for part in x]
    slope = {name: [np.zeros_like(part) for part in x] for name in IDS}
    for _ in range(2):
        ys = []
        for name in IDS:
            features, labels, rows, _ = piece(name)
            y = [part.copy() for part in x]
            for _ in range(epochs):
                error = softmax(features[rows] @ y[0] + y[1]) - np.eye(3)[labels[rows]]
                gradient = [features[rows].T @ error / len(rows), error.mean(0)]
                now = zip(y, gradient, slope[name], x, strict=True)
                y = [part - lr * (g - s + alpha * (part - a)) for part, g, s, a in now]
            slope[name] = [s - alpha * (b - a) for s, a, b in zip(slope[name], x, y, strict=True)]
            ys.append(y)
        mean = [np.mean([y[i] for y in ys], 0) for i in range(2)]
        h = [part - alpha * (m - a) for part, m, a in zip(h, mean, x, strict=True)]
        x = [m - part / alpha for m, part in zip(mean, h, strict=True)]
    end = run_to_end(method, world.clients, world.task)
    for i, name in enumerate(("weight", "bias")):
        assert_allclose(array(end.server, f"params.layer1.{name}")[0], x[i], atol=1e-5)
        assert_allclose(array(end.server, f"drift.layer1.{name}")[0], h[i], atol=1e-5)
        for state in end.states:
            assert_allclose(array(state, f"slope.layer1.{name}")[0], slope[state.ids[0]][i], atol=1e-5)


@pytest.mark.parametrize("sharpness", [0.0, 4.0])
def test_a_round_of_fedamp_by_hand(sharpness: float) -> None:
    """From the trained models that clients keep, by line 3."""
    method = dataclasses.replace(linear(FedAMP), sharpness=sharpness, own=0.3)
    world = small_world()
    end = run_to_end(method, world.clients, world.task)
    paths = ("params.layer1.weight", "params.layer1.bias")
    first = np.concatenate([method.initial_params(world.task)[path[7:]].double().numpy().ravel() for path in paths])
    models = np.stack([np.concatenate([array(state, path).ravel() for path in paths]) for state in end.states])
    moved = (models - first) / np.linalg.norm(models - first, axis=1, keepdims=True)
    expected = []
    for i in range(len(models)):
        power = np.array([0.0 if j == i else np.exp(sharpness * moved[i] @ moved[j]) for j in range(len(models))])
        expected.append(0.3 * models[i] + 0.7 * (power / power.sum()) @ models)
    server = end.server.select([state.ids[0] for state in end.states])
    got = np.concatenate([array(server, path).reshape(len(models), -1) for path in paths], 1)
    assert_allclose(got, np.stack(expected), atol=1e-5)
    assert end.server.ids[0] == "" and torch.equal(  # newcomers still get the initial model
        end.server.select([""]).tensors()["params.layer1.weight"], method.initial_params(world.task)["layer1.weight"]
    )
