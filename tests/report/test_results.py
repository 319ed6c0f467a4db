"""The numbers of tables, against computations by hand and by scipy."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from suture.report import results, tabled
from suture.report.records import Gathered
from suture.report.sheets import Cell, Sheet, as_csv, as_html, as_latex, as_markdown, as_text, ranked


def _scores(comparison: Path, method: str) -> list[float]:
    found = [json.loads((comparison / f"{method}-seed{seed}" / "result.json").read_text()) for seed in (0, 1, 2)]
    return [float(one["accuracy_client_mean"]) for one in found]


def test_the_final_table_is_mean_and_deviation_over_seeds(comparison: Path, gathered: Gathered) -> None:
    sheet = tabled.final(gathered)
    assert sheet is not None and sheet.header[1] == "client mean *"
    for row in sheet.rows:
        values = [100 * value for value in _scores(comparison, row[0].text)]
        assert row[1].text == f"{statistics.fmean(values):.2f} ±{statistics.stdev(values):.2f}"
        assert row[1].value == pytest.approx(statistics.fmean(values) / 100)
    federated = [row for row in sheet.rows if row[0].text != "global"]
    best = max(federated, key=lambda row: float(row[1].text.split()[0]))
    assert best[1].mark == "best" and [row[1].mark for row in sheet.rows if row[0].text == "global"] == [""]


def test_paired_intervals_are_those_of_scipy_where_all_seeds_test_the_same(comparison: Path, gathered: Gathered) -> None:
    same = replace(gathered, runs=tuple(replace(run, roles="same") for run in gathered.runs))
    local = _scores(comparison, "local")
    for one in results.paired(same, "local", "accuracy_client_mean"):
        test = stats.ttest_rel(_scores(comparison, one.method), local)
        low, high = test.confidence_interval(0.95)
        assert (one.gain.low, one.gain.high) == pytest.approx((low, high))
        assert one.p == pytest.approx(test.pvalue)


def test_seeds_that_draw_their_own_nodes_have_wider_intervals(comparison: Path, gathered: Gathered) -> None:
    told = json.loads((comparison / "local-seed0" / "evaluation.json").read_text())["pooled"]
    share = told["test"]["support"] / told["train"]["support"]
    assert results.resampled(gathered) == pytest.approx(share, rel=0.05)
    differences = [a - b for a, b in zip(_scores(comparison, "fedpub"), _scores(comparison, "local"), strict=True)]
    error = statistics.stdev(differences) * math.sqrt(1 / 3 + results.resampled(gathered))
    half = stats.t.ppf(0.975, 2) * error
    found = next(one for one in results.paired(gathered, "local", "accuracy_client_mean") if one.method == "fedpub")
    assert found.gain.half == pytest.approx(half)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(statistics.fmean(differences)) / error, 2))


def test_runs_on_other_cuts_are_not_paired(gathered: Gathered) -> None:
    other = tuple(replace(run, roles=f"{run.roles}{run.method}") for run in gathered.runs)
    assert results.paired(replace(gathered, runs=other), "local", "accuracy_client_mean") == []


def test_every_metric_is_a_mean_over_clients_then_seeds(comparison: Path, gathered: Gathered) -> None:
    sheet = tabled.metrics(gathered)
    assert sheet is not None
    place = next(number for number, title in enumerate(sheet.header) if title.startswith("log loss"))
    assert sheet.header[place].endswith("↓")
    seeds = []
    for seed in (0, 1, 2):
        told = json.loads((comparison / f"fedavg-seed{seed}" / "evaluation.json").read_text())
        seeds.append(statistics.fmean(client["test"]["log_loss"] for client in told["clients"].values()))
    row = next(row for row in sheet.rows if row[0].text == "fedavg")
    assert row[place].value == pytest.approx(statistics.fmean(seeds))


def test_ranks() -> None:
    assert ranked([1.0, 3.0, 2.0, None], 1.0) == ["", "best", "second", ""]
    assert ranked([1.0, 3.0, 2.0], -1.0) == ["best", "", "second"]
    assert ranked([3.0, 3.0, 1.0], 1.0) == ["best", "best", "second"]
    assert ranked([9.0, 3.0, 1.0], 1.0, leave_out=[0]) == ["", "best", "second"]
    assert ranked([1.0], 1.0) == [""]


EVIL = 'a|b_c & <b>100%</b> \\ "x" $y$'


@pytest.fixture
def sheet() -> Sheet:
    rows = [[EVIL, Cell("81.23 ±0.42", 0.812345678, "best"), "=1+1"], ["fedavg", Cell("80.00", 0.8, "second"), "plain"]]
    return Sheet.of("t", "A caption_1", ("method", "score", "word"), rows, numbers_to=2, by_method=True)


def test_csv_holds_numbers_and_nothing_that_a_spreadsheet_computes(sheet: Sheet) -> None:
    rows = list(csv.reader(io.StringIO(as_csv(sheet))))
    assert rows[1] == [EVIL, "0.812345678", "'=1+1"]


def test_markdown_and_latex_and_html_escape(sheet: Sheet) -> None:
    markdown = as_markdown(sheet)
    assert r"a\|b\_c &amp; &lt;b&gt;100%" in markdown and "**81.23 ±0.42**" in markdown and "<u>80.00</u>" in markdown
    assert all(line.replace(r"\|", "").count("|") == 4 for line in markdown.splitlines()[2:])
    latex = as_latex(sheet)
    assert r"b\_c \& <b>100\%" in latex and r"\textbf{81.23 $\pm$0.42}" in latex and r"\underline{80.00}" in latex
    assert r"\textbackslash{}" in latex and r"\$y\$" in latex
    page = as_html(sheet)
    assert "<b>" not in page and "&lt;b&gt;" in page and '<th scope="row">' in page and "<caption><span>" in page
    assert 'class="number best"' in page


def test_text_aligns_its_columns(sheet: Sheet) -> None:
    lines = as_text(sheet).splitlines()
    assert lines[3].index("81.23") > 0 and "81.23 ±0.42*" in lines[3] and "80.00+" in lines[4]
