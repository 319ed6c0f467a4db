"""Census: what owners tell of their data before a run, as sums over all of their nodes.

    1  client k    n_k, and per node: x, |x|, x != 0, x not in {0, 1}; its class if it trains; edges and their weights
       server      the means over everybody's nodes
    2  client k    per node: ((x - mean) / mean |x|)^2, and so for the numbers to predict
       server      deviations

Only the sums are needed, so they can be summed securely. Squares are of numbers that have been centred and scaled: those of
raw ones would lose a deviation that is small beside the mean, and would not fit fixed-point sums. The outcome is a
`Statistics`: scales of features and labels, class counts. It is no method to choose; runs that need it carry it out first.

Legend: K clients, F features, C classes or numbers to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.message import Kind, Message, Model, Nothing, Record
from suture.core.tree import mean
from suture.graph.batch import GraphBatch
from suture.graph.scaling import Statistics
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Method, Phase, Task, step

UNIT = 2.0**-16
"""A node's weight: sums of many then fit the fixed-point numbers of secure aggregation."""
CONSTANT = 1e-8
"""A deviation below this part of the mean size is rounding: the column has one value."""
MOSTLY_ZERO = 0.5
"""A column with fewer non-zeros is divided, not shifted."""
ROWS_AT_ONCE = 65_536

Told = Annotated[Tensor, Kind.STATISTICS]


@dataclass(frozen=True)
class Totals(Message):
    """Means over a client's nodes. Shapes: mean, size, filled, other [K, F]; label, label_size [K, C]; others [K]."""

    mean: Told
    size: Told
    """Of |x|."""
    filled: Told
    """Share that is not 0."""
    other: Told
    """Share that is neither 0 nor 1."""
    label: Told
    """Share that trains with this class or label; or training nodes' numbers."""
    label_size: Told
    """Of |y|."""
    trained: Told
    edges: Told
    """Edges a node."""
    edge_weight: Told
    """Of a node's edges together."""
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Centre(Message):
    """What deviations are measured from and in, of everybody. Shapes: mean, size [K, F]; label, label_size [K, C]."""

    mean: Told
    size: Told
    label: Told
    label_size: Told


@dataclass(frozen=True)
class Spread(Message):
    """Mean squared deviations. Shapes: square [K, F], label_square [K, C], weight [K]."""

    square: Told
    label_square: Told
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Counted(Record):
    """All that is known of everybody, one row; squares are zero until the second exchange."""

    totals: dict[str, Tensor]
    nodes: float
    square: Tensor
    label_square: Tensor


@dataclass(frozen=True)
class Census(Method[Counted, Nothing]):
    """The two exchanges above."""

    name: ClassVar[str] = "census"
    summary: ClassVar[str] = "sums over the owners' nodes, before a run"
    sums: ClassVar[tuple[str, ...]] = ("count", "measure")
    of_data: ClassVar[tuple[str, ...]] = sums

    def init_server(self, task: Task) -> Counted:
        """Nothing is known yet."""
        zero = torch.zeros(1, 0, dtype=torch.float64)
        return Counted(("server",), {}, 0.0, zero, zero)

    def init_clients(self, clients: Clients[Nothing]) -> Nothing:
        """Clients keep nothing."""
        return Nothing(clients.ids)

    def plan(self) -> tuple[Phase[Counted], ...]:
        """The two exchanges."""
        return (Phase("count", self.ask_totals), Phase("measure", self.ask_spread))

    def ask_totals(self, server: Counted, cohort: Cohort) -> Counted:
        """Exchange 1."""
        told = cohort.ask(self.count, Nothing(cohort.ids))
        named = {name: value for name, value in told.tensors().items() if name != "weight"}
        return replace(server, totals=mean(named, told.weight), nodes=float(told.weight.double().sum() / UNIT))

    def ask_spread(self, server: Counted, cohort: Cohort) -> Counted:
        """Exchange 2."""
        known, everyone = server.totals, len(cohort.ids)
        trained = known["trained"].unsqueeze(1)
        centre = (
            known["mean"],
            _above_zero(known["size"]),
            known["label"] / trained,
            _above_zero(known["label_size"] / trained),
        )
        told = cohort.ask(self.measure, Centre(cohort.ids, *(one.expand(everyone, -1) for one in centre)))
        squares = mean({"square": told.square, "label": told.label_square}, told.weight)
        return replace(server, square=squares["square"], label_square=squares["label"])

    @step
    def count(self, clients: Clients[Nothing], message: Nothing) -> tuple[Nothing, Totals]:
        """Client side of exchange 1."""
        graph, nodes = clients.graph, clients.graph.sizes.double()
        each = torch.stack([column_sums(graph, k) for k in range(len(graph.ids))]) / nodes.view(-1, 1, 1)  # [K, 4, F]
        label, training = _training_labels(graph, clients.task.classes), graph.train.segments
        owner = graph.segments.client[graph.edge_index[1]]
        degree = torch.bincount(owner, minlength=len(graph.ids)).double()
        weight = degree if graph.edge_weight is None else torch.bincount(owner, graph.edge_weight.double(), len(graph.ids))
        return clients.state, Totals(
            graph.ids,
            mean=each[:, 0],
            size=each[:, 1],
            filled=each[:, 2],
            other=each[:, 3],
            label=training.sum(label) / nodes.unsqueeze(1),
            label_size=training.sum(label.abs()) / nodes.unsqueeze(1),
            trained=graph.num_train / nodes,
            edges=degree / nodes,
            edge_weight=weight / nodes,
            weight=(nodes * UNIT).float(),
        )

    @step
    def measure(self, clients: Clients[Nothing], message: Centre) -> tuple[Nothing, Spread]:
        """Client side of exchange 2."""
        graph, nodes, training = clients.graph, clients.graph.sizes.double(), clients.graph.train.segments
        squares = [square_sums(graph, k, message.mean[k], message.size[k]) for k in range(len(graph.ids))]
        label, owner = _training_labels(graph, clients.task.classes), training.client
        away = ((label - message.label[owner]) / message.label_size[owner]).square()
        square, label_square = (one / nodes.unsqueeze(1) for one in (torch.stack(squares), training.sum(away)))
        return clients.state, Spread(graph.ids, square, label_square, (nodes * UNIT).float())

    def deploy(self, server: Counted, ids: Sequence[str]) -> Message:
        """There is no model."""
        return Nothing(tuple(ids))

    def assemble(self, clients: Clients[Nothing], deployed: Message) -> Model:
        """There is no model."""
        return Model(clients.ids, {})


