"""From tables to a recommendation and a run, as a user types it: each command says what comes next."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from suture import api
from suture.cli import main
from suture.runs.loop import Interrupted
from suture.runs.plan import plan
from suture.tables.examples import BANKS, write_example

ROWS = 250
COLUMNS = ("--id", "account", "--label", "fraud", "--source", "payer", "--target", "payee", "--weight", "amount")
QUICK = ("--set", "rounds=4", "--set", "hidden=8")


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process."""

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first accounts of every bank of the fraud example, and what they paid."""
    whole, small = (tmp_path_factory.mktemp("bank") / name for name in ("whole", "small"))
    write_example("fraud", whole)
    for bank in BANKS:
        (small / bank).mkdir(parents=True)
        for table, rows in (("accounts.csv", ROWS), ("transfers.csv", 4 * ROWS)):
            with (whole / bank / table).open() as source:
                (small / bank / table).write_text("".join(islice(source, rows + 1)))
    return small


def import_command(tables: Path, out: Path, *more: str) -> list[str]:
    files = ("--nodes", f"{tables}/{{owner}}/accounts.csv", "--edges", f"{tables}/{{owner}}/transfers.csv")
    return ["import", str(out), *files, *COLUMNS, *more]


@pytest.fixture(scope="module")
def graph(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported folder."""
    out = tmp_path_factory.mktemp("graph") / "bank"
    assert main(import_command(tables, out)) == 0
    return out


def next_command(said: Said) -> list[str]:
    """The command that a command says comes next."""
    found = re.search(r"^next: suture ([^\n]*?)(?:   .*)?$", said.out + said.err, re.MULTILINE)
    assert found, said
    return found[1].split()


