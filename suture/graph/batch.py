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

from suture.core.kernels import Segments, SparseMatrix, pointers, segments_of
from suture.core.streams import Secret
from suture.graph import edges
from suture.graph.boundary import Boundary, Knowledge, addresses_in, known_links
from suture.graph.features import Features as Features
from suture.graph.features import feature_matrix as feature_matrix
from suture.graph.parts import Pairs as Pairs
from suture.graph.parts import View as View
from suture.graph.target import ONE_CLASS, Target

Built = TypeVar("Built")


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
    public: bool = False
    """Drawn from the run's public seed: its edges are nobody's secret."""
    secret: Secret | None = None
    """Where a real owner draws what it draws once for its graph, whichever runs ask; None: it follows from the seed."""
    boundary: Boundary | None = None
    """Links to other owners' nodes that clients know of; None: nobody knows of any."""

    def __post_init__(self) -> None:
        weights = None if self.edge_weight is None else tuple(self.edge_weight.shape)
        if weights not in (None, (self.edge_index.shape[1],)):
            raise ValueError(f"edge_weight has shape {weights}, but there are {self.edge_index.shape[1]} edges")

    def lasting_seed(self, seed: int, *labels: int | str) -> int:
        """The seed of what clients choose once for their graphs: the run's, or a real owner's own, which no run changes.

        Of the same nodes in other groups, run by run, one could solve for the nodes.
        """
        return seed if self.secret is None else int(self.secret.fork("seed", *labels).words(1)[0])

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
    def gcn_input_once(self) -> Features | None:
        """As `gcn_input`, but narrow dense features too: what is propagated once need not be in every round."""
        return self.gcn_input or self.x.propagated_once(self.gcn_operator)

    @cached_property
    def mean_input_once(self) -> Features | None:
        """As `mean_input`, likewise."""
        return self.mean_input or self.x.propagated_once(self.mean_operator)

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
        index, segments = torch.cat(pieces), Segments(pointers(lengths))
        if self.pairs is None and self.boundary is None and self._edge_bounds is not None:
            return self._few(torch.tensor(chosen, device=self.device), index, tuple(ids), segments)
        return self._at(index, tuple(ids), segments)

    @cached_property
    def _edge_bounds(self) -> Tensor | None:
        return edges.bounds_of(self.edge_index, self.segments)

    def _few(self, chosen: Tensor, index: Tensor, ids: tuple[str, ...], segments: Segments) -> GraphBatch:
        """Some of very many clients, in time that is theirs alone."""
        move = segments.ptr[:-1] - self.segments.ptr[chosen]
        place, ends = edges.of_clients(self.edge_index, cast(Tensor, self._edge_bounds), chosen, move)
        return replace(
            self,
            ids=ids,
            segments=segments,
            x=self.x.take(index, segments),
            edge_index=ends,
            y=self.y[index],
            role=self.role[index],
            node_id=self.node_id[index],
            edge_weight=None if self.edge_weight is None else self.edge_weight[place],
        )

    def _run_of(self, first: int, last: int) -> GraphBatch:
        """Clients that stand next to each other: all but their edges stay in the memory where they are."""
        start, end = self.segments.bounds[first], self.segments.bounds[last]
        segments = Segments(self.segments.ptr[first : last + 1] - start)
        # Edges stay inside a client, so one end tells where both are.
        inside = (self.edge_index[1] >= start) & (self.edge_index[1] < end)
        return replace(
            self,
            ids=self.ids[first:last],
            segments=segments,
            x=self.x.between(start, end, segments),
            edge_index=self.edge_index[:, inside].sub_(start),
            y=self.y[start:end],
            role=self.role[start:end],
            node_id=self.node_id[start:end],
            edge_weight=None if self.edge_weight is None else self.edge_weight[inside],
            boundary=None if self.boundary is None else self.boundary.between(start, end),
        )

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
            self.public,
            self.secret,
            None if self.boundary is None else self.boundary.at(index, new_position),
        )

    def release(self) -> None:
        """Called when a step is over: a graph that is not in memory gives back what was read. Nothing to do here."""

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
            boundary=self.boundary.to(device) if self.boundary is not None else None,
        )


def batch_of(
    data: Data,
    ids: Sequence[str],
    members: Sequence[Tensor],
    roles: Sequence[Tensor],
    graphless: Sequence[bool],
    knowledge: Knowledge = "none",
) -> GraphBatch:
    """Cut `data` into clients: induced subgraphs on `members`, flat and block-diagonal; members may overlap.

    `knowledge` says what owners know of the links that the cut loses; of those that `data` had lost before, all it says.
    """
    whole = uncut(data, torch.empty(0))
    boundary = _boundary_of(data, whole, members, graphless, knowledge)
    return replace(pieces_of(whole, ids, members, roles, graphless), boundary=boundary)


def pieces_of(
    whole: GraphBatch, ids: Sequence[str], members: Sequence[Tensor], roles: Sequence[Tensor], graphless: Sequence[bool]
) -> GraphBatch:
    """The same of one client's graph."""
    segments = Segments(pointers(torch.tensor([m.numel() for m in members])))
    index = torch.cat(list(members))
    edge_index, weight = _edges_of(whole, members, graphless)
    return GraphBatch(
        tuple(ids),
        segments,
        whole.x.take(index, segments),
        edge_index,
        whole.y[index],
        torch.cat(list(roles)),
        whole.node_id[index],
        edge_weight=weight,
        target=whole.target,
    )


def _boundary_of(
    data: Data, whole: GraphBatch, members: Sequence[Tensor], graphless: Sequence[bool], knowledge: Knowledge
) -> Boundary | None:
    """None where nobody could know anything, which is how most graphs are cut."""
    given = data.get("boundary_node")
    if knowledge == "none" and data.get("address") is None and (given is None or not given.numel()):
        return None
    return known_links(data, whole.neighbours, addresses_in(data, whole.node_id), members, graphless, knowledge)


def _edges_of(whole: GraphBatch, members: Sequence[Tensor], graphless: Sequence[bool]) -> tuple[Tensor, Tensor | None]:
    """The edges inside each client and their weights. A client at a time: all at once take several times the memory."""
    listed, place = whole.weighted_neighbours, torch.full((whole.num_nodes,), -1, dtype=torch.int32)
    ends, weights, start = [torch.empty(2, 0, dtype=torch.int32)], [torch.empty(0)], 0
    for nodes, bare in zip(members, graphless, strict=True):
        if not bare:
            reach = listed.take_rows(nodes)
            place[nodes] = torch.arange(start, start + nodes.numel(), dtype=torch.int32)
            found = place[reach.col]
            inside = found >= 0
            ends.append(torch.stack([found[inside], reach.row[inside].int() + start]))
            weights.append(reach.val[inside] if whole.edge_weight is not None else weights[0])
            place[nodes] = -1
        start += nodes.numel()
    return torch.cat(ends, 1).long(), torch.cat(weights) if whole.edge_weight is not None else None


def uncut(data: Data, roles: Tensor, name: str = "uncut") -> GraphBatch:
    """The whole graph as a single client, in the memory of `data` where that can be."""
    nodes, weight = int(data.num_nodes), data.get("edge_weight")
    segments = Segments(torch.tensor([0, nodes]))
    return GraphBatch(
        (name,),
        segments,
        Features(feature_matrix(data.x), segments),
        data.edge_index,
        data.y,
        roles,
        data.node_id if "node_id" in data else torch.arange(nodes),
        edge_weight=None if weight is None else weight.float(),
    )
