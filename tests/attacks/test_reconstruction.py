"""FedSage+ on Cora with ten owners: what its answers give away as published, and what they give away by default."""

from __future__ import annotations

from pathlib import Path

import pytest

import suture
from suture.attacks import trials
from suture.attacks.attack import Measured
from suture.attacks.scenes import Scene
from suture.methods import DOOR, own_fields

pytestmark = pytest.mark.slow
CAN_CHOOSE = "answers" in own_fields(DOOR.recall("fedsage_plus"))


def rows_found(out: Path, data_root: Path, *values: str) -> Measured:
    """The attack of the server after 100 iterations of the generator."""
    suture.run(
        "cora",
        "fedsage_plus",
        protocol="fedsage-louvain",
        clients=10,
        seed=0,
        overrides=["fedsage_plus.generator_epochs=100", "rounds=1", *values],
        out=out,
        options=suture.Options(data_root=data_root, record=True),
    )
    (found,) = trials.carry_out(Scene.read(out, data_root), trials.chosen(["rows"], ["server"]), 1800)
    assert found.measured is not None, found.why_not
    return found.measured


def test_as_published_whole_rows_come_back(tmp_path: Path, data_root: Path) -> None:
    found = rows_found(tmp_path / "exact", data_root, *(["fedsage_plus.answers=exact"] if CAN_CHOOSE else []))
    assert found.details["rank"] == found.details["true_rank"]
    assert found.details["gap"] > 10
    assert found.exact is not None and found.exact[0] >= found.exact[1] / 2
    assert found.low > 0.3


@pytest.mark.skipif(not CAN_CHOOSE, reason="there is one form of answers only")
def test_by_default_no_row_comes_back(tmp_path: Path, data_root: Path) -> None:
    found = rows_found(tmp_path / "default", data_root)
    assert found.exact is not None and found.exact[0] == 0
    assert found.advantage < 0.05
