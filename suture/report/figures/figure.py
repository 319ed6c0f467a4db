"""What a figure is: a Vega-Lite spec, the tables it draws, and words for those who do not see it.

    spec      one view or layers, `data` by name; fields are ours and fixed, so that names of others are data and no more
    tables    by name, column by column: {"round": [1, 2], "method": ["fedavg", "fedavg"]}
    controls  what a reader may choose: a table that has a control's field is drawn with the rows of its value alone

A table with a field `method` obeys the page's legend of methods. Everything is drawn from the same figure: pages by
report.js, files by `suture.report.drawing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from suture.report.theme import Spec

Columns = Mapping[str, Sequence[Any]]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH, HEIGHT = 640, 320
"""Of a picture in a file; a page decides the width by itself."""
DIGITS = 5
FEW = 12
"""Up to so many rounds, points are drawn on a line."""


@dataclass(frozen=True)
class Control:
    """A choice of the reader: the rows with one value of a field are drawn."""

    field: str
    label: str
    values: tuple[Any, ...]
    kind: Literal["select", "range"] = "select"
    start: int = 0
    """Which of the values is shown first."""
    titles: bool = False
    """The value is what the vertical axis measures."""


@dataclass(frozen=True)
class Figure:
    """See the module docstring."""

    name: str
    """For files and addresses: lower-case letters, digits and dashes."""
    title: str
    caption: str
    alternative: str
    """What it shows, in words, for those who do not see it."""
    spec: Spec
    tables: Mapping[str, Columns]
    controls: tuple[Control, ...] = ()
    width: int = WIDTH
    """Of a picture in a file."""
    wide: bool = False
    """A page gives it the whole width."""
    dense: bool = False
    """Thousands of marks: a page draws them on a canvas."""

    def as_json(self) -> dict[str, Any]:
        """For report.js."""
        return {
            "name": self.name,
            "spec": self.spec,
            "tables": {name: packed(columns) for name, columns in self.tables.items()},
            "controls": [vars(control) for control in self.controls],
            "dense": self.dense,
        }

    def titled(self, start: Mapping[str, Any] | None = None) -> Spec:
        """The spec, whose vertical axis says what it measures where a control decides that."""
        named = next((one for one in self.controls if one.titles), None)
        if named is None:
            return self.spec
        title = (start or {}).get(named.field, named.values[named.start])
        encoding = {**self.spec["encoding"], "y": {**self.spec["encoding"]["y"], "title": title}}
        return {**self.spec, "encoding": encoding}

    def chosen(self, start: Mapping[str, Any] | None = None) -> dict[str, list[dict[str, Any]]]:
        """The rows of every table that the controls leave, as they stand at first or as `start` says by field."""
        wanted = {one.field: one.values[one.start] for one in self.controls if one.values} | dict(start or {})
        return {name: _rows(columns, wanted) for name, columns in self.tables.items()}


def _rows(columns: Columns, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(columns)
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True))
    asked = {name: value for name, value in wanted.items() if name in columns}
    return [row for row in rows if all(row[name] == value for name, value in asked.items())]


def columns(names: str, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows as columns; `names` are theirs, with spaces between."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names.split())}


def packed(columns: Columns) -> dict[str, Any]:
    """Columns as a page gets them: texts once, and by number where they stand; numbers without needless digits."""
    return {name: _packed(values) for name, values in columns.items()}


def _packed(values: Sequence[Any]) -> Any:
    if any(isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        places = {word: place for place, word in enumerate(words)}
        return {"of": words, "at": [places[value] for value in values]}
    return [rounded(value) for value in values]


def rounded(value: Any) -> Any:
    """A number with the digits that can be seen; what is no number (NaN) as None, for JSON."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def quantity(name: str, title: str | None, **more: Any) -> Spec:
    """An encoding of a number."""
    return {"field": name, "type": "quantitative", "title": title, **more}


def category(name: str, title: str | None, **more: Any) -> Spec:
    """An encoding of a name, in the order of the data."""
    return {"field": name, "type": "nominal", "title": title, "sort": None, **more}


def tips(**titles: str) -> list[Spec]:
    """What is told under the pointer: fields with their titles; a title that ends with `|.2f` says the format."""
    told = []
    for name, title in titles.items():
        words, _, form = title.partition("|")
        told.append({"field": name, "title": words, **({"format": form, "type": "quantitative"} if form else {})})
    return told


def under_pointer(field: str) -> Spec:
    """A selection of all that has the same value as what the pointer is over."""
    return {"type": "point", "on": "pointerover", "fields": [field], "clear": "pointerout"}


def dotted(places: int) -> Spec | bool:
    """Points on a line with so few of them: one alone would not be seen as a line."""
    return {"size": 30} if places <= FEW else False


def spec_of(table: str, height: int = HEIGHT, **parts: Any) -> Spec:
    """A spec that draws one table."""
    return {"$schema": SCHEMA, "data": {"name": table}, "width": "container", "height": height, **parts}
