"""How every figure and page looks: one colour and dash for each method everywhere, light and dark.

Colours come in pairs, one for a light page and one for a dark one, each at least 3:1 against its background. No two are told
apart by colour alone: methods differ in dash and shape too, for those who do not see colours and for printers.
`in_mode` turns a spec of the light page into one of the dark page; report.js does the same with `swaps`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["light", "dark"]
Spec = dict[str, Any]

PAIRS: dict[str, tuple[str, str]] = {
    "grey": ("#6b7280", "#9aa3b0"),
    "ink": ("#22272e", "#e9ebef"),
    "blue": ("#0b63b0", "#5ba8ee"),
    "vermilion": ("#cc4a00", "#ff9455"),
    "green": ("#00795c", "#3bbf97"),
    "magenta": ("#b3388a", "#ea8fc9"),
    "gold": ("#8a6a00", "#dcb62d"),
    "purple": ("#5f45b8", "#a999f5"),
    "red": ("#b4212f", "#f67a83"),
    "cyan": ("#0b7f96", "#4fc9e2"),
    "brown": ("#75462a", "#cf9c78"),
    "olive": ("#557a12", "#a0cf45"),
}
"""(on a light page, on a dark one)."""
SOLID, DASHED, DOTTED, MIXED, LONG = DASHES = [1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4]
IN_FOLDER = " @ "
"""Between a method and its folder, where several folders hold the method."""

PAGE: dict[Mode, dict[str, str]] = {
    "light": {"background": "#ffffff", "text": "#1d2127", "soft": "#535b66", "line": "#d5d9df"},
    "dark": {"background": "#15181d", "text": "#e9ebef", "soft": "#aab2bd", "line": "#3a414b"},
}
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""One that pictures written without a browser have as well."""


@dataclass(frozen=True)
class Style:
    """How one method is drawn."""

    colour: str
    """On a light page."""
    dash: tuple[int, ...]
    shape: str


SHAPES = {
    tuple(SOLID): "circle",
    tuple(DASHED): "diamond",
    tuple(DOTTED): "triangle-up",
    tuple(MIXED): "square",
    tuple(LONG): "cross",
}
"""Of points, by the dash of lines: methods of one colour differ in both."""
OUTLINES = {
    "circle": "M9 5a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "diamond": "M13 0l4 5l-4 5l-4 -5z",
    "triangle-up": "M13 0.5l4.5 8.5h-9z",
    "square": "M9 1h8v8h-8z",
    "cross": "M11.5 0.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
}
"""The same as paths, around the middle of 26 by 10."""
KNOWN: dict[str, tuple[str, list[int]]] = {
    "local": ("grey", SOLID),
    "global": ("ink", DASHED),
    "fedavg": ("blue", SOLID),
    "fedprox": ("cyan", DASHED),
    "fedper": ("purple", SOLID),
    "scaffold": ("purple", DOTTED),
    "fedsage": ("olive", SOLID),
    "fedsage_plus": ("green", SOLID),
    "locsage": ("olive", DOTTED),
    "locsage_plus": ("green", DOTTED),
    "globsage": ("ink", DOTTED),
    "fedpub": ("vermilion", SOLID),
    "gcfl": ("brown", SOLID),
    "gcfl_plus": ("brown", DASHED),
    "fedgnn": ("cyan", SOLID),
    "fedgcn": ("green", DASHED),
    "fedgram": ("cyan", DOTTED),
    "fedproto": ("gold", SOLID),
    "feddep": ("magenta", SOLID),
    "fedgraph": ("blue", DASHED),
    "fedgsl": ("magenta", DASHED),
    "fedggr": ("red", SOLID),
    "fedgls": ("purple", DASHED),
    "fed_mlp": ("gold", DASHED),
    "fed_gnnmlp": ("gold", DOTTED),
    "local_gnnk": ("grey", DASHED),
    "fed_gnnk": ("red", DASHED),
    "fed_gnn": ("vermilion", DASHED),
    "ditto": ("vermilion", DOTTED),
    "moon": ("blue", DOTTED),
    "fedala": ("red", DOTTED),
    "fedgta": ("olive", DASHED),
    "fedtad": ("brown", DOTTED),
    "fgssl": ("magenta", DOTTED),
    "adafgl": ("grey", DOTTED),
    "fggp": ("ink", MIXED),
    "suture": ("ink", SOLID),
}
"""The registered methods."""
SPARE = [(colour, dash) for dash in (MIXED, LONG) for colour in PAIRS if colour not in ("grey", "ink")]
"""For methods of others: dashes that no registered one has."""
OWNERS = ("blue", "vermilion", "green", "magenta", "gold", "purple", "cyan", "red", "brown", "olive")
"""Of owners, again and again where there are more."""
HEAT: dict[Mode, list[str]] = {"light": ["#f1f6fb", "#0b63b1"], "dark": ["#1c2733", "#5ba8ef"]}
"""Ends of a scale from little to much."""
PALE_HEAT: dict[Mode, list[str]] = {"light": ["#f2f6fa", "#86bbea"], "dark": ["#1b2530", "#2a6297"]}
"""The same where numbers stand on it, in the colour of text."""


def style_of(method: str) -> Style:
    """The same for a name, whatever else is drawn."""
    return styles_of([method])[method]


