"""What went over the wire in every iteration, and the numbers a method reported of each."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from suture.report import results
from suture.report.figures.curves import thinned
from suture.report.figures.figure import Control, Figure, columns, dotted, quantity, spec_of, tips
from suture.report.records import Gathered, Numbers, RunRecord
from suture.report.theme import method_scales

MOST_POINTS = 200
WAYS = ("all so far", "up in each iteration", "down in each iteration")
NAMES = {"sent_share": "share of weights that masks let through", "loss": "training loss"}
"""Of what methods report, in words."""


def traffic(gathered: Gathered) -> Figure | None:
    """Megabytes by iteration, mean over seeds; None: no run says it."""
    rows: list[tuple[Any, ...]] = []
    for method in gathered.methods:
        if results.is_reference(method):
            continue
        runs = [
            run
            for run in gathered.of(method)
            if run.iterations.up and None not in (*run.iterations.up, *run.iterations.down)
        ]
        if not runs:
            continue
        length = min(len(run.iterations.up) for run in runs)
        up, down = (_mean(runs, way, length) for way in ("up", "down"))
        so_far = [sum(up[: place + 1]) + sum(down[: place + 1]) for place in range(length)]
        phases = runs[0].iterations.phase
        for way, values in zip(WAYS, (so_far, up, down), strict=True):
            rows += [
                (method, way, place + 1, values[place] / 1e6, phases[place]) for place in thinned(range(length), MOST_POINTS)
            ]
    if not rows:
        return None
    shortest = min(Counter(row[0] for row in rows if row[1] == WAYS[0]).values())
    encoding = {
        "x": quantity("iteration", "iteration, all phases", axis={"tickMinStep": 1}, scale={"nice": False, "zero": False}),
        "y": quantity("megabytes", "MB, all clients together"),
        **method_scales(gathered.methods),
        "tooltip": tips(method="method", phase="phase", iteration="iteration", megabytes="MB|.3~s"),
    }
    return Figure(
        "traffic",
        "Traffic",
        "Bytes between the server and all clients, mean over seeds; tests are not counted, preparing phases are.",
        "Lines of megabytes by iteration for each method; the results table holds the totals.",
        spec_of("traffic", mark={"type": "line", "point": dotted(shortest)}, encoding=encoding),
        {"traffic": columns("method way iteration megabytes phase", rows)},
        (Control("way", "Show", WAYS),),
    )


def _mean(runs: list[RunRecord], way: str, length: int) -> list[float]:
    columns_of = [getattr(run.iterations, way) for run in runs]
    return [statistics.fmean(column[place] for column in columns_of) for place in range(length)]


def reported(gathered: Gathered) -> Figure | None:
    """What methods say of their own iterations: losses, shares, edges; None: nothing."""
    rows: list[tuple[Any, ...]] = []
    for method in gathered.methods:
        runs = gathered.of(method)
        names = dict.fromkeys(name for run in runs for name in run.iterations.reported)
        for name in names:
            told: dict[tuple[str, int], list[float]] = {}
            for run in runs:
                values: Numbers = run.iterations.reported.get(name, ())
                for phase, number, value in zip(run.iterations.phase, run.iterations.round, values, strict=False):
                    if value is not None:
                        told.setdefault((phase, number), []).append(value)
            phases = dict.fromkeys(phase for phase, _ in told)
            for phase in phases:
                numbers = sorted(number for one, number in told if one == phase)
                what = f"{NAMES.get(name, name.replace('_', ' '))}, by {phase}"
                for number in thinned(numbers, MOST_POINTS):
                    rows.append((method, what, number, statistics.fmean(told[phase, number])))
    if not rows:
        return None
    whats = tuple(dict.fromkeys(row[1] for row in rows))
    encoding = {
        "x": quantity("round", "round of the phase", axis={"tickMinStep": 1}, scale={"nice": False, "zero": False}),
        "y": quantity("value", None, scale={"zero": False}, axis={"titleLimit": 310}),
        **method_scales(gathered.methods),
        "tooltip": tips(method="method", round="round", value="value|.4~g"),
    }
    return Figure(
        "reported",
        "What methods say of their rounds",
        "Numbers that methods report after every iteration, mean over seeds.",
        f"Lines by round for each method that reports it; to choose from: {', '.join(whats)}.",
        spec_of("reported", mark={"type": "line", "point": {"size": 14}}, encoding=encoding),
        {"reported": columns("method what round value", rows)},
        (Control("what", "Number", whats, titles=True),),
    )