def statistics_of(counted: Counted, marked: Sequence[bool] | None, kind: TargetKind, standardise: bool) -> Statistics:
    """The scales and counts that follow; `marked` columns are put on one scale, by default all that are not of 0 and 1."""
    totals = {name: value[0] for name, value in counted.totals.items()}
    trained = counted.nodes * float(totals["trained"])
    found = Statistics(nodes=round(counted.nodes), trained=round(trained))
    if standardise:
        chosen = totals["other"] > 0 if marked is None else torch.tensor(marked)
        shifted = chosen & (totals["filled"] >= MOSTLY_ZERO)
        centred, size = counted.square[0], _above_zero(totals["size"])
        # E[x^2] = E[(x - m)^2] + m^2, all in units of the mean |x|.
        square = torch.where(shifted, centred, centred + (totals["mean"] / size).square())
        scale = torch.where(chosen & (square > CONSTANT**2), square.sqrt() * size, 1.0)
        shift = torch.where(shifted, totals["mean"], 0.0)
        found = replace(found, shift=tuple(shift.tolist()), scale=tuple(scale.tolist()))
    if kind == "value":
        size = _above_zero(totals["label_size"] / totals["trained"])
        deviation = (counted.label_square[0] / totals["trained"]).sqrt() * size
        centre = (totals["label"] / totals["trained"]).tolist()
        found = replace(found, target_shift=tuple(centre), target_scale=tuple(_above_zero(deviation).tolist()))
    else:
        found = replace(found, classes=tuple(float(round(n)) for n in (totals["label"] * counted.nodes).tolist()))
    edges = float(totals["edges"])
    return replace(found, edge_scale=float(totals["edge_weight"]) / edges if edges else 1.0)


def _above_zero(value: Tensor) -> Tensor:
    """One in place of zero, to divide by."""
    return torch.where(value > 0, value, 1.0)


def _training_labels(graph: GraphBatch, classes: int) -> Tensor:
    """Labels of the training nodes, float64 [B, C]; classes as zeros and a one."""
    y = graph.y[graph.train.nodes]
    return y.double() if y.is_floating_point() else torch.nn.functional.one_hot(y, classes).double()


def column_sums(graph: GraphBatch, k: int) -> Tensor:
    """Of one client's features, float64 [4, F]: x, |x|, x != 0, x not in {0, 1}."""
    rows = slice(*graph.segments.bounds[k : k + 2])
    matrix, width = graph.x.matrix, graph.x.width
    if isinstance(matrix, SparseMatrix):
        column, value = _entries(matrix, rows)
        parts = (value, value.abs(), value != 0, (value != 0) & (value != 1))
        return torch.stack([torch.bincount(column, part.double(), width) for part in parts])
    sums = torch.zeros(4, width, dtype=torch.float64, device=matrix.device)
    for block in torch.split(matrix[rows], ROWS_AT_ONCE):
        parts = (block, block.abs(), block != 0, (block != 0) & (block != 1))
        sums += torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
    return sums


def square_sums(graph: GraphBatch, k: int, mean_F: Tensor, size_F: Tensor) -> Tensor:
    """Of one client's features, float64 [F]: ((x - mean) / size)^2."""
    first, last = graph.segments.bounds[k : k + 2]
    matrix, width = graph.x.matrix, graph.x.width
    if isinstance(matrix, SparseMatrix):
        column, value = _entries(matrix, slice(first, last))
        square = ((value.double() - mean_F[column]) / size_F[column]).square()
        zeros = last - first - torch.bincount(column, minlength=width)
        return torch.bincount(column, square, width) + zeros * (mean_F / size_F).square()
    sums = torch.zeros(width, dtype=torch.float64, device=matrix.device)
    for block in torch.split(matrix[first:last], ROWS_AT_ONCE):
        sums += ((block.double() - mean_F) / size_F).square().sum(0)
    return sums


def _entries(matrix: SparseMatrix, rows: slice) -> tuple[Tensor, Tensor]:
    """Columns and values of the stored entries of some rows."""
    first, last = int(matrix.rowptr[rows.start]), int(matrix.rowptr[rows.stop])
    return matrix.col[first:last].long(), matrix.val[first:last]
