"""Reads back what a run folder tells about its course: its metrics and its ledger, finished or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import damaged, read_lines
from suture.runs.folder import LEDGER, METRICS, read_metrics
from suture.settings import EvaluationSettings


@dataclass(frozen=True)
class Curve:
    """A run so far, from metrics.jsonl."""

    iterations: int
    """Iterations of all phases so far."""
    rounds: tuple[int, ...] = ()
    """Rounds that were evaluated."""
    validation: tuple[float, ...] = ()
    test: tuple[float, ...] = ()
    client_validation: tuple[tuple[float | None, ...], ...] = ()
    client_test: tuple[tuple[float | None, ...], ...] = ()

    def reported(self, settings: EvaluationSettings, best_round: int) -> tuple[float | None, ...]:
        """Test accuracy of every client in the round that is reported for it."""
        if settings.select != "best-validation-per-client":
            return self.client_test[self.rounds.index(best_round)]
        chosen = []
        for client, of_client in enumerate(zip(*self.client_validation, strict=True)):
            # The first of equals, as the selection itself takes it; a client without validation nodes keeps round one.
            best = max(range(len(of_client)), key=lambda i: (of_client[i] or 0.0, -i))
            chosen.append(self.client_test[best][client])
        return tuple(chosen)


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
    evaluated = [line for line in lines if line.get("validation") is not None]
    try:
        return Curve(
            len(lines),
            tuple(int(line["round"]) for line in evaluated),
            tuple(float(line["validation"]) for line in evaluated),
            tuple(math.nan if line["test"] is None else float(line["test"]) for line in evaluated),
            tuple(tuple(line["client_validation"]) for line in evaluated),
            tuple(tuple(line["client_test"]) for line in evaluated),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(run / METRICS) from error


def read_traffic(run: Path) -> list[Traffic]:
    """The ledger of a run, summed by step and direction, in the order of their first message."""
    sums: dict[tuple[str, str], Traffic] = {}
    try:
        for line in read_lines(run / LEDGER):
            key = (line["step"], line["direction"])
            traffic = sums.setdefault(key, Traffic(*key))
            traffic.messages += len(line["clients"])
            traffic.bytes += sum(line["bytes"])
            traffic.fields |= dict.fromkeys(path.split(".")[0] for path in line["fields"])
    except (KeyError, TypeError) as error:
        raise damaged(run / LEDGER) from error
    return list(sums.values())
