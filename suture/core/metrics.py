"""Metrics: how good predictions are, one number for each group of examples. Greater is better.

Groups are a client's validation nodes, another's test nodes, and so on; all are measured in one call, because with a hundred
clients a call for each is slower than a round of training. A metric of one's own need not: `of_one` makes one of any
function of (outputs, labels) of one group.

    @of_one("median_rank")
    def median_rank(logits_NC, y_N): ...

Legend: E examples, C classes, G groups. For links an output is the score of a pair and a label is 1 or 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from suture.errors import ConfigError
from suture.plugins import Door

Task = Literal["node", "link"]
AUTO = "auto"
"""In place of a metric's name: the task's usual one."""


@dataclass(frozen=True)
class Metric:
    """A named way of measuring."""

    name: str
    title: str
    """As the legend of a table says it."""
    task: Task
    """What its examples are: nodes with class scores [E, C], or pairs with one score each [E]."""
    measure: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    """(outputs, labels [E], group [E], G) to float64 [G]; NaN where a group has too few examples to say."""


OfOne = Callable[[Tensor, Tensor], float]
"""(outputs, labels) of one group to a number; NaN if there are too few of them to say."""


def of_one(name: str, title: str | None = None, task: Task = "node") -> Callable[[OfOne], Metric]:
    """Make a metric of a function that measures one group."""

    def made(function: OfOne) -> Metric:
        def measure(output: Tensor, label_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
            value = torch.full((groups,), torch.nan, dtype=torch.float64)
            for number in sorted(set(group_E.tolist())):
                chosen = group_E == number
                value[number] = float(function(output[chosen], label_E[chosen]))
            return value

        return Metric(name, title or name, task, measure)

    return made


def _accuracy(logits_EC: Tensor, label_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
    right = torch.bincount(group_E[logits_EC.argmax(1) == label_E], minlength=groups)
    return right.double() / torch.bincount(group_E, minlength=groups)


def roc_auc(score_E: Tensor, label_E: Tensor) -> float:
    """The chance that a linked pair scores above an unlinked one, ties counting half (Mann-Whitney)."""
    linked = label_E > 0
    positives, negatives = int(linked.sum()), int((~linked).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    _, tie = torch.unique(score_E, return_inverse=True)
    size = torch.bincount(tie).double()
    middle_rank = size.cumsum(0) - (size - 1) / 2
    rank_sum = float(middle_rank[tie[linked]].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


ACCURACY = Metric("accuracy", "Test accuracy", "node", _accuracy)
ROC_AUC = of_one("roc_auc", "ROC-AUC of held-out links", "link")(roc_auc)


def _check(thing: object, how: str) -> Metric:
    if not isinstance(thing, Metric):
        raise ConfigError(f"{how} is no metric: it must be a suture.core.metrics.Metric; see its `of_one`")
    return thing


DOOR = Door("metric", "suture.metrics", {metric.name: metric for metric in (ACCURACY, ROC_AUC)}, _check, lambda it: it.name)


def metric_for(name: str, task: Task) -> Metric:
    """The metric of this name or spelling, if it is one for this task."""
    if name == AUTO:
        return ROC_AUC if task == "link" else ACCURACY
    metric = DOOR.recall(name)
    if metric.task != task:
        raise ConfigError(
            f"the metric {metric.name} is for {metric.task} prediction, not for {task} prediction; choose another"
        )
    return metric
