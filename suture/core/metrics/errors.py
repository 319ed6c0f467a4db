"""How far predictions are off: probabilities by their logarithm and their calibration, numbers by their distance.

Legend: E examples, G groups, C classes, labels or numbers of a node.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.metrics.metric import Metric, Predicted
from suture.core.metrics.shares import entries

BINS = 15
"""Of equal width, from 0 to 1."""


def _group_sum(value_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
    return torch.bincount(group_E, weights=value_E.double(), minlength=groups)


def _group_mean(value_E: Tensor, group_E: Tensor, groups: int) -> Tensor:
    return _group_sum(value_E, group_E, groups) / torch.bincount(group_E, minlength=groups)


def _log_loss(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The mean of -log(probability of what is true)."""
    if output.ndim == 2 and label.ndim == 1:
        return _group_mean(F.cross_entropy(output.double(), label, reduction="none"), group_E, groups)
    if label.ndim == 2:
        output, label, group_E, _ = entries(output, label, group_E)
    loss = F.binary_cross_entropy_with_logits(output.double(), label.double(), reduction="none")
    return _group_mean(loss, group_E, groups)


def _calibration_error(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The mean over examples of |share that is right - mean probability of what was chosen| in the example's bin.

    Of several labels each is an example, and what is binned is the probability of the yes or no that was chosen.
    """
    if label.ndim == 2:
        output, label, group_E, _ = entries(output, label, group_E)
        sure, right = output.double().abs().sigmoid(), (output > 0) == (label > 0.5)
    else:
        sure, chosen = output.double().softmax(1).max(1)
        right = chosen == label
    # Bin b holds (b / 15, (b + 1) / 15].
    cell = group_E * BINS + (sure * BINS).ceil().sub(1).nan_to_num(0).clamp(0, BINS - 1).long()
    gap = _group_sum(right.double() - sure, cell, groups * BINS).view(groups, BINS).abs().sum(1)
    return gap / torch.bincount(group_E, minlength=groups)


def _by_output(output_EC: Tensor, label_EC: Tensor, group_E: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """(predicted, true, cell) of every known number, cells being groups times outputs, and how many these are."""
    width = label_EC.shape[1]
    output, label, group, which = entries(output_EC, label_EC, group_E)
    return output.double(), label.double(), group * width + which, groups * width


def _absolute_error(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """The mean of |predicted - true|; of several numbers the mean over them."""
    predicted, true, cell, cells = _by_output(output, label, group_E, groups)
    return _group_mean((predicted - true).abs(), cell, cells).view(groups, -1).nanmean(1)


def _r2(output: Tensor, label: Tensor, group_E: Tensor, groups: int) -> Tensor:
    """1 - (squared error) / (squared distance from the group's mean); of several numbers the mean over them."""
    predicted, true, cell, cells = _by_output(output, label, group_E, groups)
    centred = true - _group_mean(true, cell, cells)[cell]
    spread = _group_sum(centred.square(), cell, cells)
    value = 1 - _group_sum((predicted - true).square(), cell, cells) / spread
    # Equal numbers differ from their mean by rounding alone.
    alike = spread <= 1e-20 * _group_sum(true.square(), cell, cells)
    return value.masked_fill(alike, torch.nan).view(groups, -1).nanmean(1)


KNOWN_CHANCES: frozenset[Predicted] = frozenset({"class", "labels", "link"})
CHOSEN: frozenset[Predicted] = frozenset({"class", "labels"})
NUMBERS: frozenset[Predicted] = frozenset({"value"})
LOG_LOSS = Metric("log_loss", "Test log-loss", KNOWN_CHANCES, _log_loss, False, is_share=False, lowest=0.0)
ECE = Metric("ece", "Test calibration error", CHOSEN, _calibration_error, greater_is_better=False)
MAE = Metric("mae", "Test mean absolute error", NUMBERS, _absolute_error, False, is_share=False, lowest=0.0)
R2 = Metric("r2", "Test R2", NUMBERS, _r2, is_share=False, highest=1.0)
