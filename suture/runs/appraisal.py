"""How good reported models are, in every way that fits what they predict: what evaluation.json holds.

    appraise(examples_of(graph, outputs), ...)

is all an owner needs to write its own. For every client, and for all of them pooled:

    train, val, test      support, and every metric; null where there are too few examples to say
    classes               of the test nodes: precision, recall, F1 and support of every class or label
    confusion             of the test nodes: [true class][predicted class]; of labels [label][truth][said]

Legend: E examples (nodes with a role, or held-out pairs), C classes or labels, K clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suture.core.metrics import Metric, Predicted, fitting
from suture.errors import some_of
from suture.graph.batch import GraphBatch

Evaluation = dict[str, Any]
"""What evaluation.json holds."""
ROLES = {"train": 1, "val": 2, "test": 3}
POOLED = "pooled"
MOST_CLASSES = 100
"""With more there is no confusion matrix: it would have more entries than there are nodes."""


@dataclass(frozen=True)
class Examples:
    """Examples of all clients with what was predicted. Shapes: output and label as metrics get them, role, client [E]."""

    ids: tuple[str, ...]
    predicted: Predicted
    output: Tensor
    label: Tensor
    role: Tensor
    client: Tensor

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """Of other clients each."""
        first = [sum(len(part.ids) for part in parts[:number]) for number in range(len(parts))]
        return Examples(
            tuple(name for part in parts for name in part.ids),
            parts[0].predicted,
            torch.cat([part.output for part in parts]),
            torch.cat([part.label for part in parts]),
            torch.cat([part.role for part in parts]),
            torch.cat([part.client + start for part, start in zip(parts, first, strict=True)]),
        )

    def tested(self) -> Examples:
        """Those of the test."""
        at = self.role == ROLES["test"]
        return Examples(self.ids, self.predicted, self.output[at], self.label[at], self.role[at], self.client[at])


def examples_of(graph: GraphBatch, out_NC: Tensor) -> Examples:
    """Nodes with a role, or pairs, on the CPU; `out_NC` is what a network says of every node."""
    if (pairs := graph.pairs) is not None:
        score_P = (out_NC[pairs.nodes[0]] * out_NC[pairs.nodes[1]]).sum(1)
        parts = (score_P, pairs.label, pairs.role, graph.segments.client[pairs.nodes[0]])
        return Examples(graph.ids, "link", *(part[pairs.role > 0].cpu() for part in parts))
    nodes = (graph.role > 0).nonzero().squeeze(1)
    outputs = graph.target.in_units(out_NC[nodes])
    parts = (outputs, graph.y[nodes], graph.role[nodes], graph.segments.client[nodes])
    return Examples(graph.ids, graph.target.kind, *(part.cpu() for part in parts))


def appraise(examples: Examples, chosen: Metric, class_names: Sequence[str] = ()) -> Evaluation:
    """Everything; `chosen` is the metric that the run was judged by."""
    ours = fitting(examples.predicted)
    metrics = ours if chosen in ours else (chosen, *ours)
    clients = len(examples.ids)
    of_clients = [_roles(row) for row in _measured(examples, metrics, examples.client, clients)]
    pooled = _roles(_measured(examples, metrics, torch.zeros_like(examples.client), 1)[0])
    evaluation: Evaluation = {
        "predicts": examples.predicted,
        "metric": chosen.name,
        "smaller_is_better": [metric.name for metric in metrics if not metric.greater_is_better],
    }
    if examples.predicted in ("class", "labels"):
        width = examples.output.shape[1]
        names = [str(name) for name in class_names] if len(class_names) == width else [str(c) for c in range(width)]
        evaluation["classes"] = names
        counted = tables(examples)
        for row, table in zip([*of_clients, pooled], [*counted, counted.sum(0)], strict=True):
            row |= _by_class(table, names)
    return evaluation | {"clients": dict(zip(examples.ids, of_clients, strict=True)), POOLED: pooled}


def _measured(examples: Examples, metrics: Sequence[Metric], group_E: Tensor, groups: int) -> list[list[dict[str, Any]]]:
    """Support and metrics of every group and role."""
    cell, cells = group_E * len(ROLES) + examples.role - 1, groups * len(ROLES)
    support = torch.bincount(cell, minlength=cells).tolist()
    told = {metric.name: metric.measure(examples.output, examples.label, cell, cells).tolist() for metric in metrics}
    flat = [
        {"support": number} | {name: value[at] if abs(value[at]) < torch.inf else None for name, value in told.items()}
        for at, number in enumerate(support)
    ]
    return [flat[start : start + len(ROLES)] for start in range(0, cells, len(ROLES))]


def _roles(row: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return dict(zip(ROLES, row, strict=True))


def tables(examples: Examples) -> Tensor:
    """Test nodes of each client: by true and predicted class [K, C, C], or of each label by truth and said [K, C, 2, 2]."""
    tested, clients = examples.tested(), len(examples.ids)
    width = examples.output.shape[1]
    if examples.predicted == "class":
        cell = (tested.client * width + tested.label) * width + tested.output.argmax(1)
        return torch.bincount(cell, minlength=clients * width * width).view(clients, width, width)
    known = ~tested.label.isnan()
    row, which = known.nonzero(as_tuple=True)
    truth, said = (tested.label[known] > 0.5).long(), (tested.output[known] > 0).long()
    cell = ((tested.client[row] * width + which) * 2 + truth) * 2 + said
    return torch.bincount(cell, minlength=clients * width * 4).view(clients, width, 2, 2)


def _by_class(table: Tensor, names: Sequence[str]) -> dict[str, Any]:
    if table.ndim == 3:
        right, true, said = table[:, 1, 1], table[:, 1].sum(1), table[:, :, 1].sum(1)
    else:
        right, true, said = table.diagonal(), table.sum(1), table.sum(0)
    right = right.double()
    columns = {"precision": right / said, "recall": right / true, "f1": 2 * right / (true + said)}
    rows = [
        {"class": name}
        | {key: None if value[at].isnan() else float(value[at]) for key, value in columns.items()}
        | {"support": int(true[at])}
        for at, name in enumerate(names)
    ]
    return {"classes": rows, "confusion": table.tolist() if len(names) <= MOST_CLASSES else None}


def warnings_of(examples: Examples, evaluation: Evaluation) -> tuple[str, ...]:
    """What a reader of the numbers must know: outputs that are no numbers, and tests or models that know one class only."""
    found = []
    broken = sorted(set(examples.client[~_rowwise_finite(examples.output)].tolist()))
    if broken:
        found.append(
            f"what the model of {some_of([examples.ids[k] for k in broken])} says is not a number: training diverged; "
            "try a lower training.lr"
        )
    if examples.predicted != "class":
        return tuple(found)
    counted, names = tables(examples), evaluation["classes"]
    together = counted.sum(0)
    if int((together.sum(1) > 0).sum()) == 1:
        only = names[int(together.sum(1).argmax())]
        return (*found, f"all test nodes are of class {only}, so these scores say nothing; label nodes of other classes too")
    if _says_one(together):
        said = int(together.sum(0).argmax())
        others = float(1 - together[said].sum() / together.sum())
        found.append(
            f"the model says class {names[said]} of every test node, though {100 * others:.1f} % are of another class; "
            "try training.class_weights=balanced, more rounds, or another learning rate"
        )
        return tuple(found)
    alone = [name for name, table in zip(examples.ids, counted, strict=True) if _says_one(table)]
    if alone:
        found.append(
            f"the model of {some_of(alone)} says the same class of every test node there, though there are several; "
            "try training.class_weights=balanced, more rounds, or another learning rate"
        )
    return tuple(found)


def _says_one(table_CC: Tensor) -> bool:
    return int((table_CC.sum(1) > 0).sum()) > 1 and int((table_CC.sum(0) > 0).sum()) == 1


def _rowwise_finite(output: Tensor) -> Tensor:
    finite = output.isfinite()
    return finite if finite.ndim == 1 else finite.all(1)
