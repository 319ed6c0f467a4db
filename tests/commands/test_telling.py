"""`--verbose` and `--engine debug` on the command line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from suture.cli import main

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
SMALL = ("--dataset", GRAPH, "--clients", "3", "--set", "rounds=4", "--set", "hidden=8")


class Said(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUTURE_DEBUG", raising=False)

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(list(arguments))
        return Said(code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("arguments", [("--verbose", "run", *SMALL), ("run", *SMALL, "--verbose")], ids=["before", "after"])
def test_verbose_says_what_was_planned_loaded_cut_chunked_and_done(cli: Cli, arguments: tuple[str, ...]) -> None:
    said = cli(*arguments, "--json", "-")
    assert said.code == 0 and json.loads(said.out)[0]["rounds"] == 4
    for pattern in (
        r"suture\.runs\.plan: planned fedavg on csbm\S+, protocol fedpub-disjoint, seeds \[0, 1, 2\]",
        r"suture\.runs\.prepare: loaded csbm\S+: 2\d\d nodes, [\d.]+ s",
        r"suture\.runs\.prepare: cut for seed 0: 3 clients of \d+ to \d+ nodes, [\d.]+ s",
        r"suture\.runs\.execute: fedavg: 3 clients in chunks of 3, EmbeddedCohort",
        *(rf"suture\.runs\.loop: fedavg round {n}/4, loss [\d.]+, validation [\d.]+, [\d.]+ s" for n in (1, 2, 3, 4)),
    ):
        assert len(re.findall(pattern, said.err)) == 1, pattern


def test_nothing_of_it_is_said_otherwise_not_even_afterwards(cli: Cli) -> None:
    assert "planned" in cli("run", *SMALL, "--verbose").err
    assert cli("run", *SMALL, "--quiet").err == ""
    log = logging.getLogger("suture")
    assert not log.handlers and not log.isEnabledFor(logging.INFO)


def test_a_run_that_loses_patience_says_so(cli: Cli) -> None:
    said = cli("run", *SMALL, "--set", "rounds=60", "--set", "lr=0.1", "--set", "patience=2", "--verbose", "--out", "r")
    ended = re.search(r"round ended after (\d+) of 60: patience ran out", said.err)
    assert ended is not None
    shown = cli("show", "r").out
    assert f"after {ended[1]} of 60 rounds" in " ".join(shown.split())


def test_the_debug_engine_gives_the_same_result(cli: Cli) -> None:
    mine, theirs = (json.loads(cli("run", *SMALL, *more, "--json", "-").out)[0] for more in ((), ("--engine", "debug")))
    assert mine["validation"] == pytest.approx(theirs["validation"], abs=0.03)
    assert mine["bytes_up"] == theirs["bytes_up"]


def test_nan_is_one_sentence_that_says_where(cli: Cli) -> None:
    said = cli("compare", *SMALL, "--methods", "fedavg", "--set", "lr=1e30", "--engine", "debug", "--quiet")
    assert said.code == 2 and said.err.count("\n") == 1
    assert re.match(r"suture: .*client client-0\d, step \w+, phase round, round [12]: it answers NaN in ", said.err)


def test_a_debug_run_goes_on_as_one(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", *SMALL, "--engine", "debug", "--out", "r").code == 0
    assert json.loads((tmp_path / "r" / "run.json").read_text())["engine"] == "debug"
    (tmp_path / "r" / "result.json").unlink()
    assert "DebugCohort" in cli("resume", "r", "--verbose").err
    (tmp_path / "r" / "result.json").unlink()
    assert "EmbeddedCohort" in cli("resume", "r", "--verbose", "--engine", "embedded").err


def test_an_unknown_engine_is_one_sentence(cli: Cli) -> None:
    said = cli("run", *SMALL, "--engine", "debugger")
    assert said == (2, "", "suture: unknown engine 'debugger': did you mean 'debug'? known: debug, embedded, sealed\n")
