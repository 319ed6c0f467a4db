"""What is predicted of a node: one class, several classes, or numbers; known to everybody before the first round.

    class    y int64 [N], -1 where it is not known
    labels   y float [N, C], each 0 or 1, NaN where it is not known
    value    y float [N, C] in the user's units, NaN where it is not known; the network predicts (y - shift) / scale

Legend: N nodes, C outputs of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["class", "labels", "value"]


@dataclass(frozen=True)
class Target:
    """What labels mean."""

    kind: Kind = "class"
    class_weights: tuple[float, ...] = ()
    """class, labels: what each of C weighs in the loss; empty: all alike."""
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    """value: of the labels of all owners, C each."""


ONE_CLASS = Target()
"""The usual: one class a node, all weighing alike."""
