"""Every attack wins on a run that is known to leak, and wins nothing where noise has taken the place of messages."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch

import suture
from suture.attacks import trials
from suture.attacks.attack import Clock, Finding
from suture.attacks.rows import Answer, programmed, right, row_space, solved
from suture.attacks.scenes import Scene
from suture.attacks.updates import updates
from suture.cli import main
from suture.methods import DOOR, own_fields

GRAPH = "csbm:nodes=240,features=120,degree=4"
WIDE = "csbm:nodes=240,features=1500,degree=4"
SPREAD = ["partition.kind=dirichlet", "partition.dirichlet_alpha=0.3"]


@dataclass(frozen=True)
class Leak:
    """A run that is known to leak, and the attack that shows it."""

    attack: str
    method: str
    overrides: tuple[str, ...]
    graph: str = GRAPH
    protocol: str | None = None
    clients: int = 4
    views: tuple[str, ...] = ("server",)


AVERAGED = "training.moments=averaged"
OPEN = ("rounds=6", "model.hidden=16", *SPREAD)
OVERFIT = ("rounds=60", "model.hidden=32", "model.dropout=0", "training.local_epochs=3")
ALONE = ("model.kind=mlp", "model.dropout=0", "training.optimizer=sgd", "training.lr=0.1", "rounds=2")
FEW = ("split.scope=client", "split.train=0.03", "split.val=0.4", "split.test=0.4", "model.hidden=32")
MENDING = ("fedsage_plus.generator_epochs=40", "rounds=1", "model.hidden=8", "fedsage_plus.latent=16")
ASKED = ("fedsage_plus.hidden_share=0.4", "fedsage_plus.width=4")
LINKED = ("partition.boundary=both", "partition.kind=random", "rounds=10", "model.hidden=16")
ANCHORED = ("fedggr.codes=anchors", "fedggr.code_width=32")
AS_PUBLISHED = {
    "fedsage_plus": ("answers=exact",),
    "fedggr": ("codes=nodes",),
    "fedproto": ("told=counts", "smallest=1"),
}
"""What makes a method leak as its paper has it, where it does not by default."""

MULTIPLIED = ("rounds=1", "model.hidden=8", "fedgram.rank=40")

LEAKS = {
    "words": Leak("words", "fedavg", OPEN, WIDE, views=("server", "others", "owner")),
    "words of controlled steps": Leak("words", "scaffold", OPEN, WIDE, views=("server", "others")),
    "words of averaged moments": Leak("words", "fedavg", (*OPEN, AVERAGED), WIDE, views=("server", "others")),
    "words of optimised gradients": Leak("words", "fedavg", (*OPEN, "training.moments=server"), WIDE),
    "words of a mixture": Leak("words", "suture", (*OPEN, "suture.rank=0"), WIDE, views=("server", "others")),
    "words that are counted": Leak("words", "fedgram", OPEN, WIDE),
    "words of masked models": Leak("words", "fedpub", (*OPEN, "fedpub.threshold=0.99"), WIDE),
    "words beside anchors": Leak("words", "fedggr", (*OPEN, *ANCHORED), WIDE, views=("server", "others")),
    "labels": Leak("labels", "fedavg", ("rounds=2", *OPEN[1:]), views=("server", "others")),
    "labels that are told": Leak("labels", "fedproto", OPEN),
    "labels that are nearly told": Leak("labels", "fedtad", OPEN),
    "identity": Leak("identity", "fedavg", OPEN),
    "links": Leak("links", "fedggr", ("rounds=2", "fedggr.code_width=32", "fedggr.k=5")),
    "codes": Leak("codes", "fedggr", ("rounds=2", "fedggr.code_width=64", "fedggr.k=5")),
    "sums": Leak("sums", "fedgcn", (*LINKED, "fedgcn.fewest=1"), views=("server", "others", "owner")),
    "sums of predictions": Leak("sums", "fedavg", (*LINKED, "training.stitch=1"), views=("server", "others")),
    "membership": Leak("membership", "fedavg", OVERFIT, views=("server", "others")),
    "gradients": Leak("gradients", "fedavg", (*ALONE, *FEW), "csbm:nodes=180,features=150,degree=3", clients=3),
    "rows": Leak("rows", "fedsage_plus", (*MENDING, *ASKED), "csbm:nodes=120,features=400,degree=3", "fedsage-louvain", 3),
    "rows of products": Leak("rows", "fedgram", MULTIPLIED, "csbm:nodes=120,features=400,degree=3", clients=3),
}
PLENTY = 3600.0
"""Seconds that no attack here needs: what is found must not depend on how busy the machine is."""


class Attacked(Protocol):
    """Findings on one of the leaks, from messages or, from all views, from noise."""

    def __call__(self, name: str, noise: bool, seed: int = 0) -> list[Finding]: ...


def as_published(method: str) -> list[str]:
    known = own_fields(DOOR.recall(method))
    return [f"{method}.{one}" for one in AS_PUBLISHED.get(method, ()) if one.split("=")[0] in known]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """Runs are trained once."""
    place = tmp_path_factory.mktemp("runs")

    def find(name: str, noise: bool, seed: int = 0) -> list[Finding]:
        leak, out = LEAKS[name], place / f"{name.replace(' ', '-')}-{seed}"
        if not out.exists():
            overrides = [*as_published(leak.method), *leak.overrides]
            suture.run(
                leak.graph,
                leak.method,
                protocol=leak.protocol,
                clients=leak.clients,
                seed=seed,
                overrides=overrides,
                out=out,
                options=suture.Options(record=True),
            )
        pairs = trials.chosen([leak.attack], None if noise else leak.views)
        return list(trials.carry_out(Scene.read(out, noise=noise), pairs, PLENTY))

    return find


@pytest.mark.parametrize("name", list(LEAKS))
def test_an_attack_beats_its_guess_where_a_method_leaks(name: str, attacked: Attacked) -> None:
    for found in attacked(name, False):
        assert found.measured is not None, found.why_not
        assert found.succeeds, (found.view, found.measured)


# Noise has no gap at any rank, so that the linear programs of `rows` are large.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.startswith("rows") else ()) for name in LEAKS]
)
def test_an_attack_finds_nothing_in_noise(name: str, attacked: Attacked) -> None:
    for found in attacked(name, True):
        assert found.measured is None or not found.succeeds, (found.view, found.measured)
        assert (
            found.measured is None or not found.measured.exact or found.attack == "identity" or not found.measured.exact[0]
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in LEAKS if not name.startswith("rows")])
def test_seeds_that_were_not_tuned_show_it_too(name: str, seed: int, attacked: Attacked) -> None:
    """Settings were chosen on seed 0. Labels are of four owners, too few to be sure of for one seed."""
    for found in attacked(name, False, seed):
        assert found.measured is not None, found.why_not
        assert found.measured.advantage > 0.02, (found.view, found.measured)
        assert found.succeeds or found.attack == "labels", (found.view, found.measured)
    for found in attacked(name, True, seed):
        assert not found.succeeds, (found.view, found.measured)


def test_a_masked_model_is_put_together_again(tmp_path: Path) -> None:
    """Entries that did not travel are as they were: they have not moved, and all others have."""
    values = ["rounds=2", "model.hidden=8", "fedpub.threshold=0.999"]
    suture.run(GRAPH, "fedpub", clients=3, overrides=values, out=tmp_path / "run", options=suture.Options(record=True))
    scene = Scene.read(tmp_path / "run")
    ears = scene.heard("server")[scene.graph.ids[0]]
    first, second = updates(ears, scene)
    weights = {name for name in scene.method.initial_params(scene.task) if not name.startswith("mask")}
    assert set(second.before) == set(second.after) == weights
    (sent,) = [said.message for said in ears.says("local_update", "up", ears.victim)][1:]
    still = sum(int((second.after[name] == second.before[name]).sum()) for name in weights)
    entries = sum(value.numel() for value in second.after.values())
    assert 0 < entries - sent.values.values.numel() == still
    assert all(torch.isfinite(value).all() for value in first.after.values())


def test_counts_that_are_told_are_read_exactly(attacked: Attacked) -> None:
    (found,) = attacked("labels that are told", False)
    assert found.measured is not None and found.measured.success == pytest.approx(1)


@pytest.mark.parametrize(("noise", "returned"), [(0.0, 1.0), (0.1, 0.0)])
def test_a_sum_of_one_row_is_that_row(noise: float, returned: float, tmp_path: Path) -> None:
    """All of them come back without noise, and none with noise of a tenth of a row's length on each number."""
    hidden = ("fedgcn.clip=1", f"fedgcn.sigma={noise}", "preprocess.row_normalise=true")
    values = [*LINKED, "fedgcn.fewest=1", *hidden]
    suture.run(GRAPH, "fedgcn", clients=4, overrides=values, out=tmp_path / "run", options=suture.Options(record=True))
    scene = Scene.read(tmp_path / "run")
    (found,) = trials.carry_out(scene, trials.chosen(["sums"], ["server"]), PLENTY)
    assert found.measured is not None and found.measured.exact is not None
    links = scene.graph.boundary
    assert links is not None
    pairs = np.stack([scene.graph.segments.client[links.node].numpy(), links.foreign.numpy()], 1)
    alone = int((np.unique(pairs, axis=0, return_counts=True)[1] == 1).sum())
    assert found.measured.details["single"] == alone > 50
    assert found.measured.exact[0] == pytest.approx(returned * alone, abs=0.02 * alone)


