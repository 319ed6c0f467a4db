"""FedAvg, FedProx, FedPer, Local, Global and FedSage: reductions, and rounds worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from harness import World, assert_close, assert_same, run_to_end, small, small_world
from torch_geometric.data import Data

from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import batch_of
from suture.method import Task
from suture.methods.averaging import Server
from suture.methods.fedavg import FedAvg
from suture.methods.fedper import FedPer
from suture.methods.fedprox import FedProx
from suture.methods.fedsage import FedSage
from suture.methods.local import Local
from suture.methods.uncut import Global
from suture.settings import ModelSettings, TrainingSettings


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def test_fedprox_without_pull_is_fedavg(world: World) -> None:
    left = run_to_end(small(FedProx, mu=0.0), world.clients, world.task)
    assert_same(left, run_to_end(small(FedAvg), world.clients, world.task), tolerance=0.0)


def test_fedprox_pulls_towards_the_received_model(world: World) -> None:
    """The stronger the pull, the nearer clients stay to where the round began."""
    distances = []
    for mu in (0.0, 1.0, 100.0):
        training = TrainingSettings(rounds=1, local_epochs=5, optimizer="sgd", lr=0.01)
        method = dataclasses.replace(small(FedProx, mu=mu), training=training)
        cohort = EmbeddedCohort.start(method, world.clients, world.task)
        start = method.init_server(world.task)
        method.round(start, cohort)
        moved = [(value - start.params[name]).square().sum() for name, value in cohort.states()[0].params.items()]
        distances.append(float(torch.stack(moved).sum()))
    assert distances[0] > distances[1] > distances[2] > 0


def test_fedper_without_personal_layers_is_fedavg(world: World) -> None:
    left = run_to_end(small(FedPer, personal_layers=0), world.clients, world.task)
    assert_same(left, run_to_end(small(FedAvg), world.clients, world.task), tolerance=0.0)


def test_fedper_with_only_personal_layers_is_local(world: World) -> None:
    left = run_to_end(small(FedPer, personal_layers=9), world.clients, world.task)
    assert_same(left, run_to_end(small(Local), world.clients, world.task), tolerance=0.0)


def test_fedper_keeps_its_head_at_home(world: World) -> None:
    method = small(FedPer)
    server = method.init_server(world.task)
    assert set(server.params) == {"layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"}
    end = run_to_end(method, world.clients, world.task)
    heads = [state.tensors()["params.head.weight"] for state in end.states]
    assert not torch.allclose(heads[0], heads[1])


def test_global_is_fedavg_with_one_client(world: World) -> None:
    left = run_to_end(small(Global), world.whole, world.task)
    right = run_to_end(small(FedAvg), world.whole, world.task)
    assert_same(left, right, tolerance=0.0)
    assert_close(left.server, Server(("server",), _params(left)), 1e-7)


def _params(end: object) -> dict[str, torch.Tensor]:
    states = end.states  # type: ignore[attr-defined]
    return {path.removeprefix("params."): t for path, t in states[0].tensors().items() if path.startswith("params.")}


def test_local_sends_no_parameter(world: World) -> None:
    method = small(Local)
    assert method.init_server(world.task).params == {}
    end = run_to_end(method, world.clients, world.task)
    assert end.server.tensors() == {}


def test_fedsage_prescribes_its_own_model() -> None:
    method = FedSage(model=ModelSettings(kind="gcn", layers=3), training=TrainingSettings(rounds=7))
    assert method.model.kind == "sage"
    assert method.training.fanouts == (5, 5, 5)
    assert (method.training.batch_size, method.training.rounds) == (64, 7)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _by_hand(mu: float, epochs: int) -> tuple[FedProx, dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """One round of FedProx with a linear GCN and plain gradient steps, in numpy from the equations.

    Client k: logits = A_hat X W + b, loss = mean cross-entropy over its training nodes + mu/2 (||W - W0||^2 + ||b - b0||^2);
    gradient of the mean cross-entropy by the logits is (softmax - onehot) / n on training nodes and 0 elsewhere.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3)).astype(np.float32)
    y = np.array([0, 1, 0, 1, 0, 1, 1])
    edges = np.array([[0, 1], [1, 2], [3, 4], [4, 5], [5, 6], [3, 6]])
    members = [np.array([0, 1, 2]), np.array([3, 4, 5, 6])]
    roles = np.array([1, 1, 3, 1, 1, 1, 3])
    both = np.concatenate([edges, edges[:, ::-1]]).T
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(both.copy()), y=torch.from_numpy(y))
    role = torch.from_numpy(roles).to(torch.int8)
    graph = batch_of(data, ["a", "b"], [torch.from_numpy(m) for m in members], [role[m] for m in members], [False] * 2)
    training = TrainingSettings(rounds=1, local_epochs=epochs, optimizer="sgd", lr=0.3, weighting="train-nodes")
    method = FedProx(model=ModelSettings(kind="gcn", layers=1, hidden=3, dropout=0.0), training=training, mu=mu)
    task = Task(features=3, classes=2, seed=5)
    start = method.init_server(task)
    w0, b0 = start.params["layer1.weight"][0].numpy(), start.params["layer1.bias"][0].numpy()

    total = {"layer1.weight": np.zeros_like(w0, dtype=float), "layer1.bias": np.zeros_like(b0, dtype=float)}
    for nodes in members:
        inside = [(a, b) for a, b in edges if a in nodes and b in nodes]
        adjacency = np.eye(len(nodes))
        for a, b in inside:
            i, j = np.searchsorted(nodes, [a, b])
            adjacency[i, j] = adjacency[j, i] = 1
        scale = adjacency.sum(1) ** -0.5
        a_hat = scale[:, None] * adjacency * scale[None, :]
        train = roles[nodes] == 1
        w, b = w0.astype(float), b0.astype(float)
        for _ in range(epochs):
            error = (_softmax(a_hat @ x[nodes] @ w + b) - np.eye(2)[y[nodes]]) * train[:, None] / train.sum()
            grad_w = (a_hat @ x[nodes]).T @ error + mu * (w - w0)
            grad_b = error.sum(0) + mu * (b - b0)
            w, b = w - 0.3 * grad_w, b - 0.3 * grad_b
        share = train.sum() / (roles == 1).sum()
        total["layer1.weight"] += share * w
        total["layer1.bias"] += share * b
    end = method.round(start, EmbeddedCohort.start(method, graph, task))
    return method, total, {name: value[0] for name, value in end.params.items()}


