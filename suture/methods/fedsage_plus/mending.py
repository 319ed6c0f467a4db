"""From a trained generator to new neighbours (line 5 of FedSage+): drafts, how far they are trusted, and the patch.

Legend: K clients, N nodes, V nodes that get a neighbour, B of them at a time, R generated rows, Z latent, F features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segments_of
from suture.core.message import Record, Rows
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch
from suture.graph.edges import row_sums
from suture.graph.impair import Impaired, impair
from suture.method import Clients
from suture.methods.fedsage_plus.neighgen import NeighGen
from suture.methods.fedsage_plus.patch import Patch, averaged, kept_entries, largest_entries, usual_neighbour

FEATURES_AT_A_TIME = 1 << 24
"""Generated features held at a time: 64 MB."""
CALIBRATIONS = 4
"""Graphs impaired anew to learn how far generated rows can be trusted; a small client hides a few nodes in each."""


@dataclass(frozen=True)
class Draft:
    """What a generator makes for B nodes: row [R] the place in `nodes` of the node a row of `rows_RF` is for.

    known_BF is what is known of neighbours of each node: the mean of those it has, or of the client if it has none.
    """

    nodes: Tensor
    row: Tensor
    rows_RF: Tensor
    known_BF: Tensor


@dataclass(frozen=True)
class Mender:
    """Trained generators: `params` [K, ...] of `network`; `most` and `unbiased` say how counts are rounded."""

    network: NeighGen
    params: Tree
    most: int
    unbiased: bool

    def patch(self, clients: Clients[Record], trust_K: Tensor, entries: int) -> Patch:
        """New neighbours for the nodes of the whole (not the impaired) graph, m_v + s (x~ - m_v) with s the trust."""
        graph, entries = clients.graph, kept_entries(clients.graph.x, entries)
        columns = [torch.zeros(0, entries, dtype=torch.int32, device=graph.device)]
        values = [torch.zeros(0, entries, device=graph.device)]
        sources = [torch.zeros(0, dtype=torch.int64, device=graph.device)]
        for k, made in self.drafts(graph, clients.rng):
            known_RF = made.known_BF[made.row]
            low, high = value_range(graph.x, k)
            column, value = largest_entries(known_RF.lerp_(made.rows_RF, float(trust_K[k])).clamp_(low, high), entries)
            columns.append(column)
            values.append(value)
            sources.append(made.nodes[made.row])
        source = torch.cat(sources)
        ptr = segments_of(graph.segments.client[source], len(graph.ids)).ptr
        rows = (graph.segments.place[source].int(), torch.cat(columns), torch.cat(values))
        return Patch(graph.ids, *(Rows(value, ptr) for value in rows))

    def drafts(self, graph: GraphBatch, rng: Streams) -> Iterator[tuple[int, Draft]]:
        """(client, what its generator makes for some nodes of `graph`), until all nodes had their turn."""
        network, params = self.network, self.params
        z_NZ = network.encode(params, graph)
        draws_N = self.counts(z_NZ, graph, rng)
        nodes_V = torch.nonzero(draws_N).squeeze(1)
        segments = segments_of(graph.segments.client[nodes_V], len(graph.ids))
        row_R = torch.repeat_interleave(torch.arange(nodes_V.numel(), device=graph.device), draws_N[nodes_V])
        rows = segments_of(segments.client[row_R], len(graph.ids))
        noisy_RZ = z_NZ[nodes_V[row_R]] + rng.fork("noise").normal(rows.ptr, network.latent)
        usual_KF, at_a_time = usual_neighbour(graph), max(1, FEATURES_AT_A_TIME // (graph.x.width * self.most))
        for k, (start, end) in enumerate(itertools.pairwise(segments.bounds)):
            own = {name: value[k : k + 1] for name, value in params.items()}
            for first in range(start, end, at_a_time):
                nodes_B = nodes_V[first : min(first + at_a_time, end)]
                here = (row_R >= first) & (row_R < first + nodes_B.numel())
                noisy = noisy_RZ[here]
                made_RF = network.neighbours(own, noisy, Segments(torch.tensor([0, noisy.shape[0]], device=graph.device)))
                operator = graph.mean_operator.take_rows(nodes_B)
                known_BF = averaged(operator, graph.x)
                known_BF[operator.rowptr.diff() == 0] = usual_KF[k]
                yield k, Draft(nodes_B, row_R[here] - first, made_RF, known_BF)

    def counts(self, z_NZ: Tensor, graph: GraphBatch, rng: Streams) -> Tensor:
        """How many neighbours are generated for each node, int64 [N]."""
        count_N = self.network.missing(self.params, z_NZ, graph.degree, graph.segments)
        if self.unbiased:
            up_N = rng.fork("count").uniform(graph.segments.ptr).squeeze(1)
            # A node without neighbours would consist of what is generated alone: only if it is likelier than not.
            count_N = torch.where(graph.degree > 0, (count_N + up_N).floor(), count_N)
        return count_N.round().clamp(0, self.most).long()

    def trust(self, clients: Clients[Record], hidden_share: float) -> Tensor:
        """s, how far generated rows are to be followed [K]: least squares of the changes that would be right on those made.

        On graphs that were impaired anew, both are changes of the mean features of a node's neighbours: by weight, where
        edges have weights, and with generated edges weighing what the patch will give them.
        """
        agreement = torch.zeros(len(clients.ids), device=clients.graph.device)
        length = torch.zeros_like(agreement)
        for hurt, k, made in self._trials(clients, hidden_share):
            kept = row_sums(hurt.graph.weighted_neighbours.take_rows(made.nodes)).float()
            hidden = hurt.hidden.take_rows(made.nodes)
            lost = row_sums(hidden).float()
            right_BF = averaged(hidden, clients.graph.x) - lost.unsqueeze(1) * made.known_BF
            both = kept + lost
            right_BF /= torch.where(both > 0, both, 1.0).unsqueeze(1)
            usual = clients.graph.mean_weight[k]
            drawn = usual * torch.bincount(made.row, minlength=made.nodes.numel())
            change_BF = torch.zeros_like(right_BF).index_add_(0, made.row, made.rows_RF - made.known_BF[made.row])
            change_BF = change_BF * usual / (kept + drawn).unsqueeze(1)
            agreement[k] += (right_BF * change_BF).sum()
            length[k] += change_BF.square().sum()
        return (agreement / length.clamp_min(1e-12)).clamp(0, 1)

    def _trials(self, clients: Clients[Record], hidden_share: float) -> Iterator[tuple[Impaired, int, Draft]]:
        """(impaired graph, client, what its generator makes for some of its nodes), for `CALIBRATIONS` impaired graphs."""
        for draw in range(CALIBRATIONS):
            streams = Streams.of(clients.task.seed, clients.ids, "calibrate", draw, device=clients.graph.device)
            hurt = impair(clients.graph, hidden_share, streams)
            for k, made in self.drafts(hurt.graph, clients.rng):
                yield hurt, k, made


def value_range(x: Features, k: int) -> tuple[float, float]:
    """Smallest and largest feature value of one client."""
    start, end = x.segments.bounds[k : k + 2]
    if isinstance(x.matrix, SparseMatrix):
        first, last = int(x.matrix.rowptr[start]), int(x.matrix.rowptr[end])
        values = torch.cat([x.matrix.val[first:last], x.matrix.val.new_zeros(1)])
    else:
        values = x.matrix[start:end].flatten()
    return float(values.min()), float(values.max())
