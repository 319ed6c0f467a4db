"""Reads back what a run folder tells about its course: its metrics and its ledger, finished or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import damaged, read_lines
from suture.errors import IntegrityError
from suture.runs.folder import LEDGER, METRICS, read_metrics


@dataclass(frozen=True)
class Curve:
    """A run so far, from metrics.jsonl."""

    iterations: int
    """Iterations of all phases so far."""
    rounds: tuple[int, ...] = ()
    """Rounds that were evaluated."""
    validation: tuple[float, ...] = ()
    test: tuple[float, ...] = ()
    client_test: tuple[tuple[float | None, ...], ...] = ()

    def reported(self, best_rounds: Sequence[int]) -> tuple[float | None, ...]:
        """Test score of every client in the round that is reported for it; earlier versions did not say which."""
        clients = len(self.client_test[-1])
        if not best_rounds:
            return (None,) * clients
        if len(best_rounds) != clients or not set(best_rounds) <= set(self.rounds):
            raise IntegrityError(
                "the result reports rounds or clients that the metrics do not have; one is damaged, start the run anew"
            )
        return tuple(self.client_test[self.rounds.index(number)][k] for k, number in enumerate(best_rounds))


@dataclass
class Traffic:
    """What one step of a method sent in one direction."""

    step: str
    direction: str
    messages: int = 0
    bytes: int = 0
    fields: dict[str, None] = field(default_factory=dict)
    """Names of what was in the messages, in their order."""


def read_curve(run: Path) -> Curve:
    """The metrics of a run; of a run that has not begun, an empty curve."""
    lines = read_metrics(run)
    evaluated = [line for line in lines if "validation" in line]
    try:
        return Curve(
            len(lines),
            tuple(int(line["round"]) for line in evaluated),
            tuple(_number(line["validation"]) for line in evaluated),
            tuple(_number(line["test"]) for line in evaluated),
            tuple(tuple(line["client_test"]) for line in evaluated),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(run / METRICS) from error


def _number(told: float | None) -> float:
    return math.nan if told is None else float(told)


def read_traffic(run: Path) -> list[Traffic]:
    """The ledger of a run, summed by step and direction, in the order of their first message."""
    sums: dict[tuple[str, str], Traffic] = {}
    try:
        for line in read_lines(run / LEDGER):
            key = (line["step"], line["direction"])
            if not all(isinstance(part, str) for part in key):
                raise TypeError("a step and a direction are words")
            traffic = sums.setdefault(key, Traffic(*key))
            traffic.messages += len(line["clients"])
            traffic.bytes += sum(line["bytes"])
            traffic.fields |= dict.fromkeys(path.split(".")[0] for path in line["fields"])
    except (KeyError, TypeError) as error:
        raise damaged(run / LEDGER) from error
    return list(sums.values())
