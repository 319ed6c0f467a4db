"""A sketch of a cut, for drawing: a sample of the graph, and how unlike its owners are. What sketch.json holds.

Whoever runs a simulation has the whole graph, so this is computed with the truth; between owners nobody could, and a run
there has no sketch. It is small whatever the graph: at most `NODES` nodes and `LINKS` links of them.

    owners, sizes      names and nodes of each           classes, labels    [owner][class] known labels
    lost               [owner][owner] links nobody holds distances          [owner][owner] of mean features, 0 to 1
    nodes, links, lost_links, boundary_links             counts of the whole graph
    node_owner, node_class, edges, boundary              of the sample; `boundary` are nodes with links that lead out

Legend: N nodes, K owners, F features, S sampled nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order
from torch_geometric.data import Data

from suture.graph.data import scipy_matrix
from suture.graph.partition import undirected_edges
from suture.graph.statistics import in_bins
from suture.methods.fedpub.communities import missing_edges
from suture.runs.prepare import Prepared

NODES, LINKS, BOUNDARY = 500, 2500, 200
"""In the sample."""
MOST_OWNERS, MOST_CLASSES = 100, 100
"""With more, the matrices of owners and the counts of classes are left out."""
Ints = NDArray[np.int64]


def sketch_of(prepared: Prepared) -> dict[str, Any]:
    """The sketch of a run's cut."""
    data, parts = prepared.graph, prepared.cut.partition
    edges = undirected_edges(data)
    owner_N = _owner(int(data.num_nodes), [members.numpy() for members in parts.members])
    label_N, classes = _classes(data)
    chosen_S = sampled(edges, owner_N, NODES)
    few = len(parts.ids) <= MOST_OWNERS
    lost = _lost_between(edges, owner_N, data, parts.members) if few else []
    boundary = data.boundary_node.numpy() if data.get("boundary_node") is not None else np.zeros(0, np.int64)
    place_N = np.full(len(owner_N), -1)
    place_N[chosen_S] = np.arange(len(chosen_S))
    drawn = place_N[edges]
    told = [np.bincount(of[of >= 0], minlength=len(classes)) for of in (label_N[members] for members in parts.members)]
    return {
        "owners": list(parts.ids),
        "sizes": [len(members) for members in parts.members],
        "classes": classes,
        "labels": [counts.tolist() for counts in told] if classes else [],
        "lost": lost,
        "distances": _distances(data, parts.members) if few else [],
        "nodes": int(data.num_nodes),
        "links": len(edges),
        "lost_links": _lost(edges, parts.members, int(data.num_nodes)),
        "boundary_links": len(boundary),
        "node_owner": owner_N[chosen_S].tolist(),
        "node_class": label_N[chosen_S].tolist() if classes else [-1] * len(chosen_S),
        "edges": drawn[(drawn >= 0).all(1)][:LINKS].tolist(),
        "boundary": place_N[boundary][place_N[boundary] >= 0][:BOUNDARY].tolist(),
    }


def _owner(nodes: int, members: list[Ints]) -> Ints:
    """The first owner of every node; -1: nobody's."""
    owner_N = np.full(nodes, -1)
    for k in reversed(range(len(members))):
        owner_N[members[k]] = k
    return owner_N


def sampled(edges: Ints, owner_N: Ints, most: int) -> Ints:
    """Nodes that hang together, of every owner its share: the first ones of each on a walk from the busiest node on."""
    nodes, held = len(owner_N), np.flatnonzero(owner_N >= 0)
    if len(held) <= most:
        return held
    both = np.concatenate([edges, edges[:, ::-1]])
    matrix = coo_matrix((np.ones(len(both), np.int8), (both[:, 0], both[:, 1])), shape=(nodes, nodes)).tocsr()
    start = int(np.bincount(both[:, 0], minlength=nodes).argmax()) if len(both) else 0
    walked = breadth_first_order(matrix, start, directed=False, return_predecessors=False)
    order = np.concatenate([walked, np.setdiff1d(np.arange(nodes), walked)])
    order = order[owner_N[order] >= 0]
    sizes = np.bincount(owner_N[held])
    quota = np.maximum(1, np.floor(most * sizes / sizes.sum())).astype(int)
    by_owner = np.argsort(owner_N[order], kind="stable")
    rank = np.empty(len(order), int)
    rank[by_owner] = np.arange(len(order)) - np.concatenate([[0], np.cumsum(sizes)])[owner_N[order][by_owner]]
    return np.sort(order[rank < quota[owner_N[order]]][:most])


def _lost(edges: Ints, members: tuple[torch.Tensor, ...], nodes: int) -> int:
    held = np.zeros(len(edges), dtype=bool)
    mine = np.zeros(nodes, dtype=bool)
    for one in members:
        mine[one] = True
        held |= mine[edges].all(1)
        mine[one] = False
    return int((~held).sum())


def _classes(data: Data) -> tuple[Ints, list[str]]:
    """One class of every node, -1 where it is not known; numbers by tenths; no names: there is no one class."""
    y = data.y.numpy()
    if np.issubdtype(y.dtype, np.floating):
        if y.ndim > 1 and y.shape[1] != 1:
            return np.full(len(y), -1), []
        binned = in_bins(y.reshape(-1))
        return binned, [f"tenth {number + 1}" for number in range(int(binned.max()) + 1)]
    count, names = int(y.max()) + 1, data.get("class_names") or ()
    if count > MOST_CLASSES or count < 1:
        return np.full(len(y), -1), []
    return y, [str(name) for name in names] if len(names) == count else [str(number) for number in range(count)]


def _lost_between(edges: Ints, owner_N: Ints, data: Data, members: tuple[torch.Tensor, ...]) -> list[list[int]]:
    """Links between a node of one owner and one of another that neither holds."""
    owners = len(members)
    if sum(map(len, members)) > len(torch.unique(torch.cat(list(members)))):  # some nodes have several owners
        shared: list[list[int]] = missing_edges(data, members).tolist()
        return shared
    ends = owner_N[edges]
    ends = ends[(ends >= 0).all(1) & (ends[:, 0] != ends[:, 1])]
    once = np.bincount(ends[:, 0] * owners + ends[:, 1], minlength=owners * owners).reshape(owners, owners)
    found: list[list[int]] = (once + once.T).tolist()
    return found


def _distances(data: Data, members: tuple[torch.Tensor, ...]) -> list[list[float]]:
    """1 - cosine of owners' mean features, [K, K]."""
    sizes = np.array([len(one) for one in members])
    rows, columns = np.repeat(np.arange(len(members)), sizes), torch.cat(list(members)).numpy()
    shape = (len(members), int(data.num_nodes))
    mean_KN = coo_matrix((np.repeat(1 / sizes, sizes), (rows, columns)), shape=shape).tocsr()
    sparse = data.x.layout == torch.sparse_csr
    mean_KF = (mean_KN @ scipy_matrix(data.x)).toarray() if sparse else mean_KN @ data.x.numpy()
    length_K = np.linalg.norm(mean_KF, axis=1, keepdims=True)
    unit_KF = mean_KF / np.where(length_K > 0, length_K, 1)
    found: list[list[float]] = np.round((1 - unit_KF @ unit_KF.T).clip(0, 1), 5).tolist()
    return found
