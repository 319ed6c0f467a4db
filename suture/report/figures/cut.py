"""The cut: the graph with its owners, the links nobody holds, and how unlike owners are in labels and features."""

from __future__ import annotations

import math
from typing import Any

from suture.report.figures.figure import Control, Figure, category, columns, quantity, spec_of, tips
from suture.report.figures.heat import heat_layers, named, slanted, square
from suture.report.figures.layout import placed
from suture.report.records import Gathered, Sketch
from suture.report.text import count
from suture.report.theme import PAGE, PAIRS, Spec, owner_scale

INSIDE, LOST, OUT = "held by an owner", "lost: between owners", "leads out of the graph"
MOST_CUTS = 3
STUB = 0.03
MOST_OWNERS = 50


def cuts(gathered: Gathered) -> dict[str, Sketch]:
    """The first few different cuts, by what they are called."""
    found: dict[str, Sketch] = {}
    for run in gathered.runs:
        if run.sketch is not None and run.sketch not in found.values() and len(found) < MOST_CUTS:
            several = len({one.dataset for one in gathered.runs}) > 1
            found.setdefault(f"{run.dataset}, seed {run.seed}" if several else f"seed {run.seed}", run.sketch)
    return found


def graph(gathered: Gathered) -> Figure | None:
    """A sample of the graph, drawn; None: no run has a sketch of its cut."""
    found = cuts(gathered)
    if not found:
        return None
    nodes: list[tuple[Any, ...]] = []
    links: list[tuple[Any, ...]] = []
    for name, sketch in found.items():
        more_nodes, more_links = _drawn(name, sketch)
        nodes, links = nodes + more_nodes, links + more_links
    owners = list(dict.fromkeys(owner for sketch in found.values() for owner in sketch.owners))
    lost, leads_out = (any(getattr(one, name) for one in found.values()) for name in ("lost_links", "boundary_links"))
    layers = _layers(owners, [INSIDE, *([LOST] if lost else []), *([OUT] if leads_out else [])])
    return Figure(
        "graph",
        "The cut graph",
        _words(next(iter(found.values()))),
        f"A drawing of linked nodes, coloured by {count(len(owners), 'owner')}; links between owners are dashed.",
        spec_of("nodes", 540, layer=layers, resolve={"scale": {"color": "independent", "strokeDash": "independent"}}),
        {"nodes": columns("cut x y owner label", nodes), "links": columns("cut x y x2 y2 kind", links)},
        (Control("cut", "Cut", tuple(found)),),
        wide=True,
        dense=True,
    )


def _layers(owners: list[str], kinds: list[str]) -> list[Spec]:
    """Links below, nodes above."""
    some = len(owners) <= 12
    flat: Spec = {"axis": None, "scale": {"domain": [-0.04, 1.04], "nice": False}}
    soft, red = PAGE["light"]["soft"], PAIRS["red"][0]
    looks = {INSIDE: ([1, 0], soft), LOST: ([4, 3], red), OUT: ([2, 2], soft)}
    return [
        {
            "data": {"name": "links"},
            "mark": {"type": "rule", "strokeWidth": 1},
            "encoding": {
                "x": quantity("x", None, **flat),
                "y": quantity("y", None, **flat),
                "x2": {"field": "x2"},
                "y2": {"field": "y2"},
                "strokeDash": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {"domain": kinds, "range": [looks[kind][0] for kind in kinds]},
                    "legend": {"title": "links", "symbolType": "stroke", "symbolSize": 300},
                },
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {"domain": kinds, "range": [looks[kind][1] for kind in kinds]},
                    "legend": {"title": "links", "symbolType": "stroke"},
                },
                "opacity": {"condition": {"test": f"datum.kind === '{INSIDE}'", "value": 0.35}, "value": 0.7},
            },
        },
        {
            "data": {"name": "nodes"},
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 1, "strokeWidth": 0},
            "encoding": {
                "x": quantity("x", None, **flat),
                "y": quantity("y", None, **flat),
                "fill": {
                    "field": "owner",
                    "type": "nominal",
                    "scale": owner_scale(owners),
                    "legend": {"title": "owners", "symbolType": "circle", "symbolStrokeWidth": 0} if some else None,
                },
                "tooltip": tips(owner="owner", label="class"),
            },
        },
    ]


