"""How good the methods got: scores with deviations, differences with intervals, every owner's score, cost and time."""

from __future__ import annotations

import math
import statistics
from typing import Any

from suture.report import results
from suture.report.figures.figure import Figure, category, columns, quantity, spec_of, tips
from suture.report.records import Gathered
from suture.report.theme import APART, BETWEEN_ROWS, PAGE, Spec, in_lanes, lanes, method_scales, point_scales

MOST_OWNERS = 40
PAIRED = (
    "Paired by seed; the bar is the 95 % interval of the mean difference. Where it "
    "crosses 0, the seeds cannot tell the two apart."
)
ONE_SEED = "One seed, so there is no interval, and nobody can say how sure these differences are."


def _times(gathered: Gathered) -> float:
    return 100.0 if gathered.share else 1.0


def _rows_high(count: int) -> int:
    return max(120, 34 * count + 30)


def _coloured(gathered: Gathered) -> Spec:
    return {"color": {**method_scales(gathered.methods)["color"], "legend": None}}


def scores(gathered: Gathered) -> Figure | None:
    """The reported number of every method: mean, deviation, and each seed."""
    column, times = results.headline(gathered.runs[0]), _times(gathered)
    means, seeds = [], []
    for method in gathered.methods:
        values = [times * results.score(one, column) for one in results.finished(gathered, method)]
        if (told := results.spread(values)) is not None:
            means.append((method, told[0], told[0] - told[1], told[0] + told[1], len(values)))
            outcomes = results.finished(gathered, method)
            seeds += [(method, times * results.score(one, column), one.seed) for one in outcomes]
    if not means:
        return None
    y = category("method", None, axis={"ticks": False, "domain": False, "grid": False})
    x = quantity("low", gathered.score, scale={"zero": False, "padding": 12}, axis={"grid": True})
    colour = _coloured(gathered)
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.45},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, **colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {
                "x": quantity("mean", gathered.score),
                "y": y,
                **point_scales(gathered.methods, legend=False),
                "tooltip": tips(
                    method="method", mean="mean|.2f", low="mean - deviation|.2f", high="mean + deviation|.2f", seeds="seeds"
                ),
            },
        },
        {
            "data": {"name": "seeds"},
            "mark": {"type": "tick", "thickness": 1.5, "size": 16, "opacity": 0.7},
            "encoding": {
                "x": quantity("score", gathered.score),
                "y": y,
                **colour,
                "tooltip": tips(method="method", seed="seed", score="score|.2f"),
            },
        },
    ]
    words = "; ".join(f"{row[0]} {row[1]:.2f}" for row in means)
    return Figure(
        "scores",
        "Test score of every method",
        "The number the protocol reports: the dot is the mean over seeds, the bar one sample deviation, each tick a seed."
        if len(gathered.seeds) > 1
        else "The number the protocol reports; one seed, so there is no deviation.",
        f"Mean {gathered.score}: {words}.",
        spec_of("means", _rows_high(len(means)), layer=layers),
        {"means": columns("method mean low high seeds", means), "seeds": columns("method score seed", seeds)},
    )


def gains(gathered: Gathered) -> Figure | None:
    """Differences to a baseline with their intervals; None: there is nothing to compare."""
    against = results.baseline(gathered)
    if against is None:
        return None
    times = _times(gathered)
    rows: list[tuple[Any, ...]] = []
    for one in results.paired(gathered, against, results.headline(gathered.runs[0])):
        mean, low, high = (
            None if value is None else times * value for value in (one.gain.mean, one.gain.low, one.gain.high)
        )
        rows.append(
            (one.method, mean, mean if low is None else low, mean if high is None else high, one.gain.better, one.gain.seeds)
        )
    if not rows:
        return None
    unit = "points" if gathered.share else "the metric's unit"
    y = category("method", None, axis={"ticks": False, "domain": False, "grid": False})
    title = f"better than {against}, in {unit}"
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "color": PAGE["light"]["soft"], "strokeDash": [4, 3]},
            "encoding": {"x": {"datum": 0, "type": "quantitative"}},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.55},
            "encoding": {
                "x": quantity("low", title, axis={"grid": True}, scale={"padding": 14}),
                "x2": {"field": "high"},
                "y": y,
                **_coloured(gathered),
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {
                "x": quantity("mean", title),
                "y": y,
                **point_scales(gathered.methods, legend=False),
                "tooltip": tips(
                    method="method",
                    mean="difference|+.2f",
                    low="from|+.2f",
                    high="to|+.2f",
                    better="seeds better",
                    seeds="seeds",
                ),
            },
        },
    ]
    told = "; ".join(f"{row[0]} {row[1]:+.2f} ({row[2]:+.2f} to {row[3]:+.2f})" for row in rows)
    return Figure(
        "gains",
        f"Difference to {against}",
        PAIRED if len(gathered.seeds) > 1 else ONE_SEED,
        f"Difference to {against} in {unit} with 95 % intervals: {told}.",
        spec_of("gains", _rows_high(len(rows)), layer=layers),
        {"gains": columns("method mean low high better seeds", rows)},
    )


