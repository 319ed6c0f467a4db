"""What a cut graph looks like before anything is trained: the facts from which candidates are chosen.

Labels of validation and test nodes are not looked at, except to count them.

Legend: N nodes, K owners, F features, C classes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from suture.graph.cut import Cut
from suture.graph.data import MASKS, scipy_matrix
from suture.graph.partition import stream, undirected_edges
from suture.graph.splits import Role
from suture.graph.statistics import in_bins, label_distances
from suture.graph.target import Kind
from suture.runs.prepare import Prepared

SHUFFLES = 10
FEWEST_LABELS = 20
"""Of an owner with fewer training labels nothing is said about what its features mean."""


@dataclass(frozen=True)
class OwnerFacts:
    """One owner."""

    name: str
    nodes: int
    edges: int
    """Between two nodes of its own, counted once."""
    outside: int
    """Edges it knows of, or would know of, that lead to a node which is not its own."""
    train: int
    """Training labels."""
    tested: int
    graphless: bool


@dataclass(frozen=True)
class Facts:
    """One cut of a graph."""

    owners: tuple[OwnerFacts, ...]
    given: bool
    """Whether the graph names its owners; otherwise it was cut for the purpose."""
    kind: Kind
    metric: str
    links: int
    """Edges between two nodes of the graph, counted once."""
    missing: int
    """Those of them that lie between owners, so that nobody holds them."""
    boundary: int
    """Edges to nodes that are in nobody's table."""
    resampled: float
    """Test nodes per training node if every seed draws its own; 0: masks were given, and every seed uses them."""
    heterogeneity: float | None = None
    """Mean distance of owners' label distributions, 0 alike to 1 nothing in common; None: too few labels to say."""
    heterogeneity_by_chance: float | None = None
    """The same if the labels were dealt out at random."""
    agreement: float | None = None
    """How alike features go with labels at two owners, -1 to 1; None: too few labels to say."""
    agreement_within: float | None = None
    """The same of two halves of one owner's labels: what agreement could be at most."""
    homophily: float | None = None
    """Share of edges inside owners whose ends, both training nodes, have the same class."""
    homophily_by_chance: float | None = None

    @property
    def outside_share(self) -> float:
        """Of the edges that owners know of, those that lead to somebody else's node."""
        outside, inside = sum(owner.outside for owner in self.owners), sum(owner.edges for owner in self.owners)
        return outside / max(outside + inside, 1)

    @property
    def graphless(self) -> tuple[str, ...]:
        """Names of owners without edges."""
        return tuple(owner.name for owner in self.owners if owner.graphless)


def look(prepared: Prepared) -> Facts:
    """The facts of a prepared graph."""
    data, cut = prepared.data, prepared.cut
    kind = prepared.clients.target.kind
    owners, links, missing = _owners(data, cut)
    train = [nodes.numpy()[roles.numpy() == Role.TRAIN] for nodes, roles in _pieces(cut)]
    scope, masks = cut.settings["split"]["scope"], any(data.get(name) is not None for name in MASKS)
    masks_given = scope == "given" or (scope == "auto" and masks)
    trained, tested = (sum(getattr(owner, name) for owner in owners) for name in ("train", "tested"))
    apart, by_chance = _heterogeneity(data.y.numpy(), train, cut.seed)
    between, within = _agreement(data, train, kind, cut.seed)
    same, same_by_chance = _homophily(data, cut, kind)
    return Facts(
        owners=owners,
        given=data.get("client") is not None,
        kind=kind,
        metric=prepared.task.metric,
        links=links,
        missing=missing,
        boundary=0 if data.get("boundary_node") is None else int(data.boundary_node.numel()),
        resampled=0.0 if masks_given else tested / max(trained, 1),
        heterogeneity=apart,
        heterogeneity_by_chance=by_chance,
        agreement=between,
        agreement_within=within,
        homophily=same,
        homophily_by_chance=same_by_chance,
    )


def _pieces(cut: Cut) -> Any:
    return zip(cut.partition.members, cut.split.client_roles, strict=True)


