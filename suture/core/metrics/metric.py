"""What a metric is.

Groups are a client's validation nodes, another's test nodes, and so on; all are measured in one call, because with a hundred
clients a call for each is slower than a round of training. A metric of one's own need not: `of_one` makes one of any
function of (outputs, labels) of one group.

    @of_one("median_rank")
    def median_rank(logits_NC, y_N): ...

What a metric is given, by what is predicted:

    class    outputs [E, C] before the softmax    labels int64 [E]
    labels   outputs [E, C] before the sigmoid    labels float [E, C], 0 or 1, NaN where one is not known
    value    outputs [E, C] in the user's units   labels float [E, C], NaN where one is not known
    link     scores of pairs [E]                  labels [E], 1 or 0

Legend: E examples, C outputs of the network, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from suture.errors import ConfigError

Task = Literal["node", "link"]
Predicted = Literal["class", "labels", "value", "link"]
"""What is predicted: one class of a node, several, numbers, or whether two nodes are linked."""
AUTO = "auto"
"""In place of a metric's name: the one that fits."""


@dataclass(frozen=True)
class Metric:
    """A named way of measuring."""

    name: str
    title: str
    """As the legend of a table says it."""
    kinds: frozenset[Predicted]
    """What it can measure."""
    measure: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    """(outputs, labels, group [E], G) to float64 [G]; NaN where a group has too few examples to say."""
    greater_is_better: bool = True
    is_share: bool = True
    """From 0 to 1, and shown in percent."""
    lowest: float = -math.inf
    highest: float = math.inf
    """Of one that is no share: what it can be."""

    @property
    def range(self) -> tuple[float, float]:
        """(the lowest value it can have, the highest)."""
        return (0.0, 1.0) if self.is_share else (self.lowest, self.highest)

    @property
    def sign(self) -> float:
        """What a value is multiplied with, so that greater is better."""
        return 1.0 if self.greater_is_better else -1.0

    @property
    def direction(self) -> str:
        """In words."""
        return "greater is better" if self.greater_is_better else "smaller is better"


OfOne = Callable[[Tensor, Tensor], float]
"""(outputs, labels) of one group to a number; NaN if there are too few of them to say."""


def of_one(
    name: str,
    title: str | None = None,
    kinds: Iterable[Predicted] = ("class",),
    *,
    greater_is_better: bool = True,
    is_share: bool = True,
) -> Callable[[OfOne], Metric]:
    """Make a metric of a function that measures one group."""

    def made(function: OfOne) -> Metric:
        def measure(output: Tensor, label_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
            value = torch.full((groups,), torch.nan, dtype=torch.float64)
            for number in sorted(set(group_E.tolist())):
                chosen = group_E == number
                value[number] = float(function(output[chosen], label_E[chosen]))
            return value

        return Metric(name, title or name, frozenset(kinds), measure, greater_is_better, is_share)

    return made


def check_metric(thing: object, how: str) -> Metric:
    """Refuse what came through the door and is none."""
    if not isinstance(thing, Metric):
        raise ConfigError(f"{how} is no metric: it must be a suture.core.metrics.Metric; see its `of_one`")
    return thing
