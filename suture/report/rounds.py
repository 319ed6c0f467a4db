"""The course of a run from metrics.jsonl and ledger.jsonl: its tested rounds, and what each iteration said and sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.privacy.disclosure import EVALUATION_STEP
from suture.report.records import Curve, Iterations, Numbers
from suture.report.trusting import lines_of, number, numbers, text, whole
from suture.runs.folder import LEDGER, METRICS

MOST_LINES, MOST_MESSAGES = 20_000, 1_000_000
OURS = frozenset(
    {"phase", "round", "asked", "train", "validation", "test", "validation_loss", "client_validation", "client_test"}
)
MOST_REPORTED = 40


def read_curve(run: Path, clients: int) -> Curve:
    """The rounds that were tested; clients' own scores only where there is one for each of them."""
    lines = [line for line in lines_of(run / METRICS, MOST_LINES) if "validation" in line]
    of_clients = {
        name: tuple(numbers(line.get(name, []), 100_000) for line in lines) for name in ("client_validation", "client_test")
    }
    same = {name: rows for name, rows in of_clients.items() if all(len(row) == clients for row in rows)}
    means = {name: tuple(number(line.get(name)) for line in lines) for name in ("train", "validation", "test")}
    return Curve(
        tuple(whole(line["round"]) for line in lines),
        train=means["train"],
        validation=means["validation"],
        test=means["test"],
        client_validation=same.get("client_validation", ()),
        client_test=same.get("client_test", ()),
    )


def read_iterations(run: Path) -> Iterations:
    """Everything else that the run told of its iterations, and their traffic."""
    lines = lines_of(run / METRICS, MOST_LINES)
    names = list(dict.fromkeys(key for line in lines for key, value in line.items() if key not in OURS and _plain(value)))
    ends = _ends(lines, run)
    up, down = _traffic(run, ends) if ends else ((None,) * len(lines), (None,) * len(lines))
    return Iterations(
        tuple(text(line["phase"]) for line in lines),
        tuple(whole(line["round"]) for line in lines),
        {text(name): tuple(_number(line.get(name)) for line in lines) for name in names[:MOST_REPORTED]},
        up,
        down,
    )


def _plain(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    return number(value) if _plain(value) else None


def _ends(lines: Sequence[Mapping[str, Any]], run: Path) -> list[int]:
    """The number of the last question of every iteration; empty: that is not known.

    Runs of earlier versions do not say it. Where every iteration was tested, the tests say it.
    """
    if lines and all("asked" in line for line in lines):
        return [whole(line["asked"]) for line in lines]
    tested = {line["ask"] for line in lines_of(run / LEDGER, MOST_MESSAGES) if line.get("step") == EVALUATION_STEP}
    return sorted(whole(number) for number in tested) if len(tested) == len(lines) else []


def _traffic(run: Path, ends: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Bytes up and down of every iteration, tests aside."""
    sums: Counter[tuple[str, int]] = Counter()
    place, iteration = {}, 0
    for asked in range(1, (ends[-1] if ends else 0) + 1) if ends and ends[-1] <= MOST_MESSAGES else ():
        while iteration < len(ends) - 1 and asked > ends[iteration]:
            iteration += 1
        place[asked] = iteration
    for line in lines_of(run / LEDGER, MOST_MESSAGES):
        if line["step"] != EVALUATION_STEP and line["ask"] in place:
            sums[str(line["direction"]), place[line["ask"]]] += sum(whole(size) for size in line["bytes"])
    columns = [tuple(float(sums[way, number]) for number in range(len(ends))) for way in ("up", "down")]
    return columns[0], columns[1]
