"""`suture demo`: what it says of its cut is so, and its last lines are computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_geometric.data import Data

from suture.cli import main
from suture.commands.demo_cli import DATASET, INTRODUCTION, METHODS, PROTOCOL
from suture.graph.statistics import describe
from suture.runs.plan import plan
from suture.runs.prepare import cut_graph


def test_nine_of_ten_links_are_lost(cora: Data) -> None:
    made = plan(DATASET, METHODS, protocol=PROTOCOL)
    assert "ten owners: nine of ten links" in INTRODUCTION[0] and f"{cora.num_nodes:,} papers" in INTRODUCTION[0]
    for seed in made.seeds:
        cut = cut_graph(cora, DATASET, made.protocol, seed)
        assert len(cut.partition.ids) == 10
        assert describe(cora, cut).missing_ratio == pytest.approx(0.9, abs=0.02)


def test_every_sort_of_method_is_shown() -> None:
    made = plan(DATASET, METHODS, protocol=PROTOCOL)
    assert {"local", "fedavg", "fedsage", "fedsage_plus", "feddep", "fedggr", "fedpub", "global"} <= set(made.names)
    assert any(method.mends != "nothing" for method in made.methods) and any(m.sees_uncut_graph for m in made.methods)
    assert all(name in " ".join(INTRODUCTION) for name in (*METHODS, "fedgls"))


@pytest.mark.slow
def test_one_seed_ends_with_words_that_claim_nothing_and_a_report(
    dataset: Callable[[str], Data], data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset(DATASET)
    out = tmp_path / "demo"
    assert main(["demo", "--seeds", "0", "--data-root", str(data_root), "--out", str(out), "--json-lines"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]
    assert [run["method"] for run in result["runs"]] == list(METHODS)
    text = " ".join(result["words"])
    assert text.startswith("Federation brings +") and "±" not in text and "all of this may be chance" in text
    if result["report"] is not None:
        assert (out / "report.html").stat().st_size > 10_000
