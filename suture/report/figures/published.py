"""A paper's figures and ours, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from suture.bench.published import Table
from suture.report.figures.figure import Figure, category, columns, quantity, spec_of, tips
from suture.report.reproduced import PERCENT, Judged
from suture.report.theme import PAGE, Spec

PAPER, OURS = "paper", "ours"
COLOURS = {PAPER: PAGE["light"]["soft"], OURS: "#0072b2"}


def side_by_side(table: Table, judged: Sequence[Judged]) -> Figure | None:
    """Two dots a cell, each with a bar of one deviation; None: nothing was run."""
    rows = []
    for one in judged:
        printed = one.cell.printed
        if printed.mean is None or one.mean is None:
            continue
        times = 1.0 if printed.metric in PERCENT else 100.0
        place = f"{printed.dataset}, {printed.clients or '–'}: {printed.method}"
        place += f", {printed.variant}" if printed.variant else ""
        for who, mean, deviation in ((PAPER, printed.mean, printed.std), (OURS, one.mean, one.deviation)):
            low, high = (times * (mean + sign * (deviation or 0.0)) for sign in (-1, 1))
            rows.append((place, printed.metric, who, times * mean, low, high, len(one.values)))
    if not rows:
        return None
    y = category("cell", None, axis={"ticks": False, "domain": False, "grid": True, "labelLimit": 320})
    colour = {"color": {**category("who", None), "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())}}}
    offset = {"yOffset": {"field": "who", "type": "nominal", "sort": list(COLOURS)}}
    x = quantity("low", "percent", scale={"zero": False, "padding": 12}, axis={"grid": True})
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.45},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, **offset, **colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {
                "x": quantity("mean", "percent"),
                "y": y,
                **offset,
                **colour,
                "tooltip": tips(cell="cell", who="of", mean="mean|.2f", low="from|.2f", high="to|.2f", seeds="our seeds"),
            },
        },
    ]
    told = "; ".join(f"{row[0]} {row[2]} {row[3]:.2f}" for row in rows)
    return Figure(
        "published",
        f"{table.described.printed} of {table.paper}",
        "The paper's figures and ours: dots are means, bars one deviation over repetitions.",
        f"Means in percent: {told}.",
        spec_of("cells", max(120, 17 * len(rows)), layer=layers),
        {"cells": columns("cell metric who mean low high seeds", rows)},
    )