def _words(sketch: Sketch) -> str:
    share = 100 * sketch.lost_links / max(sketch.links, 1)
    lost = f"of which {sketch.lost_links:,} ({share:.1f} %) lie between owners, so that nobody holds them"
    lost = lost if sketch.lost_links else "none of them between owners"
    whole = len(sketch.node_owner) == sketch.nodes
    how = "All of them are drawn." if whole else f"{len(sketch.node_owner):,} nodes are drawn, of each owner its share."
    out = f" {sketch.boundary_links:,} links lead to nodes in nobody's table." if sketch.boundary_links else ""
    many = " Colours repeat after ten owners." if len(sketch.owners) > 10 else ""
    return (
        f"{sketch.nodes:,} nodes of {count(len(sketch.owners), 'owner')}, {sketch.links:,} links, {lost}.{out} {how}{many}"
    )


def _drawn(name: str, sketch: Sketch) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    place = placed(sketch.node_owner, sketch.edges).round(4).tolist()
    names = [sketch.classes[label] if 0 <= label < len(sketch.classes) else "not known" for label in sketch.node_class]
    owner = [sketch.owners[number] if number >= 0 else "nobody" for number in sketch.node_owner]
    nodes = [(name, *place[at], owner[at], label) for at, label in enumerate(names)]
    links = [
        (name, *place[a], *place[b], INSIDE if sketch.node_owner[a] == sketch.node_owner[b] else LOST)
        for a, b in sketch.edges
    ]
    for turn, node in enumerate(sketch.boundary):
        x, y = place[node]
        links.append((name, x, y, x + STUB * math.cos(2.4 * turn), y + STUB * math.sin(2.4 * turn), OUT))
    return nodes, links


def labels(gathered: Gathered) -> Figure | None:
    """How often each class is at each owner."""
    rows: list[tuple[Any, ...]] = []
    for name, sketch in cuts(gathered).items():
        for owner, counts in zip(sketch.owners[:MOST_OWNERS], sketch.labels, strict=False):
            total = max(sum(counts), 1)
            rows += [
                (name, owner, label, 100 * number / total, number)
                for label, number in zip(sketch.classes, counts, strict=True)
            ]
    if not rows:
        return None
    owners = list(dict.fromkeys(row[1] for row in rows))
    classes = list(dict.fromkeys(row[2] for row in rows))
    title = "tenths of all values" if all(name.startswith("tenth ") for name in classes) else "class"
    x, y = category("label", title, axis=named(classes)), category("owner", None)
    told = tips(owner="owner", label="class", share="% of its nodes|.1f", number="nodes")
    layers = heat_layers(x, y, "share", "% of row", told, form=".0f" if len(classes) <= 10 else None)
    return Figure(
        "labels",
        "Labels at each owner",
        "Each row adds up to 100 % of an owner's labelled nodes. Rows that differ are label shift.",
        f"A table of {count(len(owners), 'owner')} by {count(len(classes), 'class')} with the share of each class.",
        spec_of("labels", square(len(owners)), layer=layers),
        {"labels": columns("cut owner label share number", rows)},
        (Control("cut", "Cut", tuple(dict.fromkeys(row[0] for row in rows))),),
    )


def between(gathered: Gathered) -> Figure | None:
    """Owners against owners: links lost between them, and how unlike their features are."""
    rows: list[tuple[Any, ...]] = []
    told_of = {
        "links lost between two owners": "Links that the cut took away",
        "distance of mean features (1 - cosine)": "How far apart owners' mean features are: 0 alike, 1 nothing in common",
    }
    whats = tuple(told_of)
    found = cuts(gathered)
    there = [
        what
        for what, part in zip(whats, ("lost", "distances"), strict=True)
        if any(any(map(any, getattr(sketch, part))) for sketch in found.values())
    ]
    for name, sketch in found.items():
        some = sketch.owners[:MOST_OWNERS]
        for what, matrix in zip(whats, (sketch.lost, sketch.distances), strict=True):
            for i, one in enumerate(some if what in there else ()):
                rows += [(name, what, one, other, matrix[i][j]) for j, other in enumerate(some) if i != j]
    if not rows:
        return None
    owners = list(dict.fromkeys(row[2] for row in rows))
    told = tips(one="owner", other="owner", value="value|.4~g")
    x = category("other", None, axis=slanted(len(owners)), scale={"domain": owners})
    y = category("one", None, scale={"domain": owners})
    layers = heat_layers(x, y, "value", None, told, form=".3~s" if len(owners) <= 8 else None)
    return Figure(
        "between",
        "Between owners",
        " ".join(f"{told_of[what]}." for what in there),
        f"A square of {count(len(owners), 'owner')} by as many, darker where more is lost, or more differs.",
        spec_of("between", square(len(owners)), layer=layers),
        {"between": columns("cut what one other value", rows)},
        (
            Control("what", "Show", tuple(dict.fromkeys(row[1] for row in rows))),
            Control("cut", "Cut", tuple(dict.fromkeys(row[0] for row in rows))),
        ),
    )