def test_rows_come_back_exactly(attacked: Attacked) -> None:
    """Linear programs in the space that gradients span return whole rows, and the space has the right rank."""
    (found,) = attacked("rows", False)
    assert found.measured is not None and found.measured.exact is not None
    assert found.measured.exact[0] >= found.measured.exact[1] / 4
    assert found.measured.details["rank"] == found.measured.details["true_rank"]


def test_a_few_products_of_small_owners_return_every_row(attacked: Attacked) -> None:
    """FedGram's sums of an owner with fewer nodes than directions span its rows, and a server that sees them has these."""
    (found,) = attacked("rows of products", False)
    assert found.measured is not None and found.measured.exact is not None
    assert found.measured.exact[0] == found.measured.exact[1] >= 39
    assert found.measured.details["rank"] == found.measured.details["true_rank"]


def test_few_offered_rows_are_solved_for() -> None:
    """With no more rows than hidden units and hard matching, least squares returns every row that was matched."""
    rng = np.random.default_rng(0)
    features = (rng.random((30, 60)) < 0.2).astype(float)
    matched, mixing = rng.integers(0, 30, 8), rng.standard_normal((9, 8))
    found = solved(Answer(mixing, mixing @ features[matched]))
    assert found is not None and right(found, features)[0].all()
    assert solved(Answer(rng.standard_normal((9, 12)), rng.standard_normal((9, 60)))) is None


