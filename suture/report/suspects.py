"""Who sent updates that did not fit the others'."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from suture.report import console
from suture.runs.outcome import Outcome


def name_suspects(outcomes: Sequence[Outcome]) -> None:
    """One line for each run in which robust aggregation found somebody suspicious."""
    for outcome in outcomes:
        if outcome.suspects:
            line = f"{outcome.method}, seed {outcome.seed}: updates of {', '.join(outcome.suspects)} do not fit the others'"
            console.results().print(Text(line, style="bold"), soft_wrap=True)
