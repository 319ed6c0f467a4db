"""What every test may ask for: the data root, graphs by name, Cora."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from suture.errors import DataError
from suture.graph import datasets
from suture.graph.sources import cache as source_cache

IN_REGISTRY = ("cora", "citeseer", "pubmed")

torch.set_num_threads(1)
# Tests, and the processes they start, let in code for themselves, not for whoever runs them; some do when collected.
FOR_TRUSTED_CODE = tempfile.TemporaryDirectory(prefix="suture-trusted-")
os.environ["SUTURE_TRUSTED"] = str(Path(FOR_TRUSTED_CODE.name) / "trusted.json")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Where raw files are; treat it as read-only."""
    beside_the_repository = Path(__file__).resolve().parents[2] / "shared" / "datasets"
    if "SUTURE_DATA" not in os.environ and beside_the_repository.is_dir():
        return beside_the_repository
    return datasets.data_root()


@pytest.fixture(scope="session")
def dataset(data_root: Path) -> Callable[[str], Data]:
    """A graph by name; the test is skipped if it cannot be had. Do not write into its tensors: tests share them."""
    loaded: dict[str, Data] = {}
    may_fetch = data_root == source_cache.cache_folder()

    def load(name: str) -> Data:
        if name not in loaded:
            try:
                loaded[name] = datasets.load(name, data_root, allow_download=may_fetch and name in IN_REGISTRY)
            except DataError as why:
                pytest.skip(str(why))
        return copy.copy(loaded[name])

    return load


@pytest.fixture
def cora(dataset: Callable[[str], Data]) -> Data:
    """Cora as Planetoid orders it."""
    return dataset("cora")
