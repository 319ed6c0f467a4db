"""How well scores rank: the areas under the ROC curve and under the precision-recall curve.

Two outcomes (a class of two, a link) have one curve. More classes, and several labels, have one each, that class against the
rest; the metric is their plain mean over the classes that occur with both outcomes in the group.

One sort serves all groups. Legend: E examples, G groups, C classes, T ties (of equal score in the same group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.metrics.metric import Metric, Predicted

OneCurve = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(score [E], positive bool [E], group [E], G) to float64 [G], NaN where one of the two outcomes is missing."""


def _curves(output: Tensor, label: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """(score, positive, which examples these are; None: all of them) of every class."""
    if output.ndim == 1:
        yield output, label > 0, None
    elif label.ndim == 2:
        for score, outcome in zip(output.unbind(1), label.unbind(1), strict=True):
            known = ~outcome.isnan()
            yield score[known], outcome[known] > 0.5, known
    elif output.shape[1] == 2:
        # The same order as that of the probabilities, which would be equal where float numbers near 1 are.
        yield output[:, 1].double() - output[:, 0].double(), label == 1, None
    else:
        for number, share in enumerate(output.double().softmax(1).unbind(1)):
            yield share, label == number, None


def _mean_of(curve: OneCurve) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    def measure(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
        each = [
            curve(score, positive, group_E if known is None else group_E[known], groups)
            for score, positive, known in _curves(output, label)
        ]
        return torch.stack(each).nanmean(0)

    return measure


@dataclass(frozen=True)
class _Ranked:
    """Examples by group and, inside, by score."""

    positive: Tensor
    """bool [E]."""
    group: Tensor
    tie: Tensor
    """Which tie each example belongs to, [E]."""

    @staticmethod
    def of(score_E: Tensor, positive_E: Tensor, group_E: Tensor, descending: bool) -> _Ranked:
        # A score that is no number says nothing; below all others it at least says so consistently.
        score_E = score_E.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        order = torch.argsort(score_E, stable=True, descending=descending)
        order = order[torch.argsort(group_E[order], stable=True)]
        score, group = score_E[order], group_E[order]
        begins = torch.ones_like(group, dtype=torch.bool)
        begins[1:] = (score[1:] != score[:-1]) | (group[1:] != group[:-1])
        return _Ranked(positive_E[order], group, begins.cumsum(0) - 1)


def _roc(score_E: Tensor, positive_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The chance that a positive scores above a negative, ties counting half (Mann-Whitney), by the sum of middle ranks."""
    ranked = _Ranked.of(score_E, positive_E, group_E, descending=False)
    size_T = torch.bincount(ranked.tie).double()
    middle_T = size_T.cumsum(0) - (size_T - 1) / 2
    total_G = torch.bincount(group_E, minlength=groups)
    up, owner = ranked.positive, ranked.group[ranked.positive]
    rank = middle_T[ranked.tie[up]] - pointers(total_G)[owner]
    rank_sum = rank.new_zeros(groups).index_add_(0, owner, rank)
    positives = torch.bincount(owner, minlength=groups).double()
    return (rank_sum - positives * (positives + 1) / 2) / (positives * (total_G - positives))


def _average_precision(score_E: Tensor, positive_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """Sum over thresholds of (what recall gains there) * (precision there); examples of equal score pass together."""
    ranked = _Ranked.of(score_E, positive_E, group_E, descending=True)
    last_T = torch.bincount(ranked.tie).cumsum(0) - 1
    owner_T = ranked.group[last_T]
    total_G = torch.bincount(group_E, minlength=groups)
    positives_G = torch.bincount(ranked.group[ranked.positive], minlength=groups)
    # Of nothing, bincount counts in whole numbers, whatever the weights.
    found_T = torch.bincount(ranked.tie, weights=ranked.positive.double(), minlength=last_T.numel()).double()
    above_T = found_T.cumsum(0) - pointers(positives_G)[owner_T]
    precision_T = above_T / (last_T + 1 - pointers(total_G)[owner_T])
    area = found_T.new_zeros(groups).index_add_(0, owner_T, found_T * precision_T)
    return (area / positives_G).masked_fill_(positives_G == total_G, torch.nan)


KINDS: frozenset[Predicted] = frozenset({"class", "labels", "link"})
ROC_AUC = Metric("roc_auc", "Test ROC-AUC", KINDS, _mean_of(_roc))
PR_AUC = Metric("pr_auc", "Test PR-AUC (average precision)", KINDS, _mean_of(_average_precision))
