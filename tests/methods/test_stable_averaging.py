"""Averaged moments, optimisers at the server and SCAFFOLD, each against a derivation by hand or what it must reduce to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import World, run_to_end, small, small_world
from numpy.testing import assert_allclose

import suture
from suture import api
from suture.core.message import Record
from suture.engines.sealed import SealedCohort
from suture.errors import ConfigError
from suture.method import Method
from suture.methods import METHODS
from suture.methods.fedavg import FedAvg
from suture.methods.fedper import FedPer
from suture.methods.gcfl import Gcfl
from suture.methods.local import Local
from suture.methods.scaffold import Scaffold
from suture.settings import TrainingSettings
from suture.testing.properties import PROPERTIES
from suture.training.shared import server_step

IDS = small_world().clients.ids
WEIGHT, BIAS = "layer1.weight", "layer1.bias"


def linear(kind: type[Method[Any, Any]], **training: Any) -> Any:
    """A linear network without dropout, so that its gradient is known by hand."""
    method = small(kind, training={"local_epochs": 1, **training})
    return dataclasses.replace(
        method, model=dataclasses.replace(method.model, kind="mlp", layers=1, head=False, dropout=0.0)
    )


def array(record: Record, path: str) -> np.ndarray:
    return record.tensors()[path].double().numpy()


def piece(world: World, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A client's training features and one-hot labels."""
    graph = world.clients.select([name])
    rows = graph.train.nodes
    return graph.x.dense()[rows].double().numpy(), np.eye(3)[graph.y[rows].numpy()]


def gradient(data: tuple[np.ndarray, np.ndarray], weights: list[np.ndarray]) -> list[np.ndarray]:
    """Of the mean cross-entropy of softmax(x W + b)."""
    features, truth = data
    scores = features @ weights[0] + weights[1]
    power = np.exp(scores - scores.max(1, keepdims=True))
    error = (power / power.sum(1, keepdims=True) - truth) / len(truth)
    return [features.T @ error, error.sum(0)]


def initial(method: Any, world: World) -> list[np.ndarray]:
    params = method.initial_params(world.task)
    return [params[name][0].double().numpy() for name in (WEIGHT, BIAS)]


class Adam:
    """The optimiser as its paper has it."""

    def __init__(self, like: list[np.ndarray]) -> None:
        self.m, self.v, self.t = [0 * part for part in like], [0 * part for part in like], 0

    def step(self, weights: list[np.ndarray], slopes: list[np.ndarray], lr: float) -> list[np.ndarray]:
        self.t += 1
        self.m = [0.9 * m + 0.1 * g for m, g in zip(self.m, slopes, strict=True)]
        self.v = [0.999 * v + 0.001 * g**2 for v, g in zip(self.v, slopes, strict=True)]
        hats = [(m / (1 - 0.9**self.t), v / (1 - 0.999**self.t)) for m, v in zip(self.m, self.v, strict=True)]
        return [w - lr * m / (np.sqrt(v) + 1e-8) for w, (m, v) in zip(weights, hats, strict=True)]


def test_the_servers_adam_is_central_adam_on_the_mean_gradient() -> None:
    """One local step, everybody takes part: the whole federation is one Adam, to the last digits."""
    world, decay = small_world(), 0.01
    method = linear(FedAvg, moments="server", rounds=6, lr=0.05, weight_decay=decay)
    x = initial(method, world)
    data = {name: piece(world, name) for name in IDS}
    share = {name: len(data[name][1]) for name in IDS}
    central = Adam(x)
    for _ in range(6):
        each = [[share[name] * g for g in gradient(data[name], x)] for name in IDS]
        mean = [sum(parts) / sum(share.values()) + decay * w for parts, w in zip(zip(*each, strict=True), x, strict=True)]
        x = central.step(x, mean, 0.05)
    end = run_to_end(method, world.clients, world.task)
    for name, value in ((WEIGHT, x[0]), (BIAS, x[1])):
        assert_allclose(array(end.server, f"params.{name}")[0], value, atol=2e-6)