def _owners(data: Data, cut: Cut) -> tuple[tuple[OwnerFacts, ...], int, int]:
    """The owners, all links, and those that nobody holds."""
    edges, nodes = undirected_edges(data), int(data.num_nodes)
    boundary = np.zeros(0, dtype=np.int64) if data.get("boundary_node") is None else data.boundary_node.numpy()
    held = np.zeros(len(edges), dtype=bool)
    found = []
    for name, graphless, (members, roles) in zip(cut.partition.ids, cut.partition.graphless, _pieces(cut), strict=True):
        mine = np.zeros(nodes, dtype=bool)
        mine[members.numpy()] = True
        ends = mine[edges].sum(axis=1)
        inside = ends == 2
        held |= inside
        found.append(
            OwnerFacts(
                name=name,
                nodes=len(members),
                edges=0 if graphless else int(inside.sum()),
                outside=0 if graphless else int((ends == 1).sum() + mine[boundary].sum()),
                train=int((roles == Role.TRAIN).sum()),
                tested=int((roles == Role.TEST).sum()),
                graphless=graphless,
            )
        )
    return tuple(found), len(edges), int((~held).sum())


def _heterogeneity(y: NDArray[Any], train: list[NDArray[np.int64]], seed: int) -> tuple[float | None, float | None]:
    """Of training labels, as they are and dealt out at random; several labels or numbers count as their mean."""
    whole = not np.issubdtype(y.dtype, np.floating)
    columns = [y] if whole else [in_bins(column) for column in _only(y.reshape(len(y), -1), train).T]
    rng, told = stream(seed, "assess/shuffle"), []
    for labels in columns:
        known = [kept for nodes in train if len(kept := nodes[labels[nodes] >= 0])]
        if len(known) < 2:
            continue
        everybody, sizes = np.concatenate(known), np.cumsum([len(nodes) for nodes in known])[:-1]
        shuffled = [_apart(labels, np.split(rng.permutation(everybody), sizes)) for _ in range(SHUFFLES)]
        told.append((_apart(labels, known), float(np.mean(shuffled))))
    if not told:
        return None, None
    return float(np.mean([real for real, _ in told])), float(np.mean([chance for _, chance in told]))


def _only(y_NC: NDArray[Any], train: list[NDArray[np.int64]]) -> NDArray[Any]:
    """Labels of the training nodes."""
    shown = np.full_like(y_NC, np.nan)
    for nodes in train:
        shown[nodes] = y_NC[nodes]
    return shown


def _apart(labels: NDArray[Any], members: list[NDArray[np.int64]]) -> float:
    """Mean over pairs of owners, as a share of the largest distance there can be."""
    distance_KK = label_distances(labels, members) / math.sqrt(math.log(2))
    return float(distance_KK[np.triu_indices(len(members), 1)].mean())


def _agreement(data: Data, train: list[NDArray[np.int64]], kind: Kind, seed: int) -> tuple[float | None, float | None]:
    """Cosines of the covariances of features and labels: of halves of two owners, and of the two halves of one."""
    rng = stream(seed, "assess/halves")
    halves = []
    for nodes in train:
        if len(nodes) >= FEWEST_LABELS:
            mixed = rng.permutation(nodes)
            halves.append([_covariance(data, part, kind) for part in (mixed[::2], mixed[1::2])])
    if len(halves) < 2:
        return None, None
    between = [_cosine(one[0], other[1]) for one, other in itertools.permutations(halves, 2)]
    return float(np.mean(between)), float(np.mean([_cosine(*pair) for pair in halves]))


def _covariance(data: Data, nodes: NDArray[np.int64], kind: Kind) -> NDArray[np.float64]:
    """Of every feature with every class, label or number [F, C]."""
    y = data.y.numpy()[nodes]
    if kind == "class":
        y_NC = np.eye(int(data.y.max()) + 1)[y]
    else:
        y_NC = np.nan_to_num(y.reshape(len(y), -1) - np.nanmean(y.reshape(len(y), -1), axis=0))
    y_NC = y_NC - y_NC.mean(axis=0)
    x_NF = scipy_matrix(data.x)[nodes] if data.x.layout == torch.sparse_csr else data.x.numpy()[nodes]
    return np.asarray(x_NF.T @ y_NC, dtype=np.float64)


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0


def _homophily(data: Data, cut: Cut, kind: Kind) -> tuple[float | None, float | None]:
    if kind != "class":
        return None, None
    y, known = data.y.numpy(), (cut.split.roles == int(Role.TRAIN)).numpy()
    edges = undirected_edges(data)
    both = y[edges[known[edges].all(axis=1)]]
    if not len(both):
        return None, None
    shares = np.bincount(y[known]) / known.sum()
    return float((both[:, 0] == both[:, 1]).mean()), float((shares**2).sum())
