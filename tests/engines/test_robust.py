from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch_geometric.data import Data

from suture import api
from suture.core.message import Model
from suture.engines.robust import Robust, centre, flatten, krum_scores, unflatten
from suture.errors import ConfigError
from suture.method import Clients, step
from suture.methods import METHODS
from suture.methods.averaging import Kept, Up
from suture.methods.fedavg import FedAvg
from suture.runs.execute import execute
from suture.runs.outcome import Outcome
from suture.runs.prepare import Source


def test_rules_against_numpy() -> None:
    update = torch.randn(7, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.testing.assert_allclose(centre(update, "median", 2), np.median(update.numpy(), 0))
    np.testing.assert_allclose(centre(update[:6], "median", 2), np.median(update[:6].numpy(), 0))
    np.testing.assert_allclose(centre(update, "trimmed-mean", 2), trim_mean(update.numpy(), 2 / 7, 0))
    brute = []
    for i in range(7):
        others = sorted(float((update[i] - update[j]).square().sum()) for j in range(7) if j != i)
        brute.append(sum(others[: 7 - 2 - 2]))
    np.testing.assert_allclose(krum_scores(update, 2), brute)
    np.testing.assert_allclose(centre(update, "krum", 2), update[int(np.argmin(brute))])
    np.testing.assert_allclose(centre(update, "multi-krum", 2), update[np.argsort(brute)[:5]].mean(0))


def test_trees_there_and_back() -> None:
    tree = {"a": torch.randn(3, 2, 4), "b": torch.randn(3, 5)}
    row = unflatten(flatten(tree)[1], tree)
    assert all(torch.allclose(row[name], tree[name][1:2]) for name in tree)


def test_only_methods_that_say_so_themselves_are_summed() -> None:
    """Who inherits from FedAvg but does more with the replies has not promised anything."""
    summed = {name for name, method in METHODS.items() if method().sums}
    assert {"fedavg", "fedprox", "fedper", "fedsage"} <= summed
    assert not summed & {"local", "fedpub", "gcfl", "gcfl+", "fedgnn", "fedproto"}


def test_another_method_is_refused(cora: Data) -> None:
    with pytest.raises(ConfigError, match=r"fedpub does not just average"):
        api.run(cora, "fedpub", clients=3, overrides=["rounds=1", "training.aggregation=median"])


@dataclass(frozen=True)
class Attacked(FedAvg):
    """FedAvg with one client that does not play fair."""

    name: ClassVar[str] = "attacked"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)

    attack: str = "none"

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        graph = clients.graph
        bad = torch.tensor([name == "client-02" for name in clients.ids])
        if self.attack == "label-flipped":
            y = torch.where(bad[graph.segments.client], clients.task.classes - 1 - graph.y, graph.y)
            flipped = dataclasses.replace(graph, y=y)
            clients = Clients(flipped, clients.state, clients.rng, clients.task)
        state, up = super().local_update(clients, down)
        factor = {"scaled": 100.0, "sign-flipped": -5.0, "nan": float("nan")}.get(self.attack)
        if factor is None:
            return state, up

        def spoil(name: str, value: torch.Tensor) -> torch.Tensor:
            change = value - down.params[name]
            return torch.where(bad.view(-1, *[1] * (value.dim() - 1)), down.params[name] + factor * change, value)

        return state, dataclasses.replace(up, params={name: spoil(name, value) for name, value in up.params.items()})


def accuracy(cora: Data, attack: str, rule: str, kind: str = "random", seed: int = 0) -> Outcome:
    overrides = ["rounds=30", "local_epochs=3", f"partition.kind={kind}", f"training.aggregation={rule}"]
    made = api.plan("in-memory", ["fedavg"], protocol="fedpub-disjoint", clients=5, seeds=[seed], overrides=overrides)
    source = Source(made, cora)
    method = Attacked(model=made.protocol.model, training=made.protocol.training, attack=attack)
    return execute(source.prepared(seed), method, made.protocol).outcome


@pytest.fixture(scope="module")
def clean(dataset: Callable[[str], Data]) -> float:
    return accuracy(dataset("cora"), "none", "mean").accuracy_client_mean


ATTACKS = ["scaled", "sign-flipped", "nan", "label-flipped"]
RULES = ["median", "trimmed-mean", "krum", "multi-krum"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_malicious_client_of_five(attack: str, cora: Data, clean: float) -> None:
    """Within two points of the plain average of five honest clients, and the suspect is named."""
    held = accuracy(cora, attack, "multi-krum")
    assert held.accuracy_client_mean > clean - 0.02
    assert held.suspects == ("client-02",)


@pytest.mark.slow
def test_multi_krum_holds_over_seeds(cora: Data) -> None:
    """One seed is worth a point or two either way; what five honest clients reach with the same rule is what is held."""
    honest = np.mean([accuracy(cora, "none", "multi-krum", seed=seed).accuracy_client_mean for seed in range(3)])
    for attack in ATTACKS:
        runs = [accuracy(cora, attack, "multi-krum", seed=seed) for seed in range(3)]
        assert np.mean([run.accuracy_client_mean for run in runs]) > honest - 0.02, attack


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", RULES)
def test_whoever_is_malicious_is_named_and_nobody_else(rule: str, seed: int, cora: Data) -> None:
    assert accuracy(cora, "none", rule, seed=seed).suspects == ()
    for attack in ATTACKS:
        assert accuracy(cora, attack, rule, seed=seed).suspects == ("client-02",), attack


@pytest.mark.parametrize("attack", ["scaled", "sign-flipped"])
def test_the_mean_does_not_hold(attack: str, cora: Data, clean: float) -> None:
    assert accuracy(cora, attack, "mean").accuracy_client_mean < clean - 0.05


@pytest.mark.parametrize("kind", ["random", "metis"])
def test_nobody_honest_is_suspected(kind: str, cora: Data) -> None:
    """Not even where every client has other labels."""
    assert accuracy(cora, "none", "multi-krum", kind).suspects == ()


def test_suspicion_is_bounded_and_relative() -> None:
    robust = Robust("median", 1, frozenset({"local_update"}))
    params = {"w": torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 1.0], [0.4, 0.0], [1e9, 0.5]])}
    ids = tuple("abcde")
    up = robust.fold("local_update", Up(ids, params, torch.ones(5), torch.arange(5.0)))
    assert up.ids == ("aggregate",)
    assert up.params["w"].tolist() == [[0.5, 0.5]]
    assert float(up.loss) == 2.0
    assert robust.suspects() == ["e"]
    assert robust.suspicion()["e"] == 100.0
    params["w"][4] = float("nan")
    up = robust.fold("local_update", Up(ids, params, torch.ones(5), torch.arange(5.0)))
    torch.testing.assert_close(up.params["w"], torch.tensor([[0.45, 0.5]]))
    again = Robust("median", 1, frozenset({"local_update"}))
    again.recall(json.loads(json.dumps(robust.evidence())))
    assert again.suspicion() == robust.suspicion()
    assert again.suspects() == ["e"]
    other = Up(ids, params, torch.ones(5), torch.ones(5))
    assert robust.fold("another_step", other) is other
