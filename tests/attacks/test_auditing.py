"""Audits of the real mechanisms: no true account is refuted, and every fault put into the code is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import suture.attacks.canaries
import suture.methods.feddep.method
import suture.methods.feddep.prototypes
import suture.nn.aggregates
import suture.privacy.mechanisms
import suture.training.batches
from suture.attacks.auditing import Effort, audit, client_graph
from suture.attacks.canaries import GradientCanaries, enlarged
from suture.cli import main
from suture.core.kernels import Segments
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method
from suture.methods import METHODS
from suture.methods.feddep import FedDep
from suture.privacy.accountant import dp_sgd_epsilon
from suture.privacy.audited import Audited
from suture.settings import ModelSettings, TrainingSettings
from suture.testing.world import small_world

CANARIES, ROUNDS = 250, 4
NETWORK = ModelSettings(hidden=8)
FULL = TrainingSettings(rounds=ROUNDS, dp_sigma=1.5, dp_clip=0.5)
DRAWN = replace(FULL, batch_size=10, dp_sigma=0.7)
Break = Callable[[pytest.MonkeyPatch], None]


def averaged(model: ModelSettings = NETWORK, training: TrainingSettings = FULL) -> Method[Any, Any]:
    return METHODS["fedavg"](model=model, training=training)


def audited(method: Method[Any, Any], seed: int = 0, canaries: int = CANARIES) -> list[Audited]:
    world = small_world()
    task = replace(world.task, seed=seed)
    return list(audit(method, client_graph(world.clients, None), task, Effort(canaries, ROUNDS, 1e-5, seed)))


def halved(patch: pytest.MonkeyPatch) -> None:
    noise = suture.privacy.mechanisms.noise_like
    patch.setattr(suture.privacy.mechanisms, "noise_like", lambda tree, deviation, rng: noise(tree, deviation / 2, rng))


def unclipped(patch: pytest.MonkeyPatch) -> None:
    def ones(grads: Tree, clip: float) -> Tensor:
        return torch.ones(next(iter(grads.values())).shape[0])

    patch.setattr(suture.privacy.mechanisms, "clip_factors", ones)


def used_again(patch: pytest.MonkeyPatch) -> None:
    noise, fixed = suture.privacy.mechanisms.noise_like, Streams.of(0, ["always"])
    patch.setattr(suture.privacy.mechanisms, "noise_like", lambda tree, deviation, rng: noise(tree, deviation, fixed))


def drawn_too_often(patch: pytest.MonkeyPatch) -> None:
    draw = suture.training.batches.poisson_sample

    def often(segments: Segments, rate_K: Tensor, rng: Streams) -> Tensor:
        return draw(segments, (3 * rate_K).clamp_max(1), rng)

    patch.setattr(suture.training.batches, "poisson_sample", often)


def halved_sums(patch: pytest.MonkeyPatch) -> None:
    noise = suture.nn.aggregates.noise_rows
    patch.setattr(
        suture.nn.aggregates, "noise_rows", lambda ptr, width, deviation, rng: noise(ptr, width, deviation / 2, rng)
    )


def all_neighbours(patch: pytest.MonkeyPatch) -> None:
    draw = suture.attacks.canaries.sample_neighbours
    patch.setattr(
        suture.attacks.canaries,
        "sample_neighbours",
        lambda nodes, fanout, graph, rng, *, replace: draw(nodes, 1000, graph, rng, replace=replace),
    )


def drawn_more(patch: pytest.MonkeyPatch) -> None:
    draw = suture.methods.feddep.method.drawn_graph
    patch.setattr(suture.methods.feddep.method, "drawn_graph", lambda graph, share, rng: draw(graph, share + 0.15, rng))


def each_direction_by_itself(patch: pytest.MonkeyPatch) -> None:
    def apart(rng: Streams, client: Tensor, one: Tensor, other: Tensor) -> Tensor:
        where, place = client.sort(stable=True)
        lengths = torch.bincount(where, minlength=rng.keys.numel())
        drawn = rng.uniform(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])).squeeze(1)
        return torch.empty_like(drawn).index_copy(0, place, drawn)

    patch.setattr(Streams, "of_pairs", apart)


def embedded_with_all_edges(patch: pytest.MonkeyPatch) -> None:
    real = suture.methods.feddep.method.trained_embeddings
    whole: list[GraphBatch] = []
    embeddings = FedDep.embeddings

    def remembering(self: FedDep, clients: Clients[Any]) -> Tensor:
        whole[:] = [clients.graph]
        return embeddings(self, clients)

    patch.setattr(FedDep, "embeddings", remembering)
    patch.setattr(
        suture.methods.feddep.method,
        "trained_embeddings",
        lambda network, initial, graph, settings, rng: real(network, initial, whole[0], settings, rng),
    )


def halved_means(patch: pytest.MonkeyPatch) -> None:
    noise = suture.methods.feddep.prototypes.noise_like
    patch.setattr(
        suture.methods.feddep.prototypes, "noise_like", lambda tree, deviation, rng: noise(tree, deviation / 2, rng)
    )


def sensitivity_of_larger_groups(patch: pytest.MonkeyPatch) -> None:
    add = suture.methods.feddep.prototypes.noisy

    def noisy(told: Tensor, cluster: Tensor, segments: Segments, smallest: int, sigma: float, rng: Streams) -> Tensor:
        return add(told, cluster, segments, smallest, sigma / 2, rng)

    patch.setattr(suture.methods.feddep.prototypes, "noisy", noisy)


def small_groups_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        suture.methods.feddep.prototypes, "without_small", lambda z, centres, cluster, segments, smallest: (centres, cluster)
    )


def copies_with_noise_of_their_own(patch: pytest.MonkeyPatch) -> None:
    def noisy(told: Tensor, cluster: Tensor, segments: Segments, smallest: int, sigma: float, rng: Streams) -> Tensor:
        return told + suture.privacy.mechanisms.noise_like({"centres": told}, sigma * 2 / smallest, rng)["centres"]

    patch.setattr(suture.methods.feddep.prototypes, "noisy", noisy)


def feddep(**values: Any) -> Method[Any, Any]:
    small: dict[str, Any] = {"d_z": 8, "clusters": 6, "pretrain_epochs": 1, "model": NETWORK}
    return METHODS["feddep"](**{**small, **values})


EDGES = ModelSettings(kind="gap", hidden=8, gap_hops=2, gap_sigma=2.0)
NODES = replace(EDGES, gap_level="node", gap_max_degree=3, gap_sigma=2.5)
FAULTS: dict[str, tuple[Callable[[], Method[Any, Any]], Break]] = {
    "half the noise": (averaged, halved),
    "no clipping": (averaged, unclipped),
    "the same noise again": (averaged, used_again),
    "half the noise, drawn": (lambda: averaged(training=DRAWN), halved),
    "drawn too often": (lambda: averaged(training=DRAWN), drawn_too_often),
    "half the noise on sums": (lambda: averaged(EDGES, TrainingSettings()), halved_sums),
    "half the noise on nodes' sums": (lambda: averaged(NODES, replace(FULL, rounds=1)), halved_sums),
    "all neighbours": (lambda: feddep(fanout=3, as_published=True), all_neighbours),
    "more edges drawn": (feddep, drawn_more),
    "edges drawn in each direction": (feddep, each_direction_by_itself),
    "edges that were not drawn embedded": (feddep, embedded_with_all_edges),
    "half the noise on means": (lambda: feddep(prototype_sigma=1.0), halved_means),
    "means of larger groups": (lambda: feddep(prototype_sigma=1.0), sensitivity_of_larger_groups),
    "means of single nodes": (lambda: feddep(prototype_sigma=1.0), small_groups_told),
    "the same mean with other noise": (lambda: feddep(prototype_sigma=1.0), copies_with_noise_of_their_own),
}


QUICK = (
    "half the noise",
    "half the noise on sums",
    "all neighbours",
    "more edges drawn",
    "edges that were not drawn embedded",
    "half the noise on means",
    "the same mean with other noise",
)


def on_feddep(name: str) -> bool:
    """Audits of what FedDEP does by itself cost little."""
    return any(word in name for word in ("neighbours", "edges", "mean"))


def with_enough(name: str) -> int:
    """Sums, means and draws cost little; where few examples are drawn, a canary says less in a step."""
    if "sums" in name or on_feddep(name):
        return 1000 if on_feddep(name) else 1500
    return 500 if "drawn" in name else CANARIES


@pytest.mark.parametrize("name", QUICK)
def test_true_accounts_stand_and_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fault = FAULTS[name]
    for one in audited(make(), canaries=with_enough(name)):
        assert one.holds, one
    fault(monkeypatch)
    assert not all(one.holds for one in audited(make(), canaries=with_enough(name)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", FAULTS)
def test_over_five_seeds(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fault = FAULTS[name]
    for one in audited(make(), seed, with_enough(name)):
        assert one.holds, one
    fault(monkeypatch)
    assert not all(one.holds for one in audited(make(), seed, with_enough(name)))


@pytest.mark.slow
def test_both_trainings_of_feddep_without_sampling_are_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the classifier, and that of the network behind prototypes."""
    method = feddep(nfdp=False, sigma=1.5, batch_size=0, pretrain_epochs=4, training=FULL)
    found = audited(method)
    assert len(found) == 2 and all(one.holds for one in found), found
    halved(monkeypatch)
    assert not any(one.holds for one in audited(method))


