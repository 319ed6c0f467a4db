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
from suture.graph import edges
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
    target), node_id [N] (the owner's own number of each node, for handing predictions back). A node hears from the sources
    of the edges into it, so an undirected graph has every edge in both directions.
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

    def __post_init__(self) -> None:
        weights = None if self.edge_weight is None else tuple(self.edge_weight.shape)
        if weights not in (None, (self.edge_index.shape[1],)):
            raise ValueError(f"edge_weight has shape {weights}, but there are {self.edge_index.shape[1]} edges")

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
    def directed(self) -> Tensor:
        """Which clients have an edge without one of the same weight in the other direction, bool [K]."""
        return edges.one_way(self.edge_index, self.edge_weight, self.segments)

    @cached_property
    def mean_weight(self) -> Tensor:
        """What an edge of each client weighs on average, float [K]; 1 if it has no weights or no edges."""
        return edges.mean_weights(self.edge_index, self.edge_weight, self.segments)

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
        """Row v lists the neighbours v hears from, with weight one; for choosing among them, and for counting them."""
        return edges.adjacency(self.edge_index, None, self.num_nodes)

    @cached_property
    def weighted_neighbours(self) -> SparseMatrix:
        """The entries of `neighbours`, in their order, with the weights of the edges."""
        return (
            self.neighbours
            if self.edge_weight is None
            else edges.adjacency(self.edge_index, self.edge_weight, self.num_nodes)
        )

    @cached_property
    def degree(self) -> Tensor:
        """How many neighbours each node hears from, whatever these weigh, float [N]."""
        return self.neighbours.rowptr.diff().float()

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """D^-1/2 (A + I) D^-1/2, as in Kipf and Welling, with the weights of the edges in A."""
        return edges.gcn_normalised(self.edge_index, self.edge_weight, self.num_nodes)

    def propagating_with(self, operator: SparseMatrix) -> GraphBatch:
        """A copy whose GCN layers propagate with another operator, such as that of a learned graph."""
        copy = replace(self)
        copy.__dict__["gcn_operator"] = operator  # where the cached property looks first
        return copy

    @cached_property
    def mean_operator(self) -> SparseMatrix:
        """Row v averages the neighbours of v by the weights of their edges; an isolated node gets zero."""
        return edges.averaging(self.weighted_neighbours, self.edge_weight is not None)

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
        pieces = [torch.arange(bounds[k], bounds[k + 1], device=self.device) for k in map(position.__getitem__, ids)]
        lengths = torch.tensor([piece.numel() for piece in pieces], dtype=torch.int64, device=self.device)
        return self._at(torch.cat(pieces), tuple(ids), Segments(pointers(lengths)))

    def induced(self, nodes: Tensor) -> GraphBatch:
        """The same clients with some of their nodes (flat positions, ascending) and the links among these."""
        return self._at(nodes, self.ids, segments_of(self.segments.client[nodes], len(self.ids)))

    def _at(self, index: Tensor, ids: tuple[str, ...], segments: Segments) -> GraphBatch:
        new_position = torch.full((self.num_nodes,), -1, device=self.device)
        new_position[index] = torch.arange(index.numel(), device=self.device)
        moved = new_position[self.edge_index]
        inside = (moved >= 0).all(0)
        return GraphBatch(
            ids,
            segments,
            self.x.take(index, segments),
            moved[:, inside],
            self.y[index],
            self.role[index],
            self.node_id[index],
            self.pairs.moved(new_position) if self.pairs is not None else None,
            self.edge_weight[inside] if self.edge_weight is not None else None,
            self.target,
        )

    def client_data(self, k: int) -> Data:
        """One client's graph as PyG data, with `edge_weight` if there are weights."""
        one = self.select([self.ids[k]])
        more = {f"{name}_mask": one.role == code for code, name in ((1, "train"), (2, "val"), (3, "test"))}
        if one.edge_weight is not None:
            more["edge_weight"] = one.edge_weight
        return Data(x=one.x.dense(), edge_index=one.edge_index, y=one.y, node_id=one.node_id, **more)

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
        return replace(
            self,
            segments=segments,
            x=Features(matrix, segments),
            edge_index=self.edge_index.to(device),
            y=self.y.to(device),
            role=self.role.to(device),
            node_id=self.node_id.to(device),
            pairs=Pairs(*(t.to(device) for t in (p.nodes, p.label, p.role))) if (p := self.pairs) is not None else None,
            edge_weight=self.edge_weight.to(device) if self.edge_weight is not None else None,
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
    num_nodes = int(data.num_nodes)
    segments = Segments(pointers(torch.tensor([m.numel() for m in members])))
    index = torch.cat(list(members))
    has_edges = ~torch.tensor(list(graphless))[segments.client]
    # Members are sorted, so (client, node) keys are too: an edge survives if its far end is a key of the same client.
    keys = segments.client * num_nodes + index
    weight = data.get("edge_weight")
    reach = edges.adjacency(data.edge_index, None if weight is None else weight.float(), num_nodes).take_rows(index)
    wanted = segments.client[reach.row] * num_nodes + reach.col
    found = torch.searchsorted(keys, wanted).clamp_max(keys.numel() - 1)
    inside = (keys[found] == wanted) & has_edges[reach.row]
    edge_index = torch.stack([found[inside], reach.row[inside]])
    whole = Features(feature_matrix(data.x), Segments(torch.tensor([0, num_nodes])))
    node_id = data.node_id if "node_id" in data else torch.arange(num_nodes)
    return GraphBatch(
        tuple(ids),
        segments,
        whole.take(index, segments),
        edge_index,
        data.y[index],
        torch.cat(list(roles)),
        node_id[index],
        edge_weight=None if weight is None else reach.val[inside],
    )


def uncut(data: Data, roles: Tensor, name: str = "uncut") -> GraphBatch:
    """The whole graph as a single client."""
    return batch_of(data, [name], [torch.arange(int(data.num_nodes))], [roles], [False])
