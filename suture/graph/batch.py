"""GraphBatch: the graphs of K clients as one flat, block-diagonal graph.

Nodes lie client after client; edges never leave a client's block. Everything a layer needs (normalised adjacency, the
cheaper layout of the first layer) is derived once, lazily, and kept with the batch. Legend: K clients, N nodes, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.kernels import Segments, SparseMatrix, pointers, segment_product, segments_of, stacked_product
from suture.graph.target import ONE_CLASS, Target

# A dense product does about this many multiply-adds in the time a sparse one does one (measured, two CPU threads).
DENSE_SPEED_UP = 5
# Never turn features into a dense matrix larger than this.
DENSE_LIMIT_BYTES = 1 << 30

Built = TypeVar("Built")


@dataclass(frozen=True)
class Features:
    """Node features of all clients, dense [N, F] or sparse."""

    matrix: Tensor | SparseMatrix
    segments: Segments

    @property
    def width(self) -> int:
        """F."""
        return self.matrix.columns if isinstance(self.matrix, SparseMatrix) else self.matrix.shape[1]

    @property
    def nonzeros(self) -> int:
        """Stored entries."""
        return self.matrix.col.numel() if isinstance(self.matrix, SparseMatrix) else self.matrix.numel()

    @cached_property
    def squared_norms(self) -> Tensor:
        """|x_v|^2 of every node, [N]."""
        if isinstance(self.matrix, SparseMatrix):
            return self.matrix.val.new_zeros(self.matrix.rows).index_add_(0, self.matrix.row, self.matrix.val.square())
        return self.matrix.square().sum(1)

    @cached_property
    def _stacked(self) -> SparseMatrix:
        """Sparse features against K weights on top of each other: column f of client k becomes k * F + f."""
        if not isinstance(self.matrix, SparseMatrix):
            raise TypeError("only sparse features are stacked")
        column = self.matrix.col.clone()
        # A client's entries lie together, so there is no need to look up the owner of each.
        bounds = self.matrix.rowptr[self.segments.ptr].tolist()
        for k in range(1, self.segments.clients):
            column[bounds[k] : bounds[k + 1]] += k * self.width
        return SparseMatrix(self.matrix.rowptr, column, self.matrix.val, self.width * self.segments.clients)

    def times(self, weight_KFH: Tensor) -> Tensor:
        """Each client's features times its own weight, [N, H]."""
        if not isinstance(self.matrix, SparseMatrix):
            return segment_product(self.matrix, weight_KFH, self.segments)
        return stacked_product(self.matrix, self._stacked, weight_KFH)

    @cached_property
    def _transposed_of_clients(self) -> list[SparseMatrix]:
        """Sparse features of each client, transposed, [F, N_k]."""
        whole = self._stacked.transposed
        found = []
        for k, start in enumerate(self.segments.bounds[:-1]):
            rowptr = whole.rowptr[k * self.width : (k + 1) * self.width + 1]
            first, last = int(rowptr[0]), int(rowptr[-1])
            nodes = self.segments.bounds[k + 1] - start
            found.append(SparseMatrix(rowptr - first, whole.col[first:last] - start, whole.val[first:last], nodes))
        return found

    def mixed(self, k: int, weight_BR: Tensor) -> Tensor:
        """Sums of the features of client k's nodes, weighted by R columns of weights, [R, F]."""
        if isinstance(self.matrix, SparseMatrix):
            return self._transposed_of_clients[k].times(weight_BR).T
        start, end = self.segments.bounds[k : k + 2]
        return weight_BR.T @ self.matrix[start:end]

    def take(self, index: Tensor, segments: Segments) -> Features:
        """The features of some nodes."""
        if isinstance(self.matrix, SparseMatrix):
            return Features(self.matrix.take_rows(index), segments)
        return Features(self.matrix[index], segments)

    def propagated(self, operator: SparseMatrix) -> Features | None:
        """`operator @ features` as a dense matrix if a first layer is cheaper on it than propagating after the product.

        Propagating first costs N * F dense multiply-adds per output column and no message passing in the round; the other
        order costs one sparse multiply-add per non-zero feature and per edge.
        """
        if not isinstance(self.matrix, SparseMatrix):
            wider_than_hidden = self.width > 256  # then propagating raw features once saves little but costs nothing
            return Features(operator.times(self.matrix), self.segments) if wider_than_hidden else None
        size = self.segments.total * self.width
        if size * 4 > DENSE_LIMIT_BYTES or size > DENSE_SPEED_UP * (self.nonzeros + operator.col.numel()):
            return None
        return Features(operator.times(self.matrix.to_dense()), self.segments)

    def dense(self) -> Tensor:
        """[N, F]; for small graphs and user modules."""
        return self.matrix.to_dense() if isinstance(self.matrix, SparseMatrix) else self.matrix


