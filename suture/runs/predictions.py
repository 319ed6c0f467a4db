"""Predictions as a table: one line a node, under the id that its owner knows it by."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from torch import Tensor

from suture.graph.batch import GraphBatch
from suture.graph.data import known_labels
from suture.graph.target import Target

SEVERAL = ";"
"""Between the labels of one node."""


def predictions_csv(graph: GraphBatch, out_NC: Tensor, names: Sequence[str], class_names: Sequence[str] = ()) -> str:
    """A table of `out_NC`, what a network says of the nodes of `graph`, whose ids are `names`.

    id, labelled (1: it has a label of its own), prediction; then the probability of every class or label. Numbers that are
    predicted have a column each, `prediction` if there is one.
    """
    target, width = graph.target, int(out_NC.shape[1])
    classes = [str(one) for one in class_names] if len(class_names) == width else [str(number) for number in range(width)]
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(["id", "labelled", *_header(target, classes)])
    labelled = known_labels(graph.y).long().tolist()
    for name, known, said in zip(names, labelled, _said(target, out_NC, classes), strict=True):
        rows.writerow([name, known, *said])
    return lines.getvalue()


def _header(target: Target, classes: Sequence[str]) -> list[str]:
    if target.kind == "value":
        return ["prediction"] if len(classes) == 1 else [f"prediction {name}" for name in classes]
    return ["prediction", *(f"probability {name}" for name in classes)]


def _said(target: Target, out_NC: Tensor, classes: Sequence[str]) -> Iterator[list[object]]:
    """What stands behind the id of each node."""
    probability, decided = target.probabilities(out_NC).tolist(), target.decided(out_NC).tolist()
    for row, choice in zip(probability, decided, strict=True):
        if target.kind == "value":
            yield [f"{number:.6g}" for number in row]
            continue
        chosen = (
            classes[choice]
            if target.kind == "class"
            else SEVERAL.join(name for name, yes in zip(classes, choice, strict=True) if yes)
        )
        yield [chosen, *(f"{share:.6f}" for share in row)]