def test_the_upper_bound_is_that_of_the_steps_that_were_made() -> None:
    (one,) = audited(averaged(training=replace(DRAWN, rounds=1)), canaries=40)
    train = int(client_graph(small_world().clients, None).num_train[0])
    size = round(10 / train * (train + 40))
    rate, steps = size / (train + 40), -(-(train + 40) // size)
    assert one.upper == pytest.approx(min(e for e in dp_sgd_epsilon([(0.7, rate, steps)]) if e is not None), rel=1e-6)


def test_canaries_stand_in_weights_of_their_own_and_are_no_other_nodes_neighbours() -> None:
    graph = client_graph(small_world().clients, None)
    params = averaged().initial_params(small_world().task)
    canaries = GradientCanaries.among(graph, params, list(params), 10_000, 1.0, 0)
    assert len(canaries.places) == len(set(canaries.places)) == sum(value[0].numel() for value in params.values())
    assert 0.3 < float(canaries.included.float().mean()) < 0.7
    larger = enlarged(graph, None, 7, role=1)
    assert torch.equal(larger.edge_index, graph.edge_index) and larger.num_nodes == graph.num_nodes + 7
    assert float(larger.x.dense()[-7:].abs().sum()) == 0 and torch.equal(larger.x.dense()[:-7], graph.x.dense())


def test_of_a_draw_is_told_how_large_delta_is_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    """With as many that showed as were drawn by chance, Clopper-Pearson's limit lies below the share, and near to it."""
    one = next(audit for audit in audited(feddep(edge_share=0.3), canaries=4000) if audit.least_delta is not None)
    assert one.least_delta is not None and 0.25 < one.least_delta < 0.3 == one.delta
    asked = ["audit", "--method", "feddep", "--dataset", "csbm:nodes=150,features=20,degree=4", "--clients", "2"]
    assert main([*asked, "--set", "feddep.pretrain_epochs=1", "--canaries", "500"]) == 0
    assert "NFDP: delta is at least 0.4" in (said := capsys.readouterr().out) and "promised is 0.5 at most" in said


def test_what_promises_nothing_cannot_be_audited() -> None:
    with pytest.raises(ConfigError, match="promises nothing"):
        audited(averaged(training=TrainingSettings()))


def test_the_command_keeps_what_it_found_and_says_when_a_promise_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    asked = ["run", "--dataset", "csbm:nodes=150,features=20,degree=4", "--clients", "2", "--out", str(out), "--quiet"]
    assert main([*asked, "--set", "model.kind=gap", "--set", "rounds=2"]) == 0
    assert main(["audit", str(out), "--canaries", "800"]) == 0
    capsys.readouterr()
    assert main(["privacy", str(out)]) == 0
    assert "Audited epsilon" in (said := capsys.readouterr().out) and "No account is refuted" in said
    halved_sums(monkeypatch)
    assert main(["audit", str(out), "--canaries", "800"]) == 1
    assert "REFUTED: GAP" in capsys.readouterr().out
    (kept,) = json.loads((out / "audit.json").read_text())["audits"]
    assert kept["lower"] > kept["upper"] and not kept["holds"]
    assert main(["audit", str(out), "--method", "fedavg"]) == 2
    assert "give either a run" in capsys.readouterr().err
    assert main(["audit", str(out), "--client", "nobody"]) == 2
