"""What reported models say: confusions of classes, scores of each class, and test nodes in two dimensions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from suture.report.figures.curves import usual
from suture.report.figures.figure import Control, Figure, category, columns, quantity, spec_of, tips
from suture.report.figures.heat import heat_layers, named, square
from suture.report.records import Gathered, RunRecord
from suture.report.text import count
from suture.report.theme import APART, BETWEEN_ROWS, OWNERS, PAIRS, in_lanes, lanes, point_scales
from suture.report.trusting import table, text, wholes

MOST_CLASSES = 25
FEW_METHODS = 8


def confusion(gathered: Gathered) -> Figure | None:
    """Which class is taken for which, all clients and seeds together; None: there are no classes, or too many."""
    rows: list[tuple[Any, ...]] = []
    for method in gathered.methods:
        counted, classes = _confused(gathered.of(method))
        for i, true in enumerate(classes):
            total = sum(counted[i])
            for j, said in enumerate(classes):
                share = 100 * counted[i][j] / total if total else 0.0
                rows.append((method, true, said, share, counted[i][j]))
    if not rows:
        return None
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    names = list(dict.fromkeys(row[1] for row in rows))
    told = tips(true="true class", said="predicted", share="% of the true class|.1f", number="test nodes")
    x, y = category("said", "predicted class", axis=named(names)), category("true", "true class")
    layers = heat_layers(x, y, "share", "% of row", told, form=".0f" if len(names) <= 10 else None, domain=(0, 100))
    return Figure(
        "confusion",
        "Which class is taken for which",
        "Test nodes of all clients and seeds by true and predicted class, in % of the true class.",
        f"A square of {count(len(names), 'class')} by {count(len(names), 'class')}; the diagonal is what was found.",
        spec_of("confusion", square(len(names)), layer=layers),
        {"confusion": columns("shown true said share number", rows)},
        (Control("shown", "Method", shown, start=usual(shown)),),
    )


def _confused(runs: tuple[RunRecord, ...]) -> tuple[list[list[int]], list[str]]:
    """Counts summed over runs that know the same classes."""
    summed: list[list[int]] = []
    names: list[str] = []
    for run in runs:
        told = run.evaluation or {}
        try:
            classes = [text(name) for name in told["classes"]]
            matrix = [wholes(row, MOST_CLASSES) for row in told["pooled"]["confusion"]]
        except (KeyError, TypeError, ValueError):
            continue
        if len(classes) > MOST_CLASSES or any(len(row) != len(classes) for row in (matrix, *matrix)):
            continue
        if not names:
            names, summed = classes, [[0] * len(classes) for _ in classes]
        if classes == names:
            summed = [[a + b for a, b in zip(mine, more, strict=True)] for mine, more in zip(summed, matrix, strict=True)]
    return summed, names


def by_class(gathered: Gathered) -> Figure | None:
    """F1 of each class, mean over seeds."""
    rows: list[tuple[Any, ...]] = []
    support: dict[str, int] = {}
    for method in gathered.methods:
        found: dict[str, list[float]] = {}
        for run in gathered.of(method):
            for name, value, number in _classes(run):
                support.setdefault(name, number)
                found.setdefault(name, []).append(value)
        rows += [(method, name, 100 * statistics.fmean(values), support[name]) for name, values in found.items()]
    names = list(dict.fromkeys(row[1] for row in rows))
    if not rows or len(names) > MOST_CLASSES:
        return None
    encoding = {
        "x": quantity("f1", "F1 in %", scale={"domain": [0, 100], "nice": False, "padding": 10}, axis={"grid": True}),
        "y": category("label", "class", axis=BETWEEN_ROWS, scale=APART),
        "yOffset": lanes(gathered.methods),
        **point_scales(gathered.methods),
        "tooltip": tips(method="method", label="class", f1="F1 in %|.1f", support="test nodes"),
    }
    return Figure(
        "classes",
        "How well each class is found",
        "F1 of each class over the test nodes of all clients, mean over seeds.",
        f"For each of {count(len(names), 'class')}, one dot a method at its F1.",
        spec_of(
            "classes",
            in_lanes(len(names), len(gathered.methods)),
            mark={"type": "point", "filled": True, "size": 60, "opacity": 1},
            encoding=encoding,
        ),
        {"classes": columns("method label f1 support", rows)},
    )


def _held(explained: Sequence[tuple[str, float]]) -> str:
    """How much of the variance two dimensions hold, of each method, or of all of them where they are many."""
    if len(explained) > FEW_METHODS:
        shares = [share for _, share in explained]
        return f"They hold {min(shares):.0f} to {max(shares):.0f} % of the variance."
    told = ", ".join(f"{method} {share:.0f} %" for method, share in explained)
    return f"Variance they hold: {told}." if told else ""


def _classes(run: RunRecord) -> list[tuple[str, float, int]]:
    found = []
    try:
        for one in (run.evaluation or {})["pooled"]["classes"]:
            value = table(one)["f1"]
            if isinstance(value, int | float) and math.isfinite(value):
                found.append((text(one["class"]), float(value), int(one["support"])))
    except (KeyError, TypeError, ValueError):
        return []
    return found


def scatter(gathered: Gathered) -> Figure | None:
    """Test nodes by what the reported models say of them, in two dimensions; the first seed of every method."""
    rows: list[tuple[Any, ...]] = []
    explained: list[tuple[str, float]] = []
    for method in gathered.methods:
        run = next((one for one in gathered.of(method) if one.scatter is not None), None)
        if run is None or (told := run.scatter) is None:
            continue
        wrong = ["right" if a == b else "wrong" for a, b in zip(told.label, told.said, strict=True)]
        rows += list(zip([method] * len(told.x), told.x, told.y, told.label, told.said, told.client, wrong, strict=True))
        if told.explained is not None:
            explained.append((method, 100 * told.explained))
    if not rows:
        return None
    names = sorted(dict.fromkeys(row[3] for row in rows))
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    colours = [PAIRS[OWNERS[place % len(OWNERS)]][0] for place in range(len(names))]
    bare = {"axis": {"labels": False, "ticks": False, "grid": False}, "scale": {"zero": False, "padding": 10}}
    legend = {"title": "true class"} if len(names) <= 15 else None
    encoding = {
        "x": quantity("x", "first component", **bare),
        "y": quantity("y", "second component", **bare),
        "color": {"field": "label", "type": "nominal", "scale": {"domain": names, "range": colours}, "legend": legend},
        "shape": {
            "field": "verdict",
            "type": "nominal",
            "scale": {"domain": ["right", "wrong"], "range": ["circle", "cross"]},
            "legend": {"title": "predicted"},
        },
        "tooltip": tips(label="true class", said="predicted", client="client", verdict="prediction"),
    }
    return Figure(
        "embedding",
        "Test nodes in two dimensions",
        "A sample of test nodes at the first two principal components of what their client's model says of them (its "
        f"outputs before the softmax); first seed. {_held(explained)}",
        "A cloud of points coloured by true class; crosses are predicted wrongly.",
        spec_of("embedding", 420, mark={"type": "point", "filled": True, "size": 40, "opacity": 0.75}, encoding=encoding),
        {"embedding": columns("shown x y label said client verdict", rows)},
        (Control("shown", "Method", shown, start=usual(shown)),),
    )
