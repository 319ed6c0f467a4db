"""What crosses while the generators of FedSage+ train. Legend: K clients, M senders, E rows exchanged, Z latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from suture.core.message import Kind, Message
from suture.core.tree import Tree


@dataclass(frozen=True)
class Offer(Message):
    """Line 1, client to server: fGen, rows z + noise [K, E, Z], what each row weighs in the loss [K, E] (0: padding)."""

    fgen: Annotated[Tree, Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Offers(Message):
    """Line 2, server to each client: fGen of M clients [K, M, ...], rows [K, M, E, Z], weights [K, M, E] (0 for its own)."""

    fgen: Annotated[Tree, Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class SharedOffers(Message):
    """Line 2 where answers are summed: the same for every client, its own offer included, and who made them, a line each.

    Owners add up securely only what answers one message: could the server leave offers out for all but one of them, the sum
    would be that one's answer.
    """

    fgen: Annotated[Tree, Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    weight: Annotated[Tensor, Kind.COUNTS]
    senders: Annotated[str, Kind.COUNTS]

    def of_others(self) -> Offers:
        """At the clients: nobody answers itself."""
        senders = self.senders.split("\n")
        other_KM = torch.tensor([[sender != name for sender in senders] for name in self.ids], device=self.weight.device)
        return Offers(self.ids, self.fgen, self.rows, self.weight * other_KM.unsqueeze(2))


@dataclass(frozen=True)
class Gradients(Message):
    """Line 2, client to server: its gradient for each of M clients' fGen [K, M, ...] (zero for its own)."""

    fgen: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class Answers(Message):
    """Line 2 where the server needs the sum alone: the same gradients [K, M, ...], and 1 [K], by which clients weigh."""

    fgen: Annotated[Tree, Kind.GRADIENTS]
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class ForeignGradient(Message):
    """Line 3, server to client: the sum of the others' gradients of its fGen [K, ...]."""

    fgen: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class GeneratorUp(Message):
    """Client to server: its generator after a step of its own (empty if everybody keeps its own), and its loss [K]."""

    generator: Annotated[Tree, Kind.WEIGHTS]
    loss: Annotated[Tensor, Kind.LOSSES]