def test_averaged_moments_by_hand() -> None:
    """Everybody steps by Adam from the common moments; weights, first and second moments are averaged by n_k."""
    world = small_world()
    method = linear(FedAvg, moments="averaged", rounds=5, lr=0.05, local_epochs=2)
    x = initial(method, world)
    data = {name: piece(world, name) for name in IDS}
    share = np.array([len(data[name][1]) for name in IDS]) / sum(len(data[name][1]) for name in IDS)
    common = Adam(x)
    for _ in range(5):
        ends, memories = [], []
        for name in IDS:
            mine, y = Adam(x), x
            mine.m, mine.v, mine.t = common.m, common.v, common.t
            for _ in range(2):
                y = mine.step(y, gradient(data[name], y), 0.05)
            ends.append(y)
            memories.append(mine)
        x = [np.tensordot(share, np.stack([end[i] for end in ends]), 1) for i in range(2)]
        common.m = [np.tensordot(share, np.stack([one.m[i] for one in memories]), 1) for i in range(2)]
        common.v = [np.tensordot(share, np.stack([one.v[i] for one in memories]), 1) for i in range(2)]
        common.t += 2
    end = run_to_end(method, world.clients, world.task)
    assert_allclose(array(end.server, f"params.{WEIGHT}")[0], x[0], atol=1e-5)
    assert_allclose(array(end.server, f"moments.{WEIGHT}.first")[0], common.m[0], atol=1e-6)
    assert_allclose(array(end.server, f"moments.{WEIGHT}.second")[0], common.v[0], atol=1e-8)
    assert float(end.server.tensors()["moments.step"]) == 10


@pytest.mark.parametrize("moments", ["averaged", "server"])
def test_alone_both_are_central_adam(moments: str) -> None:
    """With one client there is nothing to average, and the server's Adam is the client's."""
    world = small_world()
    alone = world.clients.select(IDS[:1])
    mine = run_to_end(linear(FedAvg, moments=moments, rounds=8), alone, world.task)
    own = run_to_end(linear(FedAvg, moments="own", rounds=8), alone, world.task)
    tolerance = 0.0 if moments == "averaged" else 1e-6
    assert_allclose(array(mine.server, f"params.{WEIGHT}"), array(own.server, f"params.{WEIGHT}"), rtol=0, atol=tolerance)


def test_separate_moments_are_something_else() -> None:
    """What the tests above compare does differ from FedAvg with its clients' own moments."""
    world = small_world()
    ends = [run_to_end(linear(FedAvg, moments=which, rounds=8), world.clients, world.task) for which in ("own", "averaged")]
    weights = [array(end.server, f"params.{WEIGHT}") for end in ends]
    assert np.abs(weights[0] - weights[1]).max() > 1e-2


def test_momentum_of_zero_is_fedavg() -> None:
    world = small_world()
    mine = run_to_end(
        small(FedAvg, training={"server_optimizer": "momentum", "server_beta1": 0.0}), world.clients, world.task
    )
    fedavg = run_to_end(small(FedAvg), world.clients, world.task)
    for path, value in fedavg.server.tensors().items():
        assert_allclose(array(mine.server, path), value.double().numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "momentum", "adam", "yogi"])
def test_reddis_update_by_hand(kind: str) -> None:
    """Algorithm 2 of Reddi et al., with the letters of the paper; four rounds of made-up means."""
    rng = np.random.default_rng(0)
    eta, b1, b2, tau = 0.3, 0.8, 0.9, 0.05
    settings = TrainingSettings(server_optimizer=kind, server_lr=eta, server_beta1=b1, server_beta2=b2, server_tau=tau)
    x = rng.normal(size=(1, 3, 2))
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    params, memory = {"w": torch.tensor(x)}, {}
    for _ in range(4):
        mean = x + rng.normal(size=x.shape) * 10.0 ** rng.integers(-3, 1, size=x.shape)
        delta = mean - x
        params, memory = server_step(params, {"w": torch.tensor(mean)}, {}, memory, settings)
        m = delta if kind == "none" else b1 * m + (1 if kind == "momentum" else 1 - b1) * delta
        v = v - (1 - b2) * delta**2 * np.sign(v - delta**2) if kind == "yogi" else b2 * v + (1 - b2) * delta**2
        x = x + eta * (m / (np.sqrt(v) + tau) if kind in ("adam", "yogi") else m)
        assert_allclose(params["w"].numpy(), x, rtol=1e-12)