def styles_of(methods: Sequence[str]) -> dict[str, Style]:
    """How methods that are drawn together look: each as always, a method of several folders in its own colour.

    Where two would look alike, the later one gets the next dash of its colour, and another colour when those are used up.
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for method in sorted(dict.fromkeys(methods), key=lambda name: (name not in KNOWN, _plain(name) not in KNOWN)):
        colour, dash = _usual(_plain(method))
        same_colour = ((colour, tuple(other)) for other in DASHES)
        any_colour = ((other, tuple(free)) for free in DASHES for other in OWNERS)
        taken = set(found.values())
        choices = ((colour, dash), *same_colour, *any_colour)
        found[method] = next((one for one in choices if one not in taken), (colour, dash))
    return {method: Style(PAIRS[colour][0], dash, SHAPES[dash]) for method, (colour, dash) in found.items()}


def _plain(name: str) -> str:
    return name.partition(IN_FOLDER)[0]


def _usual(method: str) -> tuple[str, tuple[int, ...]]:
    if method in KNOWN:
        colour, dash = KNOWN[method]
    else:
        place = int.from_bytes(hashlib.sha256(method.encode("utf-8", "replace")).digest()[:4])
        colour, dash = SPARE[place % len(SPARE)]
    return colour, tuple(dash)


def owner_colours(count: int) -> list[str]:
    """One for each owner, on a light page."""
    return [PAIRS[OWNERS[number % len(OWNERS)]][0] for number in range(count)]


def owner_scale(names: Sequence[str]) -> Spec:
    """The same as a scale of these owners."""
    return {"domain": list(names), "range": owner_colours(len(names))}


def swaps() -> dict[str, str]:
    """What each colour of a light page is on a dark one."""
    pairs = dict(PAIRS.values())
    pairs |= {light: PAGE["dark"][name] for name, light in PAGE["light"].items()}
    ends = [*zip(HEAT["light"], HEAT["dark"], strict=True), *zip(PALE_HEAT["light"], PALE_HEAT["dark"], strict=True)]
    return pairs | dict(ends)


def in_mode(part: Any, mode: Mode, colours: dict[str, str] | None = None) -> Any:
    """A spec of the light page, or a part of one, as this page shows it."""
    if mode == "light":
        return part
    colours = swaps() if colours is None else colours
    if isinstance(part, dict):
        return {key: in_mode(value, mode, colours) for key, value in part.items()}
    if isinstance(part, list):
        return [in_mode(value, mode, colours) for value in part]
    return colours.get(part, part) if isinstance(part, str) else part


def config(mode: Mode) -> Spec:
    """Vega's settings: axes, legends, fonts."""
    page = PAGE[mode]
    axis = {
        "gridColor": page["line"],
        "domainColor": page["soft"],
        "tickColor": page["soft"],
        "labelColor": page["soft"],
        "titleColor": page["text"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 160,
        "titlePadding": 8,
        "labelOverlap": "greedy",
        "labelSeparation": 5,
        "labelFlush": False,
        "gridOpacity": 0.7,
    }
    legend = {
        "labelColor": page["text"],
        "titleColor": page["soft"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 180,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
        "symbolBaseFillColor": page["soft"],
        "symbolBaseStrokeColor": page["soft"],
        "orient": "bottom",
        "columns": 4,
        "titlePadding": 7,
        "layout": {"bottom": {"anchor": "start", "direction": "horizontal", "margin": 28}},
    }
    return {
        "background": page["background"],
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False},
        "axisQuantitative": {"tickCount": 7, "labelOverlap": "parity"},
        "legend": legend,
        "title": {"color": page["text"], "anchor": "start", "fontSize": 14},
        "line": {"strokeWidth": 2, "strokeJoin": "round"},
        "text": {"color": page["text"], "fontSize": 12},
        "rule": {"color": page["soft"]},
    }


def method_scales(methods: Sequence[str]) -> dict[str, Spec]:
    """Colour and dash encodings by the field `method`; all that is drawn together names the same methods."""
    styles = [styles_of(methods)[method] for method in methods]
    legend = {"title": None, "symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 2.5, "symbolSize": 300}
    domain = list(methods)
    return {
        "color": {
            "field": "method",
            "type": "nominal",
            "scale": {"domain": domain, "range": [style.colour for style in styles]},
            "legend": legend,
        },
        "strokeDash": {
            "field": "method",
            "type": "nominal",
            "scale": {"domain": domain, "range": [list(style.dash) for style in styles]},
            "legend": legend,
        },
    }


def point_scales(methods: Sequence[str], legend: bool = True, only: Sequence[str] | None = None) -> dict[str, Spec]:
    """The same with shapes, for points; `only`: not all of the page's methods have one."""
    names = list(methods if only is None else only)
    styles = [styles_of(methods)[method] for method in names]
    drawn = {"color": [style.colour for style in styles], "shape": [style.shape for style in styles]}
    shown = {"title": None, "symbolOpacity": 1} if legend else None
    return {
        channel: {
            "field": "method",
            "type": "nominal",
            "scale": {"domain": names, "range": values},
            "legend": shown,
        }
        for channel, values in drawn.items()
    }


BETWEEN_ROWS: Spec = {"grid": True, "tickBand": "extent", "domain": False, "ticks": False}
"""The axis of rows that have lanes: lines between them, so that it is seen where one row ends."""
APART: Spec = {"paddingInner": 0.25, "paddingOuter": 0.125}


def lanes(methods: Sequence[str]) -> Spec:
    """An offset by which equal values of several methods lie beside each other, not one on top of the other."""
    return {"field": "method", "type": "nominal", "scale": {"domain": list(methods)}}


def in_lanes(rows: int, methods: int) -> int:
    """The height of a figure whose rows have a lane for each method."""
    return max(140, rows * max(26, 5 * methods) + 30)
