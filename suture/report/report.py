"""The report of runs: which sections a page has, and in which order. See `suture.report` for how the parts fit together."""

from __future__ import annotations

from collections.abc import Iterable

from suture.report.figures import curves
from suture.report.figures.figure import Figure
from suture.report.page import Page, Section, Words
from suture.report.records import Gathered


def report_page(gathered: Gathered) -> Page:
    """Everything that is known of these runs."""
    title = f"{', '.join(gathered.methods)} on {gathered.runs[0].dataset}"
    learning = Section("learning", "Learning", tuple(_there([curves.learning(gathered), curves.by_client(gathered)])))
    problems = [Words(problem, "problem") for run in gathered.runs for problem in run.problems]
    asked = Section("asked", "What was asked", tuple(problems))
    return Page(title, (), (asked, learning), gathered.methods)


def _there(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure is not None]
