"""Shares of right decisions: the class with the greatest output, and of several labels those with an output above 0.

Legend: E examples, G groups, C classes or labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.metrics.metric import Metric, Predicted


def tallied(group_E: Tensor, which_E: Tensor, groups: int, classes: int) -> Tensor:
    """How often each of C occurs in each group, float64 [G, C]."""
    return torch.bincount(group_E * classes + which_E, minlength=groups * classes).view(groups, classes).double()


def entries(output_EC: Tensor, label_EC: Tensor, group_E: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, label, group, which of C) of every label that is known, one after the other."""
    known = ~label_EC.isnan()
    row, which = known.nonzero(as_tuple=True)
    return output_EC[known], label_EC[known], group_E[row], which


def _accuracy(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    if label.ndim == 2:
        output, label, group_E, _ = entries(output, label, group_E)
        right = (output > 0) == (label > 0.5)
    else:
        right = output.argmax(1) == label
    return torch.bincount(group_E[right], minlength=groups).double() / torch.bincount(group_E, minlength=groups)


def _balanced_accuracy(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The mean recall of the classes that occur; of labels the mean of (recall of yes + recall of no) / 2."""
    if label.ndim == 1:
        right = output.argmax(1) == label
        classes = output.shape[1]
        recall_GC = tallied(group_E[right], label[right], groups, classes) / tallied(group_E, label, groups, classes)
        return recall_GC.nanmean(1)
    output, label, group_E, which = entries(output, label, group_E)
    cells, cell = 2 * _width(which), 2 * which + (label > 0.5)
    right = (output > 0) == (label > 0.5)
    recall = tallied(group_E[right], cell[right], groups, cells) / tallied(group_E, cell, groups, cells)
    return recall.view(groups, -1, 2).mean(2).nanmean(1)


def _macro_f1(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The mean of 2 TP / (true + predicted) over the classes that occur in either."""
    if label.ndim == 1:
        classes, chosen = output.shape[1], output.argmax(1)
        right = chosen == label
        hits = tallied(group_E[right], label[right], groups, classes)
        both = tallied(group_E, label, groups, classes) + tallied(group_E, chosen, groups, classes)
    else:
        output, label, group_E, which = entries(output, label, group_E)
        yes, said, classes = label > 0.5, output > 0, _width(which)
        hits = tallied(group_E[yes & said], which[yes & said], groups, classes)
        both = sum((tallied(group_E[at], which[at], groups, classes) for at in (yes, said)), torch.zeros_like(hits))
    return (2 * hits / both).nanmean(1)


def _width(which: Tensor) -> int:
    return int(which.max()) + 1 if which.numel() else 1


DECIDED: frozenset[Predicted] = frozenset({"class", "labels"})
ACCURACY = Metric("accuracy", "Test accuracy", DECIDED, _accuracy)
BALANCED_ACCURACY = Metric("balanced_accuracy", "Test balanced accuracy", DECIDED, _balanced_accuracy)
MACRO_F1 = Metric("macro_f1", "Test macro-F1", DECIDED, _macro_f1)
