"""What a page of runs shows beside the list's lines: the figure of their curves, and what their audit says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suture.core.storage import real_path
from suture.dashboard.curves import courses_of
from suture.dashboard.index import Index
from suture.dashboard.rows import Row
from suture.federation.audit import AUDIT, read_audit
from suture.report.figures.figure import quantity, spec_of, tips
from suture.report.theme import IN_FOLDER, Spec, styles_of
from suture.report.trusting import NAME, SENTENCE, text

MOST_AUDIT_LINES = 200
MOST_BYTES_OF_AUDIT = 16 << 20


def series_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What is drawn: every method of every row, with a name that says which folder where that is in question."""
    everyone = [method for row in rows for method in row.methods]
    drawn = [
        (row.id, method, f"{method}{IN_FOLDER}{row.name}" if everyone.count(method) > 1 else method)
        for row in rows
        for method in row.methods
    ]
    styles = styles_of([label for *_, label in drawn])
    return [
        {"id": id, "method": method, "label": label, "colour": styles[label].colour, "dash": list(styles[label].dash)}
        for id, method, label in drawn
    ]


def figure_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Curves as report.js draws them: thin ones for every run, thick ones for their means; pages fill in the tables."""
    series = series_of(rows)
    labels = [one["label"] for one in series]
    colour = {"domain": labels, "range": [one["colour"] for one in series]}
    dash = {"domain": labels, "range": [one["dash"] for one in series]}
    x = quantity("round", "round", axis={"tickMinStep": 1, "tickCount": 10}, scale={"nice": False, "zero": False})
    y = quantity("value", None, scale={"zero": False, "nice": True}, axis={"tickCount": 6})
    coloured: Spec = {"field": "method", "type": "nominal", "scale": colour, "legend": None}
    dashed: Spec = {"field": "method", "type": "nominal", "scale": dash, "legend": None}
    thin = {
        "data": {"name": "runs"},
        "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.4},
        "encoding": {"x": x, "y": y, "color": coloured, "detail": {"field": "seed", "type": "nominal"}},
    }
    thick = {
        "data": {"name": "means"},
        "mark": {"type": "line", "strokeWidth": 2.5},
        "encoding": {
            "x": x,
            "y": y,
            "color": coloured,
            "strokeDash": dashed,
            "tooltip": tips(method="method", round="round", value="mean|.4g", seeds="seeds"),
        },
    }
    ends = {
        "data": {"name": "ends"},
        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": coloured},
    }
    spec = spec_of("means", height=300, layer=[thin, thick, ends])
    return {"spec": spec, "series": series, "controls": [], "tables": {}, "dense": False}


def comparing(index: Index, rows: Sequence[Row]) -> dict[str, Any]:
    """Several rows with their curves."""
    runs: dict[str, Any] = {}
    for row in rows:
        for course in courses_of(index.path(row.id), row):
            course.more()
            runs[f"{row.id} {course.name}"] = course.whole() | {"id": row.id}
    return {"runs": runs, "figure": figure_of(rows)}


def audit_of(folder: Path, root: Path) -> list[dict[str, str]]:
    """What the coordinator wrote down of this run, if its log lies below the root: the last lines, as texts."""
    path = folder.parent.parent / AUDIT
    if not path.is_file() or path.is_symlink() or not real_path(path).is_relative_to(root):
        return []
    if path.stat().st_size > MOST_BYTES_OF_AUDIT:
        return [{"event": "the audit log is too long to be shown here; see: suture coordinator audit"}]
    lines = [line for line in read_audit(path) if line.get("run") in (folder.name, None)]
    last = lines[-MOST_AUDIT_LINES:]
    return [{text(str(key), NAME): text(str(value), SENTENCE) for key, value in line.items()} for line in last]
