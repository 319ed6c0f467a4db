"""Matrices as heat maps: squares from little to much, with their numbers where these have room."""

from __future__ import annotations

from collections.abc import Sequence

from suture.report.theme import HEAT, PAGE, PALE_HEAT, Spec

ALL_NAMED = 8
"""Up to so many columns are wide enough for their names, on a telephone, too."""


NARROW = 180
"""Pixels of a heat map on a telephone."""
WIDTHS = {".0f": 20, ".2f": 33}
"""Pixels that a square must have for a number that is written so; in a narrower one it is left out."""


def square(rows: int) -> int:
    """The height of a heat map with so many rows."""
    return max(140, min(34 * rows, max(560, 14 * rows)))


def slanted(count: int) -> Spec:
    """The axis of names below a heat map's columns: written aslant, and all of them where they have room."""
    return {"labelAngle": -40, "labelLimit": 110, **({"labelOverlap": False} if count <= ALL_NAMED else {})}


def named(names: Sequence[str]) -> Spec:
    """The axis of classes below a heat map: aslant where they would not stand beside each other on a telephone."""
    return {"labelAngle": 0} if 8 * sum(map(len, names)) <= NARROW else slanted(len(names))


def heat_layers(
    x: Spec, y: Spec, field: str, title: str | None, told: list[Spec], form: str | None = None, domain: Sequence[float] = ()
) -> list[Spec]:
    """Squares coloured by a field; `form` is how their numbers are written, None leaves them out."""
    scale: Spec = {
        "range": list((HEAT if form is None else PALE_HEAT)["light"]),
        **({"domain": list(domain)} if domain else {}),
    }
    legend = {"title": title, "orient": "right", "gradientLength": 110, "gradientThickness": 10, "format": "~s"}
    colour = {"field": field, "type": "quantitative", "scale": scale, "legend": legend}
    plain = {"grid": False, "domain": False, "ticks": False}
    place = {
        "x": {**x, "axis": {**plain, **(x.get("axis") or {})}},
        "y": {**y, "axis": {**plain, **(y.get("axis") or {})}},
    }
    squares: Spec = {
        "mark": {
            "type": "rect",
            "stroke": PAGE["light"]["background"],
            "strokeWidth": {"expr": "bandwidth('x') < 10 ? 0 : 1"},
        },
        "encoding": {**place, "color": colour, "tooltip": told},
    }
    if form is None:
        return [squares]
    written = {"field": field, "type": "quantitative", "format": form}
    room = {"expr": f"bandwidth('x') < {WIDTHS.get(form, 30)} || bandwidth('y') < 13 ? 0 : 1"}
    numbers = {
        "mark": {"type": "text", "fontSize": 11, "opacity": room},
        "encoding": {**place, "text": written, "tooltip": told},
    }
    return [squares, numbers]
