r"""Sums over neighbours with noise on them, computed once for a graph and then used by every round, test and prediction.

Aggregation perturbation: Sajadmanesh, Shamsabadi, Bellet and Gatica-Perez, GAP: Differentially private graph neural networks
with aggregation perturbation, USENIX Security 2023, algorithm 1. For j = 1..J hops

    z_v^j = sum_{u -> v} x_u^{j-1} + N(0, sigma^2 I),    x_v^j = z_v^j / ||z_v^j||,    x_v^0 = e(x_v) / ||e(x_v)||

The paper trains its encoder e first. Here it needs no rounds (`suture.nn.encoders`): at edge level a regression on each
client's own features and labels, at node level a random projection. Neither sees an edge. All that a run learns of the edges
it learns from these J sums, so that its account is that of J Gaussian mechanisms, however many rounds and local epochs there
are, whatever is sent, and whoever asks for predictions. After the sums a perceptron takes a node's features and x^1..x^J.

How much one row can change (Delta, L2, for one hop; rows have length one):
- edge level: an edge that goes both ways stands in two sums: sqrt(2). Edges all count alike, whatever they weigh.
- node level: a node stands in at most D sums (`max_degree`): sqrt(D). Whom it tells is chosen from its own list alone, by
  numbers that belong to the two ends and to nothing else, so that it changes nobody else's choice. Two graphs are neighbours
  where in one of them a node tells nobody and is not trained on (add or remove, as DP-SGD counts; replacing it is twice
  that); that others have it in *their* lists is hidden edge by edge only.

The noise is a pure function of the run's seed, the client and the graph it hides. So a resumed run, a test and a prediction
on the same graph meet the same noise, which tells nothing new; on a graph that differs by one edge it is independent:
two sums with the same noise could be subtracted from one another. A run's seed is public, so at a real owner the noise is a
function of the owner's own key (`GraphBatch.secret`) too, and of all settings that sums depend on. It is discrete, on sums
of whole numbers (`suture.privacy.mechanisms`), as that of DP-SGD is.

Legend: K clients, N nodes, W width of encoded rows, J hops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.streams import Streams
from suture.graph import edges
from suture.graph.batch import GraphBatch
from suture.nn.encoders import classified, projected, row_normalised
from suture.privacy.mechanisms import noise_rows, secret_sums
from suture.settings import ModelSettings


def bounded(graph: GraphBatch, most: int, seed: int) -> Tensor:
    """The edges [2, E'] of a graph in which every node tells at most `most` others."""
    source, target = graph.edge_index
    # Of the two ends and of nothing else: another edge, or another node's edges, change no node's choice.
    number = Streams.of(seed, graph.ids, "whom to tell", device=graph.device).bits(graph.segments.ptr).squeeze(1)
    key = (number[source] ^ number[target]) & 0x7FFFFFFFFFFFFFFF
    order = torch.argsort(key, stable=True)
    order = order[torch.argsort(source[order], stable=True)]
    count = torch.bincount(source, minlength=graph.num_nodes)
    first = count.cumsum(0) - count
    place = torch.arange(order.numel(), device=graph.device) - first[source[order]]
    return graph.edge_index[:, order[place < most].sort().values]


def heard(graph: GraphBatch, settings: ModelSettings, seed: int) -> SparseMatrix:
    """Row v lists the nodes whose rows are summed for v, each once, [N, N]."""
    told = bounded(graph, settings.gap_max_degree, seed) if settings.gap_level == "node" else graph.edge_index
    # An edge that is listed twice would count twice, and the noise is for once.
    once = torch.unique(told[1] * graph.num_nodes + told[0])
    pairs = torch.stack([once % graph.num_nodes, once // graph.num_nodes])
    return edges.adjacency(pairs, None, graph.num_nodes)


def encoded(graph: GraphBatch, settings: ModelSettings, outputs: int, seed: int) -> Tensor:
    """x^0, [N, W]; a graph that is public has no labels to learn from."""
    if settings.gap_level == "edge" and not graph.public:
        return classified(graph, outputs)
    return projected(graph.x, width_of(settings, outputs), seed)


def width_of(settings: ModelSettings, outputs: int) -> int:
    """W."""
    return outputs if settings.gap_level == "edge" else settings.hidden


def noised_sums(graph: GraphBatch, settings: ModelSettings, outputs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Hop by hop x^{j-1} and z^j, both [N, W]; without noise on a graph that is public."""
    listed, row = heard(graph, settings, seed), encoded(graph, settings, outputs, seed)
    names = [] if graph.public or settings.gap_sigma == 0 else _named_by_content(graph)
    for hop in range(1, settings.gap_hops + 1):
        if names and graph.secret is not None:
            own = graph.secret.fork("noise on sums", seed, *names, *_shaped_by(settings, outputs), hop)
            total = secret_sums(listed, row, settings.gap_sigma, own)
        else:
            total = listed.times(row)
            if names:
                rng = Streams.of(seed, names, "noise on sums", device=graph.device).fork("hop", hop)
                total = total + noise_rows(graph.segments.ptr, row.shape[1], settings.gap_sigma, rng)
        yield row, total
        row = row_normalised(total)


def _shaped_by(settings: ModelSettings, outputs: int) -> tuple[int | str, ...]:
    """What else sums depend on. The same noise in another size, or on other sums, could be subtracted."""
    level, deviation = settings.gap_level, float(settings.gap_sigma).hex()
    return level, deviation, settings.gap_hops, settings.gap_max_degree, width_of(settings, outputs), outputs


def noised_hops(graph: GraphBatch, settings: ModelSettings, outputs: int, seed: int) -> Tensor:
    """x^1..x^J of every node side by side, [N, J W]."""
    return torch.cat([row_normalised(total) for _, total in noised_sums(graph, settings, outputs, seed)], 1)


def _named_by_content(graph: GraphBatch) -> list[str]:
    """Every client's name, and a digest of its edges, its features and what it trains on."""
    source, target = graph.edge_index
    owner, bounds = graph.segments.client[target], graph.segments.bounds
    order = torch.argsort(owner, stable=True)
    shares = torch.split(order, torch.bincount(owner, minlength=len(graph.ids)).tolist())
    names = []
    for name, start, end, own in zip(graph.ids, bounds[:-1], bounds[1:], shares, strict=True):
        pairs = (source[own] - start) * (end - start) + target[own] - start
        matrix = graph.x.between(start, end, graph.segments).matrix
        parts = (matrix.rowptr, matrix.col, matrix.val) if isinstance(matrix, SparseMatrix) else (matrix,)
        digest = hashlib.blake2b(digest_size=16)
        taught = torch.nonzero(graph.role[start:end] == 1).squeeze(1)
        for part in (pairs.sort().values, taught, graph.y[start:end][taught], *parts):
            digest.update(part.contiguous().cpu().numpy().tobytes())
        names.append(f"{name} {digest.hexdigest()}")
    return names
