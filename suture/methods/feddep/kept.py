"""What clients of FedDEP keep. Legend: K clients, M of them in all, N nodes, D width of an embedding, C clusters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suture.core.message import Record, Rows
from suture.core.tree import Tree
from suture.methods.averaging import Kept
from suture.training.optimisers import Moments


@dataclass(frozen=True)
class Generating(Kept):
    """What a client keeps: also its generator and local F with their moments, and the epochs these have had.

    `draw` [K] is the key by which edges were drawn: only these may be seen in what it sends. `targets` [T_k, D],
    `target_of` [N_k] and `others` [K, M - 1, C, D] are what generated embeddings are to resemble.
    """

    generator: Tree
    generator_moments: Moments
    targets: Rows
    target_of: Rows
    others: Tensor
    epoch: int
    draw: Tensor


@dataclass(frozen=True)
class Generators(Record):
    """What mends a graph after a run: each client's DGen, [K, ...]."""

    generator: Tree