@pytest.mark.parametrize(("mu", "epochs"), [(0.0, 1), (0.0, 3), (0.5, 3)])
def test_a_round_worked_out_by_hand(mu: float, epochs: int) -> None:
    _, expected, got = _by_hand(mu, epochs)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name].numpy(), value, atol=1e-6)


def test_adam_moments_are_kept_or_dropped_as_asked(world: World) -> None:
    kept = run_to_end(small(FedAvg), world.clients, world.task)
    dropped = run_to_end(small(FedAvg, training={"keep_optimizer": False}), world.clients, world.task)
    steps = [int(state.tensors()["moments.step"][0]) for state in (kept.states[0], dropped.states[0])]
    assert steps == [4, 2]
    difference = kept.server.tensors()["params.layer1.weight"] - dropped.server.tensors()["params.layer1.weight"]
    assert float(difference.abs().max()) > 1e-4


def test_participation_leaves_the_others_as_they_were(world: World) -> None:
    method = small(FedAvg, training={"participation": 0.25})
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    before = cohort.states()[0]
    method.round(method.init_server(world.task), cohort)
    after = cohort.states()[0]
    moved = [k for k in range(4) if not torch.equal(before.params["layer1.weight"][k], after.params["layer1.weight"][k])]
    assert len(moved) == 1
