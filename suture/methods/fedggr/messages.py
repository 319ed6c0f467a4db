"""What crosses in FedGGR. Legend: K clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from suture.core.message import Kind, Message, Rows
from suture.core.tree import Tree


@dataclass(frozen=True)
class Encoder(Message):
    """Client to server: its auto-encoder, empty where it stays at home, and its number of nodes and loss [K]."""

    autoencoder: Annotated[Tree, Kind.WEIGHTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Codes(Message):
    """Client to server: E_i of line 1."""

    codes: Annotated[Rows, Kind.EMBEDDINGS]


@dataclass(frozen=True)
class GroupCodes(Message):
    """Client to server: E_i of line 1, of groups of its nodes, and how many nodes it has [K]."""

    codes: Annotated[Rows, Kind.EMBEDDINGS]
    nodes: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Down(Message):
    """Server to client: w, Z_i of line 3, and how many nodes the largest client has."""

    params: Annotated[Tree, Kind.WEIGHTS]
    z: Annotated[Rows, Kind.EMBEDDINGS]
    longest: Annotated[int, Kind.COUNTS]


@dataclass(frozen=True)
class Up(Message):
    """Client to server: w_i and the gradient of Z_i of line 4, the client's weight and training loss [K]."""

    params: Annotated[Tree, Kind.WEIGHTS]
    z_grad: Annotated[Rows, Kind.GRADIENTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]
