"""GCFL+: Federated graph classification over non-IID graphs. Xie et al., NeurIPS 2021.

GCFL with another likeness in line 3 of its box. Single updates fluctuate, so the server keeps for each client the lengths
of its last d updates, q_k = (||dw_k^{t-d+1}||, ..., ||dw_k^t||), and cuts along the minimum cut of the graph with weights

    max(D) - D_ij,    D_ij = DTW(q_i, q_j) = min over warping paths of sqrt(sum_(a,b) (q_i^a - q_j^b)^2)

once d lengths of each member are known. After a cut the members' sequences begin anew. The authors' code tracks the length
of the last batch's gradient or, in a variant, of the update, as here: the server knows it already, so clients send nothing
more than in GCFL. Their scripts take d = 5 or 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from suture.core.tree import Tree
from suture.methods.gcfl import Gcfl


@dataclass(frozen=True)
class GcflPlus(Gcfl):
    """GCFL that compares how the lengths of clients' updates developed."""

    name: ClassVar[str] = "gcfl_plus"
    summary: ClassVar[str] = "GCFL that compares sequences of update lengths by dynamic time warping"
    paper: ClassVar[str] = "Xie et al., NeurIPS 2021"

    seq_length: Annotated[int, Field(ge=2)] = 5
    """d, how many update lengths are compared."""
    standardise: bool = False
    """Divide each sequence by its standard deviation, so that only its shape counts."""

    def blank(self, clients: int) -> Tree:
        """No lengths yet: `lengths` [K, d], the latest last, and how many of them are `known` [K]."""
        known = torch.zeros(clients, dtype=torch.int64)
        return {"lengths": torch.zeros(clients, self.seq_length), "known": known}

    def remember(self, memory: Tree, heard: Tensor, gram_KK: Tensor) -> Tree:
        """Append this round's lengths and drop the oldest."""
        latest = torch.cat([memory["lengths"][heard, 1:], gram_KK.diagonal().sqrt().unsqueeze(1)], dim=1)
        known = memory["known"].index_add(0, heard, torch.ones_like(heard)).clamp_max(self.seq_length)
        return {"lengths": memory["lengths"].index_copy(0, heard, latest), "known": known}

    def likeness(self, memory: Tree, members: Tensor) -> Tensor | None:
        """max(D) - D, or None while a member's sequence is too short."""
        if int(memory["known"][members].min()) < self.seq_length:
            return None
        sequences = memory["lengths"][members]
        if self.standardise:
            sequences = sequences / sequences.std(1, correction=0, keepdim=True).clamp_min(1e-12)
        distance = warping_distances(sequences)
        return distance.max() - distance

    def forget(self, memory: Tree, members: Tensor) -> Tree:
        """The members' sequences belong to the cluster that was cut."""
        return memory | {"known": memory["known"].index_fill(0, members, 0)}


def warping_distances(sequence_KD: Tensor) -> Tensor:
    """Dynamic time warping between all pairs of rows, [K, K].

    The usual dynamic programme over cells (a, b) of a pair, cost <- (q_i^a - q_j^b)^2 + min(left, below, diagonal), with
    all pairs at once and a row of cells b at a time.
    """
    clients, length = sequence_KD.shape
    infinite = sequence_KD.new_full((clients, clients), float("inf"))
    above = [infinite.new_zeros(clients, clients)] + [infinite] * length
    for a in range(length):
        row = [infinite]
        for b in range(length):
            step = (sequence_KD[:, None, a] - sequence_KD[None, :, b]).square()
            row.append(step + torch.minimum(torch.minimum(row[b], above[b + 1]), above[b]))
        above = row
    return above[length].sqrt()
