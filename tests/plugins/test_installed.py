"""Packages that are really installed: entry points of every group, one that is broken, and two that want the same name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy as np
from suture.core.metrics import of_one
from suture.graph.synthetic import contextual_block_model
from suture.methods.fedavg import FedAvg
from suture.nn.backbones import Gcn

PROTOCOL = Path(__file__).with_name("quick.toml")


@dataclass(frozen=True)
class Theirs(FedAvg):
    """FedAvg of another house."""

    name: ClassVar[str] = "theirs"
    summary: ClassVar[str] = "FedAvg of another house"
    paper: ClassVar[str] = "nobody, 2020"
    patience_of_theirs: float = 1.0
    """Nothing."""


class Wide(Gcn):
    """A GCN."""


def halves(data, settings, rng):
    return np.array_split(np.arange(data.num_nodes), settings.clients)


def toy(nodes: int = 90, seed: int = 0):
    """A toy."""
    return contextual_block_model(nodes=nodes, classes=3, features=20, degree=3.0, seed=seed)


@of_one("half", "Half the accuracy")
def half(logits, y):
    return 0.5 * float((logits.argmax(1) == y).float().mean())
'''
QUICK = """
description = "two rounds of another house"
[partition]
kind = "halves"
clients = 2
[model]
kind = "wide"
hidden = 8
[training]
rounds = 2
[evaluation]
metric = "half"
[methods.never_heard_of]
x = 1
"""


def package(folder: Path, name: str, module: str, code: str, entries: dict[str, str]) -> None:
    """What pip leaves behind: the module, and metadata with entry points."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[suture.{group}]\n{entry}\n" for group, entry in entries.items()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    groups = {
        "methods": "theirs = good_house:Theirs",
        "backbones": "wide = good_house:Wide",
        "metrics": "half = good_house:half",
    }
    groups |= {"partitions": "halves = good_house:halves", "datasets": "toy = good_house:toy"}
    package(folder, "good-house", "good_house", CODE, {**groups, "protocols": "quick = good_house:PROTOCOL"})
    (folder / "quick.toml").write_text(QUICK)
    package(
        folder, "broken-house", "broken_house", "import nothing_like_this\n", {"methods": "broken = broken_house:Broken"}
    )
    package(folder, "thief", "thief", CODE, {"methods": "fedavg = thief:Theirs"})
    package(folder, "twin-a", "twin_a", CODE, {"methods": "twin = twin_a:Theirs"})
    package(folder, "twin-b", "twin_b", CODE, {"methods": "twin = twin_b:Theirs"})
    package(folder, "liar", "liar", CODE, {"methods": "truthful = liar:Theirs"})
    return folder


GRAPH = ("--dataset", "csbm:nodes=240,features=20,words_per_node=5", "--clients", "2", "--set", "rounds=1", "-q")
THEIRS = ("run", "--method", "theirs", "--dataset", "toy:nodes=80", "--protocol", "quick", "--out", "r", "-q")
COMMANDS = {
    "run": (*THEIRS, "--set", "theirs.patience_of_theirs=2"),
    "show": ("show", "r"),
    "methods": ("methods",),
    "ours": ("run", "--method", "fedavg", *GRAPH),
    "bare key": ("run", "--method", "fedavg", *GRAPH, "--set", "nonsense=1"),
    "by module": ("run", "--method", "good_house:Theirs", "--protocol", "quick", "--dataset", "toy", "-q"),
}
REFUSED = {
    ("--method", "broken"): "the method 'broken' of the package broken-house cannot be imported (ModuleNotFoundError: ",
    ("--method", "twin"): "the packages twin-a and twin-b both offer a method 'twin'",
    ("--method", "thief:Theirs"): "thief:Theirs calls itself 'theirs', as does a method of good-house",
    ("--method", "theris"): "unknown method 'theris': did you mean 'theirs'?",
    ("--dataset", "toi"): "unknown dataset 'toi': did you mean 'toy'?",
    ("--set", "model.kind=wyde"): "unknown model.kind 'wyde': did you mean 'wide'?",
    ("--protocol", "quik"): "unknown protocol 'quik': did you mean 'quick'?",
}
ONE_PROCESS = """
import contextlib, io, json, sys
from suture.cli import main
said = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    said.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(said))
"""
Said = tuple[int, str, str]


