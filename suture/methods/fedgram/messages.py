"""What FedGram's parties tell each other and keep; see `suture.methods.fedgram.method` for the lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from suture.core.message import Kind, Message, Rows
from suture.core.tree import Tree
from suture.methods.averaging import Kept, Server

Told = Annotated[Tensor, Kind.STATISTICS]
Weight = Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Counted(Message):
    """Line 1: means over a client's nodes of x, |x| and x != 0, [K, D]; `weight` [K] is how many, in small units."""

    mean: Told
    size: Told
    filled: Told
    weight: Weight


@dataclass(frozen=True)
class Centre(Message):
    """Line 1: what deviations are measured from and in, [K, D]."""

    mean: Told
    size: Told


@dataclass(frozen=True)
class Squares(Message):
    """Line 1: means of ((x - mean) / size)^2, [K, D]."""

    square: Told
    weight: Weight


@dataclass(frozen=True)
class Directions(Message):
    """Lines 2 and 3: m and s [K, D], Q [K, D, R]."""

    shift: Told
    scale: Told
    basis: Told


@dataclass(frozen=True)
class Products(Message):
    """Line 2: means over a client's nodes, [K, D, R]."""

    products: Told
    weight: Weight


@dataclass(frozen=True)
class Relations(Message):
    """Line 3: means over a client's nodes, [K, R, R]."""

    own: Told
    ends: Told
    crossed: Told
    weight: Weight


@dataclass(frozen=True)
class Description(Message):
    """Line 4: everything that follows, [K, ...]."""

    gram: Annotated[Tree, Kind.STATISTICS]


@dataclass(frozen=True)
class GramServer(Server):
    """The global model; the first Q [1, D, R], what lines 1 to 4 have found so far [1, ...], of how many nodes."""

    first: Tensor
    gram: Tree = field(default_factory=dict, kw_only=True)
    nodes: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class Described(Kept):
    """What a client keeps: also classes that nodes are sure of, int64 [N], -1 for none; how often they were asked [K].

    And what line 4 told.
    """

    classes: Rows
    stage: Tensor
    gram: Tree = field(default_factory=dict)
