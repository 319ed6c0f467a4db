from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import small_comparison

from suture.report.gathering import gather
from suture.report.records import Gathered


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real comparison; copy it before writing into it."""
    return small_comparison(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture(scope="session")
def gathered(comparison: Path) -> Gathered:
    return gather([comparison])
