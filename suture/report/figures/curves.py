"""Learning curves: the mean over seeds with a band of one deviation, and every client's own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from suture.report.figures.figure import Control, Figure, columns, dotted, quantity, spec_of, tips, under_pointer
from suture.report.records import Gathered, Numbers, RunRecord
from suture.report.results import is_reference
from suture.report.theme import method_scales, owner_scale

SETS = {"validation": "validation", "test": "test", "train": "training"}
MOST_ROUNDS, MOST_CLIENT_ROUNDS = 400, 100
MOST_CLIENTS = 60
FEW_CLIENTS = 12
"""Up to so many are named beside the figure."""


def learning(gathered: Gathered) -> Figure | None:
    """Score by round, mean and deviation over seeds; None: nothing was tested yet."""
    rows: list[tuple[Any, ...]] = []
    sets = {name: f"{words} {gathered.examples}" for name, words in SETS.items()}
    for method in gathered.methods:
        for name in sets:
            for number, values in _by_round(gathered.of(method), name, MOST_ROUNDS):
                mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
                rows.append((method, sets[name], number, *_shown(gathered, mean, mean - spread, mean + spread), len(values)))
    if not rows:
        return None
    scales = method_scales(gathered.methods)
    x = quantity("round", "round", axis={"tickMinStep": 1}, scale={"nice": False, "zero": False})
    layers = [
        {
            "mark": {"type": "errorband", "opacity": 0.18 if len(gathered.methods) <= 6 else 0.09, "borders": False},
            "encoding": {
                "x": x,
                "y": quantity("low", gathered.score, scale={"zero": False}),
                "y2": {"field": "high"},
                "color": scales["color"],
            },
        },
        {
            "mark": {"type": "line", "point": dotted(len({row[2] for row in rows}))},
            "encoding": {
                "x": x,
                "y": quantity("mean", gathered.score, scale={"zero": False}),
                **scales,
                "tooltip": tips(
                    method="method", round="round", mean="mean|.2f", low="low|.2f", high="high|.2f", seeds="seeds"
                ),
            },
        },
    ]
    several = len(gathered.seeds) > 1
    band = " The band is one sample deviation over seeds to each side." if several else " One seed, so there is no band."
    return Figure(
        "curves",
        "Learning curves",
        f"Score after each tested round, averaged over clients as the protocol says, mean over seeds.{band}",
        f"Lines of {gathered.score} by round for {', '.join(gathered.methods)}; the final table holds the end of each.",
        spec_of("curves", layer=layers),
        {"curves": columns("method set round mean low high seeds", rows)},
        (Control("set", "Scored on", tuple(sets.values())),),
    )


def _shown(gathered: Gathered, *values: float) -> list[float]:
    return [100 * value for value in values] if gathered.share else list(values)


def _by_round(runs: Sequence[RunRecord], name: str, most: int) -> list[tuple[int, list[float]]]:
    """The scores of a round in all runs that have it; evenly chosen rounds where there are many."""
    found: dict[int, list[float]] = {}
    for run in runs:
        values: Numbers = getattr(run.curve, name)
        for number, value in zip(run.curve.rounds, values, strict=True):
            if value is not None:
                found.setdefault(number, []).append(value)
    return [(number, found[number]) for number in thinned(sorted(found), most)]


def usual(methods: Sequence[str]) -> int:
    """Which of several methods is shown first: the last that is no reference."""
    federated = [place for place, method in enumerate(methods) if not is_reference(method)]
    return federated[-1] if federated else 0


def thinned(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many, evenly chosen, the first and the last among them."""
    if len(numbers) <= most:
        return list(numbers)
    last = len(numbers) - 1
    return [numbers[round(place * last / (most - 1))] for place in range(most)]


def by_client(gathered: Gathered) -> Figure | None:
    """The test score of every client by round, one method at a time; None: runs say nothing of their clients."""
    rows: list[tuple[Any, ...]] = []
    left_out = 0
    for method in gathered.methods:
        runs = [run for run in gathered.of(method) if run.curve.client_test]
        ids = runs[0].clients if runs else ()
        runs = [run for run in runs if run.clients == ids]
        left_out = max(left_out, len(ids) - MOST_CLIENTS)
        rounds = {number: place for run in runs for place, number in enumerate(run.curve.rounds)}
        for number in thinned(sorted(rounds), MOST_CLIENT_ROUNDS):
            told = [run.curve.client_test[run.curve.rounds.index(number)] for run in runs if number in run.curve.rounds]
            for k, name in enumerate(ids[:MOST_CLIENTS]):
                known = [value for row in told if (value := row[k]) is not None]
                if known:
                    rows.append((method, name, number, *_shown(gathered, statistics.fmean(known))))
    if not rows:
        return None
    names = list(dict.fromkeys(row[1] for row in rows))
    legend = {"title": None, "symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 2.5, "symbolSize": 300}
    spec = spec_of(
        "clients",
        mark={"type": "line", "strokeWidth": 1.5, "opacity": 0.85, "point": dotted(len({row[2] for row in rows}))},
        params=[{"name": "at", "select": under_pointer("client")}],
        encoding={
            "x": quantity("round", "round", axis={"tickMinStep": 1}, scale={"nice": False, "zero": False}),
            "y": quantity("value", gathered.score, scale={"zero": False}),
            "color": {"field": "client", "type": "nominal", "legend": legend, "scale": owner_scale(names)},
            "opacity": {"condition": {"param": "at", "empty": True, "value": 0.9}, "value": 0.15},
            "tooltip": tips(client="client", round="round", value="score|.2f"),
        },
    )
    whose = ""
    if len(names) > FEW_CLIENTS:
        spec["encoding"]["color"]["legend"] = None
        whose = " The pointer says whose a line is."
    some = f" The first {MOST_CLIENTS} clients are drawn." if left_out > 0 else ""
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    return Figure(
        "clients",
        "Every client's own curve",
        f"Test score of each client's model on its own test {gathered.examples}, mean over seeds.{some}{whose}",
        f"One line of {gathered.score} by round for each client of the chosen method.",
        spec,
        {"clients": columns("shown client round value", rows)},
        (Control("shown", "Method", shown, start=usual(shown)),),
    )