@dataclass(frozen=True)
class Pairs:
    """Pairs of nodes that are (label 1) or are not (0) linked. Shapes: nodes [2, P] flat positions, label and role [P]."""

    nodes: Tensor
    label: Tensor
    role: Tensor

    def moved(self, new_position: Tensor) -> Pairs:
        """The pairs whose nodes both have a new position (others are -1)."""
        nodes = new_position[self.nodes]
        inside = (nodes >= 0).all(0)
        return Pairs(nodes[:, inside], self.label[inside], self.role[inside])


@dataclass(frozen=True)
class View:
    """Some nodes of a graph whose outputs are wanted: a last layer need not compute the others.

    Shapes: nodes [B] flat positions sorted by client; the operators keep only these rows.
    """

    graph: GraphBatch
    nodes: Tensor

    @cached_property
    def segments(self) -> Segments:
        """How the nodes are divided among clients."""
        return segments_of(self.graph.segments.client[self.nodes], len(self.graph.ids))

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """Rows of the graph's GCN operator."""
        return self.graph.gcn_operator.take_rows(self.nodes)

    @cached_property
    def mean_operator(self) -> SparseMatrix:
        """Rows of the graph's mean operator."""
        return self.graph.mean_operator.take_rows(self.nodes)


@dataclass(frozen=True)
class GraphBatch:
    """K clients' private graphs.

    Shapes: y [N], role int8 [N] (0 none, 1 train, 2 validation, 3 test), edge_index [2, E] of flat positions (source,
    target), node_id [N] (the owner's own number of each node, for handing predictions back).
    """

    ids: tuple[str, ...]
    segments: Segments
    x: Features
    edge_index: Tensor
    y: Tensor
    role: Tensor
    node_id: Tensor
    pairs: Pairs | None = None
    """For link prediction: the edges by role, and sampled non-edges; `edge_index` then holds training edges only."""
    edge_weight: Tensor | None = None
    """What each edge weighs, float [E], above 0; None: all alike."""
    target: Target = ONE_CLASS
    """What `y` means."""

    @property
    def num_nodes(self) -> int:
        """N over all clients."""
        return self.segments.total

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.y.device

    def nodes_in(self, role: int) -> Tensor:
        """Flat positions of all nodes with a role."""
        return torch.nonzero(self.role == role).squeeze(1)

    @cached_property
    def train(self) -> View:
        """The training nodes, client after client."""
        return View(self, self.nodes_in(1))

    @cached_property
    def num_train(self) -> Tensor:
        """Training examples of each client, nodes or (in link prediction) edges, int64 [K]."""
        if self.pairs is None:
            return self.train.segments.ptr.diff()
        owner = self.segments.client[self.pairs.nodes[0, self.pairs.role == 1]]
        return torch.bincount(owner, minlength=len(self.ids))

    @cached_property
    def sizes(self) -> Tensor:
        """Nodes of each client, int64 [K]."""
        return self.segments.ptr.diff()

    @cached_property
    def graphless(self) -> Tensor:
        """Which clients have features only, not a single edge, bool [K]."""
        return torch.bincount(self.segments.client[self.edge_index[1]], minlength=len(self.ids)) == 0

    @cached_property
    def _completed(self) -> dict[Hashable, GraphBatch]:
        return {}

    def completed(self, key: Hashable, make: Callable[[GraphBatch], GraphBatch]) -> GraphBatch:
        """`make(self)`, such as this batch with more edges: made once for each key, then kept with the batch."""
        if key not in self._completed:
            self._completed[key] = make(self)
        return self._completed[key]

    @cached_property
    def neighbours(self) -> SparseMatrix:
        """Row v lists the neighbours v hears from, with weight one."""
        source, target = self.edge_index
        ones = torch.ones(source.numel(), device=self.device)
        return SparseMatrix.from_coo(target, source, ones, (self.num_nodes, self.num_nodes))

    @cached_property
    def degree(self) -> Tensor:
        """How many neighbours each node hears from, float [N]."""
        return self.neighbours.rowptr.diff().float()

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """D^-1/2 (A + I) D^-1/2, as in Kipf and Welling."""
        source, target = self.edge_index
        loops = torch.arange(self.num_nodes, device=self.device)
        source, target = torch.cat([source, loops]), torch.cat([target, loops])
        scale = torch.bincount(target, minlength=self.num_nodes).float().rsqrt()
        return SparseMatrix.from_coo(target, source, scale[source] * scale[target], (self.num_nodes, self.num_nodes))

    def propagating_with(self, operator: SparseMatrix) -> GraphBatch:
        """A copy whose GCN layers propagate with another operator, such as that of a learned graph."""
        copy = replace(self)
        copy.__dict__["gcn_operator"] = operator  # where the cached property looks first
        return copy

    @cached_property
    def mean_operator(self) -> SparseMatrix:
        """Row v averages the neighbours of v; an isolated node gets zero."""
        base = self.neighbours
        degree = base.rowptr.diff().clamp_min(1)
        return SparseMatrix(base.rowptr, base.col, 1.0 / degree[base.row], base.columns)

    @cached_property
    def gcn_input(self) -> Features | None:
        """Features already propagated by the GCN operator, where that layout is the cheaper one."""
        return self.x.propagated(self.gcn_operator)

    @cached_property
    def mean_input(self) -> Features | None:
        """Features already averaged over neighbours, where that layout is the cheaper one."""
        return self.x.propagated(self.mean_operator)

    @cached_property
    def _remembered(self) -> dict[str, dict[Hashable, object]]:
        return {}

    def once(self, name: str, key: Hashable, build: Callable[[], Built]) -> Built:
        """What `build` derives from this graph and `key`, built on the first call; the latest of each name is kept."""
        if key not in self._remembered.get(name, {}):
            self._remembered[name] = {key: build()}
        return cast(Built, self._remembered[name][key])

    def select(self, ids: Sequence[str]) -> GraphBatch:
        """The graphs of some clients, in that order."""
        if tuple(ids) == self.ids:
            return self
        position = {name: k for k, name in enumerate(self.ids)}
        bounds = self.segments.bounds
        chosen = [position[name] for name in ids]
        if chosen and self.pairs is None and chosen == list(range(chosen[0], chosen[-1] + 1)):
            return self._run_of(chosen[0], chosen[-1] + 1)
        pieces = [torch.arange(bounds[k], bounds[k + 1], device=self.device) for k in chosen]
        lengths = torch.tensor([piece.numel() for piece in pieces], dtype=torch.int64, device=self.device)
        return self._at(torch.cat(pieces), tuple(ids), Segments(pointers(lengths)))

    def _run_of(self, first: int, last: int) -> GraphBatch:
        """Clients that stand next to each other: all but their edges stay in the memory where they are."""
        start, end = self.segments.bounds[first], self.segments.bounds[last]
        segments = Segments(self.segments.ptr[first : last + 1] - start)
        matrix = self.x.matrix
        x = (
            self.x.take(torch.arange(start, end, device=self.device), segments)
            if isinstance(matrix, SparseMatrix)
            else Features(matrix[start:end], segments)
        )
        # Edges stay inside a client, so one end tells where both are.
        inside = (self.edge_index[1] >= start) & (self.edge_index[1] < end)
        edges = self.edge_index[:, inside].sub_(start)
        y, role, node_id = (values[start:end] for values in (self.y, self.role, self.node_id))
        return GraphBatch(self.ids[first:last], segments, x, edges, y, role, node_id)

    def induced(self, nodes: Tensor) -> GraphBatch:
        """The same clients with some of their nodes (flat positions, ascending) and the links among these."""
        return self._at(nodes, self.ids, segments_of(self.segments.client[nodes], len(self.ids)))

    def _at(self, index: Tensor, ids: tuple[str, ...], segments: Segments) -> GraphBatch:
        new_position = torch.full((self.num_nodes,), -1, device=self.device)
        new_position[index] = torch.arange(index.numel(), device=self.device)
        edges = new_position[self.edge_index]
        return GraphBatch(
            ids,
            segments,
            self.x.take(index, segments),
            edges[:, (edges >= 0).all(0)],
            self.y[index],
            self.role[index],
            self.node_id[index],
            self.pairs.moved(new_position) if self.pairs is not None else None,
        )

    def client_data(self, k: int) -> Data:
        """One client's graph as PyG data."""
        one = self.select([self.ids[k]])
        masks = {f"{name}_mask": one.role == code for code, name in ((1, "train"), (2, "val"), (3, "test"))}
        return Data(x=one.x.dense(), edge_index=one.edge_index, y=one.y, node_id=one.node_id, **masks)

    def to(self, device: torch.device) -> GraphBatch:
        """A copy on another device."""
        if device == self.device:
            return self
        segments = Segments(self.segments.ptr.to(device))
        m = self.x.matrix
        matrix: Tensor | SparseMatrix
        if isinstance(m, SparseMatrix):
            matrix = SparseMatrix(m.rowptr.to(device), m.col.to(device), m.val.to(device), m.columns)
        else:
            matrix = m.to(device)
        return GraphBatch(
            self.ids,
            segments,
            Features(matrix, segments),
            self.edge_index.to(device),
            self.y.to(device),
            self.role.to(device),
            self.node_id.to(device),
            Pairs(*(t.to(device) for t in (p.nodes, p.label, p.role))) if (p := self.pairs) is not None else None,
        )


