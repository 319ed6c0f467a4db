"""Who sent updates that did not fit the others'."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from suture.runs.outcome import Outcome


def suspects(outcomes: Sequence[Outcome]) -> list[Text]:
    """One line for each run in which robust aggregation found somebody suspicious."""
    return [
        Text(
            f"{outcome.method}, seed {outcome.seed}: updates of {', '.join(outcome.suspects)} do not fit the others'",
            style="bold",
        )
        for outcome in outcomes
        if outcome.suspects
    ]