def test_each_command_says_the_next(cli: Cli, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assessing = next_command(cli(*import_command(tables, Path("bank"))))
    assert assessing == ["assess", "--data", "bank"]
    quick = (*QUICK, "--methods", "fedper", "--seeds", "0,1")
    assessed = cli(*assessing, *quick, "--out", "a", "--json", "a.json")
    assert assessed.code == 0, assessed.err
    told = json.loads(Path("a.json").read_text())
    assert told["metric"] == "roc_auc" and [one["method"] for one in told["methods"]] == ["local", "fedavg", "fedper"]
    assert {owner["name"] for owner in told["facts"]["owners"]} == set(BANKS)
    assert told["facts"]["boundary"] > 1000 and told["facts"]["outside_share"] > 0.5
    assert told["recommendation"][0] in " ".join(assessed.out.split())
    running = next_command(assessed)
    assert running[:3] in (["run", "--data", "bank"], ["assess", "--data", "bank"])
    ran = cli("run", "--data", "bank", *QUICK, "--out", "r")
    predicting = next_command(ran)
    assert ran.code == 0 and predicting == ["predict", "r", "--out", "predictions.csv"]
    assert cli(*predicting).code == 0
    assert len(Path("predictions.csv").read_text().splitlines()) == 1 + len(BANKS) * ROWS
    shown = cli("show", "a")
    assert shown.code == 0 and "Recommendation" in shown.out and "fedper-seed1" not in shown.err
    again = cli("resume", "a")
    assert again.code == 0 and "Recommendation" in again.out


def test_what_was_assumed_is_said_once_and_kept(cli: Cli, graph: Path, tmp_path: Path) -> None:
    said = cli("compare", "--data", graph, *QUICK, "--methods", "local,fedavg", "--seeds", "0,1", "--out", tmp_path / "c")
    assert said.code == 0
    notes = ("nodes have no label", "the metric is roc_auc", "standardised by sums")
    for note in notes:
        assert said.err.count(note) == 1 and note not in said.out
    assert said.err.index(notes[0]) < said.err.index("round 4/4")
    assert "validation roc_auc" in said.err
    assert "own, bank, 3 clients" in said.out and str(graph) not in said.out
    for place in (tmp_path / "c", tmp_path / "c" / "fedavg-seed1"):
        shown = " ".join(cli("show", place).out.split())
        assert all(note in shown for note in notes)
    assert re.search(r"next: suture predict \S+/(local|fedavg)-seed0 --out", said.err)
    assert cli("run", "--data", graph, *QUICK, "--quiet", "--out", tmp_path / "q").err == ""


def test_a_papers_graph_is_run_without_a_word(cli: Cli, tmp_path: Path) -> None:
    csbm = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
    said = cli("run", "--dataset", csbm, "--clients", "3", *QUICK, "--out", tmp_path / "r")
    assert said.code == 0 and "assumed" not in said.err and "predict" not in said.err


def test_plans_and_cuts_of_a_folder(cli: Cli, graph: Path, tmp_path: Path) -> None:
    dry = cli("compare", "--data", graph, "--dry-run")
    assert dry.code == 0 and "on bank with 3 clients: local, fedavg" in " ".join(dry.out.split())
    assert "Cut: the owners that the graph names" in dry.out
    assert re.search(r"fedavg +\d+ +[\d.]+ kB to 3 clients", dry.out)
    cut = cli("partition", "--data", graph, "--out", tmp_path / "cut.json")
    assert cut.code == 0 and all(re.search(rf"{bank} +{ROWS}\b", cut.out) for bank in BANKS)
    assert "bank cut into 3 clients by its owners" in cut.out and re.search(r"boundary edges +[\d,]{5}", cut.out)
    ran = cli("run", "--data", graph, "--manifest", tmp_path / "cut.json", *QUICK, "--out", tmp_path / "r")
    assert ran.code == 0, ran.err


def test_numbers_leave_out_methods_that_nobody_named(
    cli: Cli, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "numbers"
    command = import_command(tables, out, "--task", "regression")
    command[command.index("fraud")] = "night_share"
    assert main(command) == 0
    for more in ((), ("--dry-run",)):
        said = cli("compare", "--data", out, "--set", "rounds=2", "--set", "hidden=8", "--seeds", "0", *more)
        assert said.code == 0, said.err
        both = " ".join((said.out + said.err).split())
        assert both.lower().count("methods that are left out: fedproto cannot predict numbers") == 1
        assert "fedper" in said.out
    named = cli("compare", "--data", out, "--methods", "fedavg,fedproto", *QUICK, "--seeds", "0")
    assert named.code == 2 and "fedproto can predict one class of a node, not numbers" in named.err


class TestResume:
    def interrupted(self, graph: Path, out: Path, after: int) -> None:
        """A comparison that was stopped in its second run."""
        made = plan(str(graph.resolve()), ["local", "fedavg"], seeds=[0], overrides=["rounds=4", "hidden=8"])
        ticks: list[object] = []
        options = api.Options(watch=lambda *tick: ticks.append(tick), stop=lambda: len(ticks) >= after)
        with pytest.raises(Interrupted):
            api.compare_plan(made, out=out, options=options)

    def test_it_ends_as_if_it_had_not_stopped(self, cli: Cli, graph: Path, tmp_path: Path) -> None:
        for out, after in ((tmp_path / "a", 6), (tmp_path / "b", 2)):
            self.interrupted(graph, out, after)
            assert cli("resume", out).code == 0
        lines = [(tmp_path / name / "fedavg-seed0" / "metrics.jsonl").read_text() for name in "ab"]
        assert lines[0] == lines[1] and lines[0].count("\n") == 4

    def test_a_changed_folder_is_refused(self, cli: Cli, graph: Path, tables: Path, tmp_path: Path) -> None:
        folder = tmp_path / "bank"
        shutil.copytree(graph, folder)
        self.interrupted(folder, tmp_path / "a", 6)
        self.interrupted(folder, tmp_path / "b", 2)
        shutil.rmtree(folder)
        # The same tables imported otherwise: a folder that is whole, but another graph.
        assert main(import_command(tables, folder, "--ignore", "balance")) == 0
        said = cli("resume", tmp_path / "a")
        assert said.code == 2 and "was changed since it was begun" in said.err and said.err.count("\n") == 1
        whole = cli("resume", tmp_path / "a" / "fedavg-seed0")
        assert whole.code == 2 and "was made for another graph" in whole.err
        (folder / "edges.npy").write_bytes(b"")
        damaged = cli("resume", tmp_path / "b")
        assert damaged.code == 2 and "edges.npy is missing or was changed" in damaged.err


@pytest.mark.parametrize("command", ["run", "compare", "partition", "assess"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nowhere"], "nowhere does not exist"),
        (["--data", "."], "is not a graph folder"),
        (["--data", "GRAPH", "--dataset", "cora"], "are two graphs; give one of them"),
        (["--data", "GRAPH", "--clients", "4"], "the graph has 3 owners"),
    ],
    ids=["nowhere", "no-graph", "two", "clients"],
)
def test_one_sentence_and_exit_code_2(
    cli: Cli, graph: Path, command: str, arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(command, *(str(graph) if word == "GRAPH" else word for word in arguments))
    assert said.code == 2 and said.out == ""
    assert sentence in said.err and said.err.startswith("suture: ") and said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "assess needs a graph"),
        (["--data", "GRAPH", "--minutes", "0"], "minutes must be above 0"),
        (["--data", "GRAPH", "--methods", "fedpbu"], "did you mean 'fedpub'"),
        (["--data", "GRAPH", "--seeds", "a"], "--seeds must be whole numbers"),
    ],
    ids=["nothing", "minutes", "method", "seeds"],
)
def test_mistakes_of_assess(
    cli: Cli, graph: Path, arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("assess", *(str(graph) if word == "GRAPH" else word for word in arguments))
    assert said.code == 2 and sentence in said.err and not (tmp_path / "runs").exists()


def test_a_dry_run_of_a_dataset_with_owners_needs_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUTURE_DATA", str(tmp_path))
    assert main(["run", "--dataset", "twitch", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on twitch with 6 clients: fedavg" in said and "Cut: the owners that the graph names, for every seed." in said
