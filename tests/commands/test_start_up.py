"""What a command imports before it does anything: names of modules, not seconds.

Each command runs in a process of its own, because this one has imported everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    *("torch._dynamo", "torch._inductor", "sympy", "scipy.stats", "scipy.optimize", "igraph", "networkx", "opacus", "faiss"),
    *("cryptography", "nvflare", "starlette", "uvicorn", "vl_convert", "matplotlib", "polars", "pandas", "optuna", "ray"),
    *("mlflow", "wandb", "tensorboard", "pymetis", "ogb", "sklearn"),
}
TORCH = {"torch", "torch_geometric", "scipy", "numpy", "safetensors"}
LISTING = """
import contextlib, io, json, sys
from suture.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[2:]) == 0
print(json.dumps(sorted(set(json.loads(sys.argv[1])) & set(sys.modules))))
"""
COMPILED = """
import suture, sys, torch, torch_geometric
assert "torch._dynamo" not in sys.modules and "_dynamo" not in vars(torch)
linear = torch.nn.Linear(2, 2)
compiled = torch.compile(linear, backend="eager")
assert not isinstance(compiled, torch.nn.Linear)
assert torch_geometric.is_torch_instance(compiled, torch.nn.Linear)
assert torch_geometric.is_torch_instance(linear, torch.nn.Linear)
assert not torch_geometric.is_torch_instance(linear, torch.nn.ReLU)
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.OptimizedModule is type(compiled)
assert torch.equal(compiled(torch.ones(1, 2)), linear(torch.ones(1, 2)))
"""
ASKED = """
import sys
from importlib import import_module
from suture.core.lean import COMPILER, _Placeholder
import torch
there = sys.modules[COMPILER] = _Placeholder(COMPILER)
assert not hasattr(there, "__file__") and sys.modules[COMPILER] is there
assert there.OptimizedModule is import_module(COMPILER).OptimizedModule
"""


def imported(*arguments: str | Path) -> set[str]:
    """Those of the modules above that a command has imported when it ends."""
    names = json.dumps(sorted(HEAVY | TORCH))
    return set(json.loads(_said(LISTING, names, *map(str, arguments))))


def _said(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("compare", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) == set()


@pytest.mark.parametrize("arguments", [("methods",), ("compare", "--dry-run")])
def test_what_only_reads_needs_torch_and_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) & HEAVY == set()


def test_a_run_imports_what_it_uses_and_nothing_else(tmp_path: Path) -> None:
    small = ("--dataset", "csbm:nodes=300", "--clients", "3", "--set", "rounds=1", "--quiet")
    asked = ("run", "--method", "fedpub", *small, "--out", tmp_path / "run")
    assert imported(*asked) & HEAVY == {"pymetis"}  # the protocol cuts by METIS
    assert (tmp_path / "run" / "result.json").exists()


def test_torchs_compiler_is_there_for_who_asks() -> None:
    _said(COMPILED)


def test_the_placeholder_gives_way_to_who_asks_it_for_more() -> None:
    _said(ASKED)