def test_the_space_of_mixtures_is_that_of_the_rows() -> None:
    rng = np.random.default_rng(1)
    features = np.hstack([(rng.random((12, 40)) < 0.2).astype(float), np.zeros((12, 5))])
    space = row_space(rng.standard_normal((80, 12)) @ features + 1e-9 * rng.standard_normal((80, 45)))
    assert space.rank == np.linalg.matrix_rank(features) and space.gap > 1e3
    assert space.words.tolist() == np.flatnonzero(features.any(0)).tolist()


def test_the_command_attacks_and_privacy_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run from the command line: attacked, kept beside what was sent, and said by privacy and show."""
    out = tmp_path / "run"
    train = ["attack", "--dataset", "csbm:nodes=120,features=40,degree=3", "--method", "fedavg", "--clients", "3"]
    some = ["--attack", "words,rows", "--view", "server", "-q"]
    assert main([*train, *some, "--set", "rounds=2", "--out", str(out)]) == 0
    assert "Not tried, rows (server)" in capsys.readouterr().out
    assert main(["attack", str(out), "--attack", "identity", "--json", "-", "-q"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["measured"]["advantage"] == pytest.approx(told["measured"]["success"] - 1 / 3)
    kept = json.loads((out / "attacks.json").read_text())["findings"]
    assert [one["attack"] for one in kept] == ["rows", "words", "identity"]
    assert main(["privacy", str(out)]) == 0
    assert "What it told" in capsys.readouterr().out
    assert main(["show", str(out)]) == 0
    assert "Attacked, fedavg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--attack", "wrods"], "did you mean 'words'"),
        (["--view", "servant"], "unknown view"),
        (["--attack", "codes", "--view", "owner"], "leave --view out"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--method", "fedavg"], "has been trained"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(tmp_path), *more]) == 2
    assert said in capsys.readouterr().err


def test_an_attack_that_runs_out_of_time_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With hardly any time an attack tries its first owner, and says so wherever its result is shown."""
    out = tmp_path / "run"
    train = ["attack", "--dataset", "csbm:nodes=120,features=40,degree=3", "--method", "fedavg", "--clients", "3"]
    short = ["--attack", "membership", "--view", "server", "--minutes", "1e-9", "-q"]
    assert main([*train, *short, "--set", "rounds=2", "--out", str(out)]) == 0
    said = "membership (server) ran out of time, 1 of 3 owners tried"
    assert said in " ".join(capsys.readouterr().out.split())
    (kept,) = json.loads((out / "attacks.json").read_text())["findings"]
    assert kept["cut"] is True and kept["tried"] == [1, 3, "owners"]
    assert main(["privacy", str(out)]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(out)]) == 0
    assert "1 of 1 attacks ran out of time" in " ".join(capsys.readouterr().out.split())
    assert main(["attack", str(out), *short[:4], "-q"]) == 0
    assert "ran out of time" not in capsys.readouterr().out
    (kept,) = json.loads((out / "attacks.json").read_text())["findings"]
    assert kept["cut"] is False and kept["tried"] == [3, 3, "owners"]


