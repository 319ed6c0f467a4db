"""FedSage+ on Cora with ten owners: what its answers give away as published, and what they give away by default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import suture
import suture.methods.fedsage_plus.exchange
from suture.attacks import trials
from suture.attacks.attack import Measured
from suture.attacks.scenes import Scene

pytestmark = pytest.mark.slow


def rows_found(out: Path, data_root: Path, *values: str, dataset: str = "cora", seed: int = 0) -> Measured:
    """The attack of the server, after 100 iterations of the generator if nothing else is said; nothing is cut."""
    suture.run(
        dataset,
        "fedsage_plus",
        protocol="fedsage-louvain",
        clients=10,
        seed=seed,
        overrides=["fedsage_plus.generator_epochs=100", "rounds=1", *values],
        out=out,
        options=suture.Options(data_root=data_root, record=True),
    )
    (found,) = trials.carry_out(Scene.read(out, data_root), trials.chosen(["rows"], ["server"]), 7200)
    assert found.measured is not None, found.why_not
    assert not found.cut, found.how_far
    return found.measured


def test_as_published_whole_rows_come_back(tmp_path: Path, data_root: Path) -> None:
    found = rows_found(tmp_path / "exact", data_root, "fedsage_plus.answers=exact")
    assert found.details["rank"] == found.details["true_rank"]
    assert found.details["gap"] > 10
    assert found.exact is not None and found.exact[0] >= found.exact[1] / 2
    assert found.low > 0.3


@pytest.mark.parametrize(("dataset", "seed"), [("cora", 0), ("cora", 1), ("citeseer", 0)])
def test_by_default_no_row_comes_back(dataset: str, seed: int, tmp_path: Path, data_root: Path) -> None:
    found = rows_found(tmp_path / "default", data_root, dataset=dataset, seed=seed)
    assert found.exact is not None and found.exact[0] == 0
    assert found.advantage < 0.05


def test_without_the_rule_least_squares_returns_every_row(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed: the nearest node is matched, and offers of no more rows than fGen has units are answered."""

    def always(share: torch.Tensor, weight: torch.Tensor, width: int) -> torch.Tensor:
        return torch.ones_like(weight[:, 0])

    monkeypatch.setattr(suture.methods.fedsage_plus.exchange, "safe_to_answer", always)
    wide = [f"fedsage_plus.{one}" for one in ("softness=0", "width=64", "exchanged=66", "answers=exact")]
    found = rows_found(tmp_path / "printed", data_root, *wide, "fedsage_plus.generator_epochs=1")
    assert found.exact is not None and found.exact[0] == found.exact[1] > 800