def feature_matrix(x: Tensor) -> Tensor | SparseMatrix:
    """PyG features, dense or CSR, as our kernels want them."""
    if x.layout == torch.sparse_csr:
        return SparseMatrix(x.crow_indices().int(), x.col_indices().int(), x.values().float(), x.shape[1])
    return x.float()


def batch_of(
    data: Data, ids: Sequence[str], members: Sequence[Tensor], roles: Sequence[Tensor], graphless: Sequence[bool]
) -> GraphBatch:
    """Cut `data` into clients: induced subgraphs on `members`, flat and block-diagonal; members may overlap."""
    whole = uncut(data, torch.empty(0))
    segments = Segments(pointers(torch.tensor([m.numel() for m in members])))
    index = torch.cat(list(members))
    return GraphBatch(
        tuple(ids),
        segments,
        whole.x.take(index, segments),
        _edges_of(whole, members, graphless),
        data.y[index],
        torch.cat(list(roles)),
        whole.node_id[index],
    )


def _edges_of(whole: GraphBatch, members: Sequence[Tensor], graphless: Sequence[bool]) -> Tensor:
    """The edges inside each client, flat. A client at a time: all at once would take several times their memory."""
    rows, place = whole.neighbours, torch.full((whole.num_nodes,), -1, dtype=torch.int32)
    found, start = [torch.empty(2, 0, dtype=torch.int32)], 0
    for nodes, bare in zip(members, graphless, strict=True):
        if not bare:
            reach = rows.take_rows(nodes)
            place[nodes] = torch.arange(start, start + nodes.numel(), dtype=torch.int32)
            ends = torch.stack([place[reach.col], reach.row.int() + start])
            found.append(ends[:, ends[0] >= 0])
            place[nodes] = -1
        start += nodes.numel()
    return torch.cat(found, 1).long()


def uncut(data: Data, roles: Tensor, name: str = "uncut") -> GraphBatch:
    """The whole graph as a single client, which shares the memory of its features."""
    nodes = int(data.num_nodes)
    segments = Segments(torch.tensor([0, nodes]))
    node_id = data.node_id if "node_id" in data else torch.arange(nodes)
    return GraphBatch((name,), segments, Features(feature_matrix(data.x), segments), data.edge_index, data.y, roles, node_id)
