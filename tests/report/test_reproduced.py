"""Ours beside a paper's: gaps, verdicts and rankings, computed by hand or by SciPy beside them; sheets, docs, pictures."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats
from small_papers import GRAPH, small_papers

from suture.bench.published import Table, read_tables
from suture.bench.recipe import Recipe
from suture.bench.reproduced import Run, Store
from suture.report.beside import beside, docs, said
from suture.report.figures.published import side_by_side
from suture.report.reproduced import Judged, judge
from suture.report.sheets import as_csv, as_latex, as_markdown, as_text

AVERAGED, PUB, ALONE = (0.61, 0.58, 0.60), (0.66, 0.67, 0.60), (0.52, 0.50, 0.50)


def a_run(seed: int, score: float, *, sent: int = 1000, cut: str = "", curve: float | None = None) -> Run:
    return Run(
        seed=seed,
        made="m",
        accuracy_client_mean=score,
        accuracy_weighted=0.1,
        accuracy_worst=0.1,
        metric="accuracy",
        rounds=20,
        best_round=1,
        bytes_up=sent,
        bytes_down=sent,
        seconds=4.0,
        processor=2.0,
        tested=40,
        trained=20,
        cut=cut or f"cut {seed}",
        curve={} if curve is None else {20: curve},
    )


def recipe_of(table: Table, row: str, variant: str = "") -> Recipe:
    found = next(cell.recipe for cell in table.cells if (cell.row, cell.printed.variant) == (row, variant))
    assert found is not None
    return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return read_tables(small_papers(tmp_path / "papers"))["tiny-table-1"]


@pytest.fixture
def store(tmp_path: Path, table: Table) -> Store:
    store = Store(tmp_path / "store")
    for row, scores, sent in (("fedavg", AVERAGED, 1000), ("fedpub", PUB, 250), ("local", ALONE, 0)):
        for seed, score in enumerate(scores):
            store.add(table.name, recipe_of(table, row), a_run(seed, score, sent=sent, curve=0.3 + seed / 10), {})
    return store


def judged(table: Table, store: Store) -> dict[tuple[str, str, str], Judged]:
    found = judge(table, store, [GRAPH])
    return {(one.cell.row, one.cell.printed.variant, one.cell.printed.metric): one for one in found}


def test_gaps_and_verdicts_by_hand(table: Table, store: Store) -> None:
    found = judged(table, store)
    pub = found["fedpub", "", "accuracy"]
    assert pub.mean == pytest.approx((0.66 + 0.67 + 0.60) / 3)
    assert pub.deviation == pytest.approx(statistics.stdev(PUB))
    assert pub.gap == pytest.approx(0.64333333 - 0.70)
    assert pub.deviations == pytest.approx(-0.05666667 / 0.02)
    assert (pub.verdict, pub.is_near) == ("short", False), "0.057 below, where 0.02 are allowed"
    averaged = found["fedavg", "", "accuracy"]
    assert (averaged.verdict, averaged.is_near) == ("reached", True), "0.0033 below, one deviation is 0.02"
    alone = found["local", "", "accuracy"]
    assert alone.gap == pytest.approx(0.52 / 3 + 1.0 / 3 - 0.50)
    assert (alone.verdict, alone.is_near, alone.seconds, alone.megabytes) == ("reached", True, 2.0, 0.0)
    # One point is allowed where no deviation is printed, or a smaller one.
    exact = replace(alone, values=(0.4899,), runs=alone.runs[:1])
    assert (exact.verdict, replace(exact, values=(0.49,)).verdict) == ("short", "reached")


def test_other_metrics_are_read_as_they_are_printed(table: Table, store: Store) -> None:
    found = judged(table, store)
    cost = found["fedpub", "", "comm_cost_pct"]
    assert cost.values == (25.0, 25.0, 25.0), "percent of FedAvg's bytes with the same seed"
    assert cost.gap == -75.0
    assert found["fedavg", "round=20", "accuracy"].values == pytest.approx((0.3, 0.4, 0.5))


def test_what_is_not_there_says_why(table: Table, store: Store, tmp_path: Path) -> None:
    found = judged(table, store)
    assert found["nobody", "", "accuracy"].missing == "no method here stands for nobody"
    assert found["fedprox", "", "accuracy"].missing == "not run"
    assert found["fedprox", "", "accuracy"].verdict == "open"
    absent = judge(read_tables(tmp_path / "papers")["tiny-table-2"], store, [GRAPH])
    assert absent[0].missing == "the raw files are not here: suture data get arxiv"


def test_rankings_are_paired_by_seed_and_tested_as_scipy_does(table: Table, store: Store) -> None:
    against, alone = judged(table, store)["fedpub", "", "accuracy"].rankings
    assert (against.against, alone.against) == ("fedavg", "local")
    assert against.published == pytest.approx(0.10)
    assert against.holds is True
    assert against.plain_p == pytest.approx(stats.ttest_rel(PUB, AVERAGED).pvalue)
    # Nadeau and Bengio by hand: the variance of the mean is s^2 (1/n + tested/trained), here 40 tested for 20 trained.
    differences = [a - b for a, b in zip(PUB, AVERAGED, strict=True)]
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    t = mean / (deviation * math.sqrt(1 / 3 + 2))
    assert against.p == pytest.approx(2 * stats.t.sf(abs(t), 2))
    assert against.gain is not None
    assert against.gain.mean == pytest.approx(mean)


def test_rankings_that_turn_and_runs_on_other_cuts(table: Table, store: Store) -> None:
    for seed, score in enumerate((0.80, 0.81, 0.79)):
        store.add(table.name, recipe_of(table, "local"), a_run(seed, score), {})
    _, alone = judged(table, store)["fedpub", "", "accuracy"].rankings
    assert alone.holds is False
    for seed in range(3):
        store.add(table.name, recipe_of(table, "local"), a_run(seed, 0.1, cut="another"), {})
    _, alone = judged(table, store)["fedpub", "", "accuracy"].rankings
    assert (alone.gain, alone.p, alone.holds) == (None, None, None), "nothing on the same cut is nothing to compare"
    # A variant is ranked against the row that has none.
    store.add(table.name, recipe_of(table, "fedpub", "lambda1=9e-1"), a_run(0, 0.9), {})
    against, _ = judged(table, store)["fedpub", "lambda1=9e-1", "accuracy"].rankings
    assert against.gain is not None
    assert against.gain.mean == pytest.approx(0.9 - 0.61)
    assert against.p is None, "one seed tells none"


def test_every_format_holds_every_cell(table: Table, store: Store) -> None:
    found = judge(table, store, [GRAPH])
    sheet = beside(table, found)
    rows = list(csv.DictReader(io.StringIO(as_csv(sheet))))
    assert len(rows) == len(table.cells)
    (pub,) = [row for row in rows if row["method"] == "fedpub" and row["variant"] == "–" and float(row["paper"]) == 0.7]
    assert float(pub["ours"]) == pytest.approx(statistics.fmean(PUB))
    assert (pub["seeds"], pub["reached"]) == ("3", "no")
    for text in (as_text(sheet), as_markdown(sheet)):
        assert "64.33 ±3.79" in text
        assert "fedavg +4.67" in text
    assert r"64.33 $\pm$3.79" in as_latex(sheet)
    assert said(found) == (
        "6 cells of 9 run, 3 reach the published mean minus one deviation or one point, "
        "2 of 2 rankings of the paper's own methods hold."
    )


def test_docs_have_ours_beside_the_papers(table: Table, store: Store) -> None:
    lines = docs(table, judge(table, store, [GRAPH]))
    assert lines[0] == f"**{GRAPH}**"
    assert any(line.startswith("| fedpub | **64.33 ± 3.79** | 70.00 |") for line in lines), lines
    assert any(line.startswith("| local | 50.67 ± 1.15 | 50.00 |") for line in lines)
    assert not any("fedprox" in line for line in lines), "what was not run is not shown"


def test_the_picture_has_a_pair_of_dots_a_cell(table: Table, store: Store) -> None:
    figure = side_by_side(table, judge(table, store, [GRAPH]))
    assert figure is not None
    cells = figure.tables["cells"]
    assert len(cells["mean"]) == 2 * 6
    pairs = dict(zip(zip(cells["cell"], cells["metric"], cells["who"], strict=True), cells["mean"], strict=True))
    assert pairs[f"{GRAPH}, 4: fedpub", "accuracy", "paper"] == 70.0
    assert pairs[f"{GRAPH}, 4: fedpub", "accuracy", "ours"] == pytest.approx(64.3333, abs=1e-3)
    assert side_by_side(table, judge(table, Store(store.folder / "none"), [GRAPH])) is None
