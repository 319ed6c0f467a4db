from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# The harnesses of a federation in one process, on pipes and on real connections are those of tests/federation.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "federation"))


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of three owners."""
    from one_owner import write_shards

    return write_shards(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