def python(code: str, *arguments: str, path: str, cwd: Path | None = None) -> Any:
    """What a new process prints as JSON; only there can other packages be installed."""
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.fixture(scope="module")
def said(site: Path, here: Path) -> dict[object, Said]:
    """Every command of this file, in one process: torch takes seconds to import."""
    asked = {**COMMANDS, **{key: ("run", *key, "--clients", "2", "-q") for key in REFUSED}}
    both = os.pathsep.join([str(ROOT), str(site)])
    answers = python(ONE_PROCESS, json.dumps(list(asked.values())), path=both, cwd=here)
    return dict(zip(asked, map(tuple, answers), strict=True))


def test_everything_of_a_package_by_name(said: dict[object, Said], here: Path) -> None:
    code, out, err = said["run"]
    assert code == 0, err
    assert "Half the accuracy in %" in out and "theirs" in out
    result = json.loads((here / "r" / "result.json").read_text())
    assert (result["metric"], result["clients"], result["rounds"], result["protocol"]) == ("half", 2, 2, "quick")
    assert result["accuracy_client_mean"] <= 0.5
    noted = json.loads((here / "r" / "run.json").read_text())["plugins"]
    assert {one["spelling"] for one in noted} == {
        f"good_house:{name}" for name in ("Theirs", "Wide", "half", "halves", "toy")
    }
    code, out, err = said["show"]
    assert code == 0 and "theirs" in out, err


def test_a_list_warns_of_what_is_broken_and_goes_on(said: dict[object, Said]) -> None:
    code, out, err = said["methods"]
    assert code == 0
    assert "theirs" in out and "FedAvg of another house" in out and "fedpub" in out
    warnings = err.strip().splitlines()
    assert all(line.startswith("warning: ") for line in warnings) and len(warnings) == 4, err
    assert any(
        "the method 'broken' of the package broken-house cannot be imported (ModuleNotFoundError" in w for w in warnings
    )
    assert any("the package thief offers a second method 'fedavg', which is ignored" in w for w in warnings)
    assert any("the packages twin-a and twin-b both offer a method 'twin'; remove one of them" in w for w in warnings)
    assert any("the method 'truthful' of the package liar calls itself 'theirs'" in w for w in warnings)


@pytest.mark.parametrize("arguments", list(REFUSED), ids=" ".join)
def test_one_sentence_for_what_is_asked_for(said: dict[object, Said], arguments: tuple[str, ...]) -> None:
    code, _, err = said[arguments]
    assert code == 2, err
    assert REFUSED[arguments] in err and err.count("\n") == 1, err


def test_a_broken_package_breaks_nothing_else(said: dict[object, Said]) -> None:
    code, _, err = said["ours"]
    assert (code, err) == (0, "")
    code, _, err = said["bare key"]
    assert code == 2 and "unknown key 'nonsense'" in err


def test_the_same_class_by_module_is_the_installed_one(said: dict[object, Said]) -> None:
    code, out, err = said["by module"]
    assert code == 0 and "theirs" in out, err


def test_owners_look_names_up_where_they_are(site: Path) -> None:
    """Terms name a method, a network and a metric; an owner that has them installed accepts, another refuses."""
    code = """
import json, sys
from suture.errors import SutureError
from suture.federation.wire.terms import read_terms
base = {"method": "theirs", "features": 4, "classes": 2, "seed": 0, "rounds": 100, "metric": "half"}
base["model"] = {"kind": "wide"}
said = []
for change in ({}, {"metric": "third"}, {"method": "thief:Theirs"}, {"metric": "good_house:half"},
               {"model": {"kind": "/tmp/x.py:Y"}}, {"method": "other"}):
    try:
        terms, method = read_terms({**base, **change})
        said.append(type(method).__module__)
    except SutureError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    for path, accepted in ((os.pathsep.join([str(ROOT), str(site)]), True), (str(ROOT), False)):
        first, metric, module, spelt, file, other = python(code, path=path)
        assert (first == "good_house") is accepted, first
        assert "cannot be accepted: unknown terms.metric 'third'" in metric
        for refused in (module, spelt, file):
            assert "is a file or a module, but parties run only what is installed at them" in refused
        assert "the terms cannot be accepted: unknown" in other
