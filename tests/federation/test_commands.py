"""What the commands around a federation say to bad input: one sentence, exit code 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from folders import imported

from suture.cli import main
from suture.tables import GraphFolder
from suture.tables.folder import write_folder
from suture.tables.summary import Summary

GRAPH = {
    "x": np.ones((3, 2), dtype=np.float32),
    "edge_index": np.array([[0, 1], [1, 2]]),
    "y": np.array([0, 1, 0]),
    "train_mask": np.array([True, False, False]),
    "val_mask": np.array([False, True, False]),
    "test_mask": np.array([False, False, True]),
}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    assert (
        main(["federation", "create", "--owners", "a,b", "--server", "localhost:1", "--out", str(out), "--with-keys"]) == 0
    )
    return out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("--server", "localhost"), "HOST:PORT"),
        (("--server", "local host:8102"), "HOST:PORT"),
        (("--server", "localhost:99999"), "HOST:PORT"),
        (("--owners", "a"), "two or more"),
        (("--owners", "a,a"), "two or more"),
        (("--owners", "a,operator"), "not reserved"),
        (("--owners", "a,../b"), "letters, digits and dashes"),
        (("--owners", "DE,de"), "two or more different names"),
        (("--owners", "DE,Operator"), "not reserved"),
        (("--name", "my/../federation"), "lower-case"),
        (("--scheme", "tpc"), "must be one of tcp"),
    ],
)
def test_create(change: tuple[str, str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"--owners": "a,b", "--server": "localhost:8102", "--out": str(tmp_path / "kits"), **dict([change])}
    assert main(["federation", "create", *(word for pair in options.items() for word in pair)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / "kits").exists()


COMPLAINTS = {
    "create --owners a,b --server localhost:1 --out {kits}": "is not empty",
    "status --kit {kits}/a": "is the kit of an owner, not of the operator",
    "status --kit {kits}/operator": "nobody listens at localhost:1",
    "resume {kits}": "holds no run of a federation",
    "stop {kits}": "holds no run of a federation",
    "run --kit {kits}/operator --method fedavgg": "did you mean 'fedavg'",
    "run --kit {kits}/operator --method global": "uncut graph",
    "run --kit {kits}/operator --on-loss waiit": "did you mean 'wait'",
    "run --kit {kits}/operator --method fedpub --secure": "secure aggregation is not for it",
    "run --kit {kits}/operator --out {kits}/run": "nobody listens",
}


@pytest.mark.parametrize("command", list(COMPLAINTS))
def test_federation(command: str, kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federation", *command.format(kits=kits).split()]) == 2
    said = capsys.readouterr().err
    assert COMPLAINTS[command] in said
    assert said.count("\n") == 1


def test_parties_start_with_their_own_kit_only(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "start", str(kits / "a")]) == 2
    assert "is the kit of an owner, not of the coordinator" in capsys.readouterr().err
    assert main(["owner", "predict", str(kits / "a")]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert main(["owner", "ledger", str(kits / "a"), "--run", "x"]) == 2
    assert "has no run x" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("max_round = 3", "did you mean 'max_rounds'"),
        ('methods = ["fedavgg"]', "did you mean 'fedavg'"),
        ("[privacy]\nepsilon = -1", "policy.privacy.epsilon must be a number > 0"),
        ("methods =", "not valid TOML"),
    ],
)
def test_policy(policy: str, complaint: str, kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "graph.npz", **GRAPH)
    (tmp_path / "policy.toml").write_text(policy)
    data, rules = str(tmp_path / "graph.npz"), str(tmp_path / "policy.toml")
    assert main(["owner", "start", str(kits / "a"), "--data", data, "--policy", rules]) == 2
    assert complaint in capsys.readouterr().err


def test_data(kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.npz").write_text("x,y")
    np.savez(tmp_path / "few.npz", x=GRAPH["x"])
    np.savez(tmp_path / "nan.npz", **{**GRAPH, "x": np.full((3, 2), np.nan)})
    np.savez(tmp_path / "edges.npz", **{**GRAPH, "edge_index": np.array([[0], [7]])})
    for name, complaint in (
        ("none", "does not exist"),
        ("text", "is not an .npz file"),
        ("few", "it has no edge_index"),
        ("nan", "NaN"),
        ("edges", "do not exist"),
    ):
        assert main(["owner", "start", str(kits / "a"), "--data", str(tmp_path / f"{name}.npz")]) == 2
        assert complaint in capsys.readouterr().err


def test_pieces_of_a_folder_and_who_may_bring_them(kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = str(imported(tmp_path / "whole").path)
    assert main(["owner", "start", str(kits / "a"), "--data", whole]) == 2
    said = capsys.readouterr().err
    assert "holds the graphs of 3 owners (north, south, west)" in said and f"suture data pieces {whole}" in said
    assert said.count("\n") == 1
    pieces = tmp_path / "pieces"
    assert main(["data", "pieces", whole, "--out", str(pieces)]) == 0
    printed = capsys.readouterr()
    assert "north" in printed.out and "suture owner start KIT" in printed.err
    assert {path.name for path in pieces.iterdir()} == {"north", "south", "west"}
    for name in ("north", "south", "west"):
        assert GraphFolder.read(pieces / name).owners == (name,)
    assert main(["data", "pieces", whole, "--out", str(pieces)]) == 2
    assert "not empty" in capsys.readouterr().err
    nobodys = pieces.with_name("nobodys")
    one = GraphFolder.read(pieces / "north").piece()
    write_folder(nobodys, [replace(one, owner=None, graphless=())], GraphFolder.read(whole).schema, Summary())
    assert main(["data", "pieces", str(nobodys), "--out", str(tmp_path / "none")]) == 2
    assert "has no owners" in capsys.readouterr().err
    assert main(["owner", "start", str(kits / "a"), "--data", str(kits)]) == 2
    assert "is not a graph folder" in capsys.readouterr().err
