"""What clients and server of FedSage+ keep."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suture.core.message import Record, Rows
from suture.core.tree import Tree
from suture.methods.averaging import Kept, Server
from suture.training.optimisers import Moments


@dataclass(frozen=True)
class Mending(Kept):
    """What a client keeps: also its generator with moments, a gradient waiting for its foreign part, its new neighbours.

    `drawn` [K] is the key of what these were drawn from, with which they can be drawn again; `told` [K] how many offers of
    others it has answered, where that is limited.
    """

    generator: Tree
    generator_moments: Moments
    waiting: Tree
    source: Rows
    column: Rows
    value: Rows
    drawn: Tensor
    told: Tensor

    @property
    def generator_steps(self) -> int:
        """Steps that the generators have taken; all clients take them together."""
        return int(self.generator_moments["step"].max())


@dataclass(frozen=True)
class Generators(Record):
    """What mends a graph after a run: each client's generator [K, ...], and the key [K] of what line 5 drew from."""

    generator: Tree
    drawn: Tensor


@dataclass(frozen=True)
class MendingServer(Server):
    """The global classifier, and the generator of appendix D.2 [1, ...] (empty if everybody keeps its own)."""

    generator: Tree
