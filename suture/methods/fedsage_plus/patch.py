"""Patches: generated neighbours hang off the node they were generated for, and every client's graph grows by its own.

A generated node has an edge to and from its source and no other. It has no label and no role, so it is neither trained on
nor tested; it only speaks to its source (and, through it, to the source's neighbours). A client's own nodes come first,
its generated ones after them. Where the client's edges have a direction, there is only the edge to the source: generated is
somebody it hears from. Where they have weights, a generated edge weighs what the client's edges weigh on average.

Generated rows are dense, but a graph whose features are sparse stays sparse: of every generated row only the `entries`
entries of largest magnitude are kept. Words that a generator finds unlikely have values near zero, and what is dropped is
the sum of their squares. Graphs with dense features keep all entries.

Legend: K clients, N nodes, G generated nodes, S entries kept of a generated row, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.message import Record, Rows
from suture.graph.batch import Features, GraphBatch


@dataclass(frozen=True)
class Patch(Record):
    """Generated nodes of each client: source [G] (a node's place among its client's), column and value [G, S]."""

    source: Rows
    column: Rows
    value: Rows

    @property
    def total(self) -> int:
        """Generated nodes of all clients."""
        return self.source.values.numel()


def no_patch(graph: GraphBatch, entries: int) -> Patch:
    """No generated node at all."""
    width = kept_entries(graph.x, entries)
    ptr = torch.zeros(len(graph.ids) + 1, dtype=torch.int64, device=graph.device)
    nobody = torch.zeros(0, dtype=torch.int32, device=graph.device)
    nothing = torch.zeros(0, width, device=graph.device)
    return Patch(graph.ids, Rows(nobody, ptr), Rows(nothing.int(), ptr), Rows(nothing, ptr))


def kept_entries(x: Features, entries: int) -> int:
    """S: how many entries of a generated row are kept."""
    return min(entries, x.width) if isinstance(x.matrix, SparseMatrix) else x.width


def largest_entries(rows_GF: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """(columns int32, values), both [G, S], of each row's entries of largest magnitude, in ascending columns."""
    if entries == rows_GF.shape[1]:
        return torch.arange(entries, dtype=torch.int32, device=rows_GF.device).expand(rows_GF.shape).contiguous(), rows_GF
    column = rows_GF.abs().topk(entries, dim=1, sorted=False).indices.sort(1).values
    return column.int(), rows_GF.gather(1, column)


def averaged(operator: SparseMatrix, x: Features) -> Tensor:
    """Features averaged (or summed) over nodes by the rows of an operator, dense [rows, F]."""
    if not isinstance(x.matrix, SparseMatrix):
        return operator.times(x.matrix)
    listed = x.matrix.take_rows(operator.col.long())
    out = torch.zeros(operator.rows, x.width, device=listed.val.device)
    place = (operator.row[listed.row], listed.col.long())
    return out.index_put_(place, operator.val[listed.row] * listed.val, accumulate=True)


def usual_neighbour(graph: GraphBatch) -> Tensor:
    """The mean features of a neighbour at each client, [K, F]: nodes count as often as somebody hears them, by weight."""
    segments, rowptr = graph.segments, graph.segments.ptr.int()
    heard = torch.bincount(graph.edge_index[0], graph.edge_weight, minlength=graph.num_nodes).float()
    total = segments.sum(heard.unsqueeze(1)).squeeze(1)
    share = heard / torch.where(total > 0, total, 1.0)[segments.client]
    everybody = torch.arange(graph.num_nodes, dtype=torch.int32, device=graph.device)
    return averaged(SparseMatrix(rowptr, everybody, share, graph.num_nodes), graph.x)


def with_generated_nodes(graph: GraphBatch, patch: Patch) -> GraphBatch:
    """The clients' graphs with their generated nodes."""
    if patch.total == 0:
        return graph
    own, generated = graph.num_nodes, patch.total
    ptr = graph.segments.ptr + patch.source.ptr
    segments, added_owner = Segments(ptr), Segments(patch.source.ptr).client
    # Where own and generated nodes end up: an own node moves by what earlier clients generated.
    place_own = torch.arange(own, device=graph.device) + patch.source.ptr[:-1][graph.segments.client]
    place_new = torch.arange(generated, device=graph.device) + graph.segments.ptr[1:][added_owner]
    order = torch.argsort(torch.cat([place_own, place_new]))
    source = patch.source.values.long() + ptr[:-1][added_owner]
    # By the two ends: from the source to the generated node, unless edges are heard in one direction only, and back.
    mutual = ~graph.directed[added_owner]
    twigs = torch.stack([source, place_new])
    edges = torch.cat([place_own[graph.edge_index], twigs[:, mutual], twigs.flip(0)], 1)
    weight = None
    if graph.edge_weight is not None:
        usual = graph.mean_weight[added_owner]
        weight = torch.cat([graph.edge_weight, usual[mutual], usual])
    nothing = torch.zeros(generated, device=graph.device)
    return GraphBatch(
        graph.ids,
        segments,
        _stacked_features(graph.x, patch, order, segments),
        edges,
        torch.cat([graph.y, unlabelled(graph.y, generated)])[order],
        torch.cat([graph.role, nothing.to(graph.role.dtype)])[order],
        torch.cat([graph.node_id, nothing.to(graph.node_id.dtype) - 1])[order],
        graph.pairs.moved(place_own) if graph.pairs is not None else None,
        weight,
        graph.target,
    )


def unlabelled(y: Tensor, rows: int) -> Tensor:
    """Labels of nodes that have none, in the form of `y`."""
    return y.new_full((rows, *y.shape[1:]), torch.nan if y.is_floating_point() else -1)


def _stacked_features(x: Features, patch: Patch, order: Tensor, segments: Segments) -> Features:
    column, value = patch.column.values, patch.value.values
    if not isinstance(x.matrix, SparseMatrix):
        return Features(torch.cat([x.matrix, value])[order], segments)
    own = x.matrix
    lengths = torch.full((column.shape[0],), column.shape[1], dtype=own.rowptr.dtype, device=own.rowptr.device)
    rowptr = torch.cat([own.rowptr, own.rowptr[-1] + lengths.cumsum(0)]).int()
    both = SparseMatrix(rowptr, torch.cat([own.col, column.flatten()]), torch.cat([own.val, value.flatten()]), own.columns)
    return Features(both.take_rows(order), segments)