def test_scaffold_without_control_is_fedavg() -> None:
    """All controls are zero in the first round, whatever the optimiser: models must end as FedAvg's."""
    world = small_world()
    for optimizer in ("sgd", "adam"):
        mine = run_to_end(linear(Scaffold, optimizer=optimizer, rounds=1, local_epochs=3), world.clients, world.task)
        fedavg = run_to_end(linear(FedAvg, optimizer=optimizer, rounds=1, local_epochs=3), world.clients, world.task)
        assert_allclose(array(mine.server, f"params.{WEIGHT}"), array(fedavg.server, f"params.{WEIGHT}"), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_scaffold_with_one_client_is_local_training(optimizer: str) -> None:
    """With N = 1, c is c_i at all times, so nothing is corrected."""
    world = small_world()
    alone = world.clients.select(IDS[:1])
    mine = run_to_end(linear(Scaffold, optimizer=optimizer, rounds=4, local_epochs=2), alone, world.task)
    local = run_to_end(linear(FedAvg, optimizer=optimizer, rounds=1, local_epochs=8), alone, world.task)
    assert_allclose(array(mine.server, f"params.{WEIGHT}"), array(local.server, f"params.{WEIGHT}"), atol=1e-5)


def test_two_rounds_of_scaffold_by_hand() -> None:
    """Algorithm 1 of the paper, option II as it is printed, with SGD, plain means and a server step of 0.7."""
    lr, epochs, server_lr, world = 0.5, 2, 0.7, small_world()
    values = {"optimizer": "sgd", "lr": lr, "server_lr": server_lr, "weighting": "uniform"}
    method = linear(Scaffold, **values, rounds=2, local_epochs=epochs)
    x = initial(method, world)
    c = [0 * part for part in x]
    own = {name: [0 * part for part in x] for name in IDS}
    for _ in range(2):
        ys, changes = [], []
        for name in IDS:
            y = x
            for _ in range(epochs):
                slopes = gradient(piece(world, name), y)
                y = [part - lr * (g - mine + all_) for part, g, mine, all_ in zip(y, slopes, own[name], c, strict=True)]
            new = [mine - all_ + (a - b) / (epochs * lr) for mine, all_, a, b in zip(own[name], c, x, y, strict=True)]
            changes.append([a - b for a, b in zip(new, own[name], strict=True)])
            ys.append(y)
            own[name] = new
        x = [part + server_lr * (np.mean([y[i] for y in ys], 0) - part) for i, part in enumerate(x)]
        c = [part + np.mean([change[i] for change in changes], 0) for i, part in enumerate(c)]
    end = run_to_end(method, world.clients, world.task)
    for i, name in enumerate((WEIGHT, BIAS)):
        assert_allclose(array(end.server, f"params.{name}")[0], x[i], atol=1e-5)
        assert_allclose(array(end.server, f"moments.{name}.control")[0], c[i], atol=1e-5)
        for state in end.states:
            assert_allclose(array(state, f"control.{name}")[0], own[state.ids[0]][i], atol=1e-5)


SHARING = [name for name, kind in METHODS.items() if "moments" in kind.shares]
STEPPING = [name for name, kind in METHODS.items() if "server" in kind.shares and kind.one_model]
MATTERING = ["separable_with_partial_participation", "resumes_after_any_iteration", "messages_are_closed"]
MATTERING += ["owners_understand_every_message", "promised_sums_suffice", "odd_clients_can_take_part"]


def test_who_shares_what() -> None:
    assert {"fedavg", "fedprox", "fedper", "fedsage", "fedsage_plus", "fedpub", "gcfl", "scaffold", "feddep"} <= set(SHARING)
    assert {"fedavg", "fedprox", "fedsage", "fedsage_plus", "scaffold", "feddep", "fedgnn"} <= set(STEPPING)
    assert not {"fedproto", "fedggr", "fedgls"} & {*SHARING, *STEPPING}


@pytest.mark.parametrize("holds", MATTERING)
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedpub", "gcfl", "fed_gnnmlp", "scaffold"])
def test_free_tests_hold_with_averaged_moments(name: str, holds: str) -> None:
    PROPERTIES[holds](METHODS[name], {"training": {"moments": "averaged"}, **({"warm_up": 0} if name == "gcfl" else {})})


@pytest.mark.parametrize("holds", MATTERING)
@pytest.mark.parametrize("training", [{"moments": "server"}, {"server_optimizer": "yogi", "server_lr": 0.1}], ids=str)
@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_free_tests_hold_with_steps_at_the_server(kind: type[Any], training: dict[str, Any], holds: str) -> None:
    PROPERTIES[holds](kind, {"training": training})


@pytest.mark.parametrize("name", SHARING)
def test_every_sharing_method_trains_on_averaged_moments(name: str) -> None:
    """After a round every client's shared moments were handed out by the server: two rounds differ from own moments."""
    world = small_world()
    ends = [
        run_to_end(method, world.graph_for(method), world.task)
        for method in (small(METHODS[name], training={"moments": which}) for which in ("own", "averaged"))
    ]
    alone = METHODS[name].sees_uncut_graph or name in ("local", "locsage", "locsage_plus", "local_gnnk")
    same = all(
        torch.equal(mine, ends[1].states[k].tensors()[path])
        for k, state in enumerate(ends[0].states)
        for path, mine in state.tensors().items()
        if path.startswith("params.")
    )
    stable_anyway = name == "suture"  # which has no other moments than averaged ones
    assert same == (alone or stable_anyway), "whoever shares nothing must train as before, and whoever does must not"


def test_sealed_sums_are_enough() -> None:
    """Moments are summed with the weights: the server that sees sums alone ends with the same of both."""
    world = small_world()
    for training in ({"moments": "averaged"}, {"moments": "server"}, {"server_optimizer": "adam", "server_lr": 0.1}):
        method = small(FedAvg, training=training)
        cohort, server = SealedCohort.start(method, world.clients, world.task), method.init_server(world.task)
        for _ in range(2):
            server = method.round(server, cohort)
        plain = run_to_end(method, world.clients, world.task).server
        for path, value in plain.tensors().items():
            assert_allclose(array(server, path), value.double().numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "training", "sentence"),
    [
        (METHODS["fedproto"], {"moments": "averaged"}, "cannot average their moments: set fedproto.training.moments=own"),
        (METHODS["fedgls"], {"moments": "averaged"}, "cannot average their moments"),
        (Gcfl, {"server_optimizer": "momentum"}, "no single model at its server"),
        (METHODS["fedpub"], {"server_lr": 0.5}, "no single model at its server"),
        (FedPer, {"moments": "server"}, "do not reach its server"),
        (Local, {"moments": "server"}, "do not reach its server"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type[Any], training: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        small(kind, training=training)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["training.moments=averaged", "training.keep_optimizer=false"], "hands moments on from round to round"),
        (["training.moments=server", "training.server_optimizer=momentum"], "would be a second one"),
        (["training.server_optimizer=adam"], "such as training.server_lr=0.01"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        api.plan("csbm:nodes=240", ["fedavg"], overrides=overrides)


def test_a_network_with_buffers_is_not_stepped_at_the_server() -> None:
    from suture.method import Task

    class Normed(torch.nn.Module):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__()
            self.norm, self.out = torch.nn.BatchNorm1d(features), torch.nn.Linear(features, classes)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.norm(x))
            return out

    world = small_world()
    task = Task(world.task.features, world.task.classes, 0, module=Normed)
    with pytest.raises(ConfigError, match="has buffers"):
        run_to_end(small(FedAvg, training={"server_optimizer": "momentum"}), world.clients, task)
    end = run_to_end(small(FedAvg, training={"moments": "server"}), world.clients, task)
    moved = end.server.tensors()["params.norm.running_mean"]
    assert float(moved.abs().max()) > 0, "running means are averaged as they are"


def test_the_ledger_says_what_left(tmp_path: Path) -> None:
    """Averaged moments triple what travels and are named; sums of gradients take the place of weights."""
    sizes: dict[str, dict[str, int]] = {}
    for which in ("own", "averaged", "server"):
        out = tmp_path / which
        suture.run("csbm:nodes=240", "fedavg", clients=3, overrides=["rounds=2", f"training.moments={which}"], out=out)
        lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
        sizes[which] = next(line["kinds"] for line in lines if line["step"] == "local_update" and line["direction"] == "up")
        tested = [line["kinds"] for line in lines if line["step"] == "evaluate" and line["direction"] == "down"]
        assert all("moments" not in kinds for kinds in tested), "who is tested needs no moments"
    model = sizes["own"]["weights"]
    assert sizes["averaged"] == {**sizes["own"], "moments": 2 * model + 4}
    assert sizes["server"]["moments"] == model and not sizes["server"].get("weights")