def owners(gathered: Gathered) -> Figure | None:
    """The test score of every owner in the reported round, mean over seeds."""
    rows: list[tuple[Any, ...]] = []
    names: dict[str, None] = {}
    for method in gathered.methods:
        told: dict[str, list[float]] = {}
        for run in gathered.of(method):
            for name, value in results.owner_scores(run).items():
                told.setdefault(name, []).append(value)
        for name in list(told)[:MOST_OWNERS]:
            names[name] = None
            rows.append((method, name, _times(gathered) * statistics.fmean(told[name]), len(told[name])))
    if not rows:
        return None
    encoding = {
        "x": quantity("score", gathered.score, scale={"zero": False, "padding": 10}, axis={"grid": True}),
        "y": category("client", None, axis=BETWEEN_ROWS, scale=APART),
        "yOffset": lanes(gathered.methods),
        **point_scales(gathered.methods),
        "tooltip": tips(method="method", client="client", score="score|.2f", seeds="seeds"),
    }
    some = (
        f" The first {MOST_OWNERS} owners are drawn." if max(len(run.clients) for run in gathered.runs) > MOST_OWNERS else ""
    )
    return Figure(
        "owners",
        "Who is served how well",
        f"Each owner's test score in the reported round, mean over seeds: a mean over owners hides who pays for it.{some}",
        f"For each of {len(names)} owners, one dot a method at its {gathered.score}.",
        spec_of(
            "owners",
            in_lanes(len(names), len(gathered.methods)),
            mark={"type": "point", "filled": True, "size": 60, "opacity": 1},
            encoding=encoding,
        ),
        {"owners": columns("method client score seeds", rows)},
    )


def cost(gathered: Gathered) -> Figure | None:
    """Score against traffic."""
    column, rows = results.headline(gathered.runs[0]), []
    for method in gathered.methods:
        done = [] if results.is_reference(method) else results.finished(gathered, method)
        told = results.spread([_times(gathered) * results.score(one, column) for one in done])
        if told is not None:
            megabytes = statistics.fmean(one.bytes_up + one.bytes_down for one in done) / 1e6
            rows.append((method, max(megabytes, 1e-3), told[0], statistics.fmean(one.seconds for one in done)))
    if len(rows) < 2:
        return None
    x = quantity(
        "megabytes",
        "MB of one run, all clients, log scale",
        scale={"type": "log", "nice": False, "padding": 25},
    )
    x["axis"] = {"format": "~g", "tickCount": 5, "grid": False}
    place = {"x": x, "y": quantity("score", gathered.score, scale={"zero": False, "padding": 20})}
    hints = tips(method="method", megabytes="MB|.3~g", score="score|.2f", seconds="seconds|.1f")
    mark = {"type": "point", "filled": True, "opacity": 1}
    names = [row[0] for row in rows]
    # Later ones are smaller, so that methods of one score and price lie inside each other like rings.
    sizes = {"domain": names, "range": [300 - 200 * place / len(names) for place in range(len(names))]}
    drawn = point_scales(gathered.methods, only=names)
    drawn["size"] = {"field": "method", "type": "ordinal", "scale": sizes, "legend": None}
    return Figure(
        "cost",
        "What a score costs",
        "Traffic of one run in the mean over seeds, against the score; references that see the "
        "uncut graph send nothing and are left out.",
        "; ".join(f"{row[0]}: {row[1]:.3g} MB, {row[2]:.2f}" for row in rows) + ".",
        spec_of("cost", mark=mark, encoding={**place, **drawn, "tooltip": hints}),
        {"cost": columns("method megabytes score seconds", rows)},
    )


def time(gathered: Gathered) -> Figure | None:
    """Seconds of one run."""
    rows = []
    for method in gathered.methods:
        done = results.finished(gathered, method)
        if done and all(math.isfinite(one.seconds) for one in done):
            values = [one.seconds for one in done]
            rows.append(
                (method, statistics.fmean(values), min(values), max(values), statistics.fmean(one.rounds for one in done))
            )
    if not rows:
        return None
    encoding = {
        "x": quantity("seconds", "seconds of one run", axis={"grid": True}),
        "y": category("method", None, axis={"ticks": False, "domain": False, "grid": False}),
        **_coloured(gathered),
        "tooltip": tips(method="method", seconds="mean|.2f", least="least|.2f", most="most|.2f", rounds="rounds|.0f"),
    }
    return Figure(
        "time",
        "Time",
        "Seconds of one run, mean over seeds, with all clients in one process; owners on their own machines "
        "work at the same time.",
        "; ".join(f"{row[0]} {row[1]:.2f} s" for row in rows) + ".",
        spec_of("time", _rows_high(len(rows)), mark={"type": "bar", "height": 16}, encoding=encoding),
        {"time": columns("method seconds least most rounds", rows)},
    )
