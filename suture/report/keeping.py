"""What runs kept for drawing alone: sketch.json, views.json and kept/, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch

from suture.errors import IntegrityError
from suture.report.records import Kept, Numbers, Scatter, Sketch
from suture.report.trusting import checked_file, json_of, listed, number, table, text, texts, whole, wholes
from suture.runs.folder import KEPT, SKETCH, VIEWS
from suture.runs.sketch import BOUNDARY, LINKS, MOST_CLASSES, NODES

OWNERS = 2000
MOST_ROUNDS, MOST_CLIENTS, POINTS = 60, 100, 2000
LARGEST_KEPT = 4_000_000


def read_sketch(run: Path) -> Sketch | None:
    """The sketch of a run's cut; None: it has none."""
    told = json_of(run / SKETCH)
    if told is None:
        return None
    owners, classes = texts(told["owners"], OWNERS), texts(told["classes"], MOST_CLASSES)
    counts = {name: whole(told[name]) for name in ("nodes", "links", "lost_links", "boundary_links")}
    node_owner = wholes(told["node_owner"], NODES, len(owners))
    pairs = [wholes(pair, 2, len(node_owner)) for pair in listed(told["edges"], LINKS)]
    labels = tuple(wholes(row, MOST_CLASSES) for row in listed(told["labels"], OWNERS))
    if labels and (len(labels) != len(owners) or any(len(row) != len(classes) for row in labels)):
        raise IntegrityError(f"{SKETCH} counts labels of other owners than it names")
    return Sketch(
        owners=owners,
        sizes=wholes(told["sizes"], OWNERS),
        classes=classes,
        labels=labels,
        lost=tuple(wholes(row, OWNERS) for row in _square(told["lost"], len(owners))),
        distances=tuple(tuple(number(one) for one in row) for row in _square(told["distances"], len(owners))),
        node_owner=node_owner,
        node_class=wholes(told["node_class"], NODES, max(len(classes), 1)),
        edges=tuple((first, second) for first, second in pairs if first >= 0 and second >= 0),
        boundary=wholes(told["boundary"], BOUNDARY, len(node_owner)),
        **counts,
    )


def _square(told: object, size: int) -> list[Any]:
    """A matrix of owners; empty where it was left out."""
    rows = [listed(row, OWNERS) for row in listed(told, OWNERS)]
    if rows and (len(rows) != size or any(len(row) != size for row in rows)):
        raise IntegrityError(f"{SKETCH} has a matrix of other owners than it names")
    return rows


def read_scatter(run: Path) -> Scatter | None:
    """Test nodes in two dimensions; None: the run has no views."""
    views = json_of(run / VIEWS)
    if views is None or views.get("scatter") is None:
        return None
    told = table(views["scatter"])
    names, owners = texts(told["classes"], 1000), texts(told["clients"], OWNERS)
    x, y = ([number(one) or 0.0 for one in listed(told[axis], POINTS)] for axis in ("x", "y"))
    columns = {key: wholes(told[key], POINTS, len(names)) for key in ("label", "said")}
    client = wholes(told["client"], POINTS, len(owners))
    if len({len(x), len(y), len(client), *map(len, columns.values())}) > 1:
        raise IntegrityError(f"{VIEWS} has columns of different lengths")
    return Scatter(
        tuple(x),
        tuple(y),
        tuple(names[place] for place in columns["label"]),
        tuple(names[place] for place in columns["said"]),
        tuple(owners[place] for place in client),
        number(told.get("explained")),
    )


def read_kept(run: Path) -> Kept:
    """Similarities of at most `MOST_ROUNDS` rounds, evenly chosen, the last among them."""
    folder = run / KEPT
    if folder.is_symlink() or not folder.is_dir():
        return Kept()
    files = sorted(folder.glob("round-*.safetensors"))[:100_000]
    if len(files) > MOST_ROUNDS:
        last = len(files) - 1
        files = [files[round(number * last / (MOST_ROUNDS - 1))] for number in range(MOST_ROUNDS)]
    found: dict[int, tuple[Numbers, ...]] = {}
    for file in files:
        if checked_file(file) is None or file.stat().st_size > LARGEST_KEPT:
            continue
        try:
            tensors = safetensors.torch.load_file(file)
        except Exception as error:  # the library has errors of its own, and of Rust
            raise IntegrityError(f"{KEPT}/{text(file.name)} is damaged") from error
        matrix = tensors.get("similarity")
        if matrix is not None and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] <= MOST_CLIENTS:
            rows = matrix.double().tolist()
            found[int(file.stem.removeprefix("round-"))] = tuple(tuple(number(one) for one in row) for row in rows)
    return Kept(found)