def test_attacks_side_by_side_find_what_one_after_the_other_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    asked = ["--dataset", "csbm:nodes=120,features=40,degree=3", "--method", "fedavg", "--clients", "3"]
    assert main(["run", *asked, "--set", "rounds=2", "--record", "--out", str(out), "-q"]) == 0
    capsys.readouterr()

    def found(*more: str) -> list[dict[str, object]]:
        assert main(["attack", str(out), "--attack", "words,identity,links,codes", "--json", "-", "-q", *more]) == 0
        return [{**one, "seconds": None} for one in json.loads(capsys.readouterr().out)]

    one_by_one = found("--threads", "1")
    assert found("--jobs", "2", "--threads", "1") == one_by_one
    assert len([one for one in one_by_one if one["measured"]]) >= 4


def test_every_run_of_a_comparison_is_attacked_and_stands_beside_what_it_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    asked = [
        "--dataset",
        "csbm:nodes=120,features=40,degree=3",
        "--clients",
        "3",
        "--set",
        "rounds=2",
        "--out",
        str(out),
        "-q",
    ]
    assert main(["compare", "--methods", "global,local,fedavg", "--seeds", "0", "--record", *asked]) == 0
    capsys.readouterr()
    assert main(["attack", str(out), "--attack", "identity,membership", "--json", "-"]) == 0
    said = capsys.readouterr()
    told = {Path(one["run"]).name: one["findings"] for one in json.loads(said.out)}
    assert set(told) == {"local-seed0", "fedavg-seed0"} and "left out: global trains one client" in said.err
    assert any(one["measured"] for one in told["fedavg-seed0"])
    assert main(["privacy", str(out)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "measured attack" in lines and "weights, counts" in lines and "2 of 10 attacks tried" in lines
    assert lines.count("not attacked") == lines.count("no attack could be tried") == 1
    for tape in out.glob("*/messages.tape"):
        tape.unlink()
    assert main(["attack", str(out)]) == 2
    assert "train it again with --record" in capsys.readouterr().err


def test_by_the_processors_clock_a_busy_machine_cuts_nothing() -> None:
    """What others compute meanwhile is not counted, and what only the wall's clock could stop is not stopped."""
    wall, processor = Clock.of(0.1), Clock.of(0.1, now=time.process_time)
    time.sleep(0.2)
    assert wall.over and not processor.over
    assert processor.seconds_on_the_wall == math.inf and 1 <= Clock.of(10.0).seconds_on_the_wall <= 10


def test_what_there_was_no_time_for_is_no_success_and_no_failure() -> None:
    """No program is begun after the end, and none of the rows is called tried."""
    rng = np.random.default_rng(1)
    space = row_space(rng.standard_normal((80, 12)) @ (rng.random((12, 40)) < 0.2).astype(float))
    late, early = Clock.of(-1.0), Clock.of(600.0)
    assert not list(programmed(space, 40, 3, late))
    assert len(list(programmed(space, 40, 3, early))) == 3


def test_quick_attacks_go_first_and_results_keep_their_order(attacked: Attacked, tmp_path: Path) -> None:
    pairs = trials.chosen(["rows", "gradients", "links", "identity"], ["server"])
    attacked("identity", False)
    seen: list[str] = []

    def watch(attack: str, view: str, done: int, planned: int, unit: str) -> None:
        if attack not in seen:
            seen.append(attack)

    (run,) = [path for path in tmp_path.parent.rglob("identity-0") if (path / "messages.tape").exists()]
    found = list(trials.carry_out(Scene.read(run), pairs, 60, watch))
    assert [one.attack for one in found] == ["links", "identity", "gradients", "rows"]
    assert [one.attack for one in trials.in_order(found)] == ["rows", "gradients", "links", "identity"]
    assert seen == ["links", "identity", "gradients"], "rows cannot be tried on fedavg, so it never counts"
