"""A real server on loopback, with real run folders below its root."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed")

from dashboards import GRAPH, Serve, Served, serving_at

from suture import api


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(root: Path | None = None, **place: Any) -> Served:
            return stack.enter_context(serving_at(root or tmp_path / "runs", **place))

        yield start


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and a finished comparison."""
    root = tmp_path_factory.mktemp("finished")
    api.run(GRAPH, "fedavg", clients=3, seed=0, rounds=4, out=root / "one")
    api.compare(GRAPH, ["local", "fedavg"], clients=3, seeds=[0, 1], rounds=4, out=root / "both")
    return root


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "runs"))
