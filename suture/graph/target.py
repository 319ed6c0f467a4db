"""What is predicted of a node: one class, several classes, or numbers; known to everybody before the first round.

    class    y int64 [N], -1 where it is not known
    labels   y float [N, C], each 0 or 1, NaN where it is not known
    value    y float [N, C] in the user's units, NaN where it is not known; the network predicts (y - shift) / scale

Legend: N nodes, C outputs of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from suture.core.metrics.errors import MAE, R2
from suture.core.metrics.ranking import ROC_AUC
from suture.core.metrics.shares import ACCURACY

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

    def probabilities(self, out_NC: Tensor) -> Tensor:
        """What a network's output says: probabilities of classes or labels [N, C], or numbers in the user's units."""
        if self.kind == "class":
            return out_NC.softmax(1)
        return out_NC.sigmoid() if self.kind == "labels" else self.in_units(out_NC)

    def in_units(self, out_NC: Tensor) -> Tensor:
        """value: predicted numbers as the user has them."""
        if not self.scale:
            return out_NC
        return out_NC * torch.tensor(self.scale, device=out_NC.device) + torch.tensor(self.shift, device=out_NC.device)

    def decided(self, out_NC: Tensor) -> Tensor:
        """The predicted class [N], labels of 0 and 1 [N, C], or numbers [N, C]."""
        if self.kind == "class":
            return out_NC.argmax(1)
        return (out_NC > 0).long() if self.kind == "labels" else self.in_units(out_NC)


ONE_CLASS = Target()
"""The usual: one class a node, all weighing alike."""

UNEVEN_BELOW = 0.5
"""Classes are uneven where the rarest has less than this part of an equal share."""


def uneven(counts: Sequence[float]) -> bool:
    """Whether a model could do well on most examples by never predicting some class that occurs."""
    present = [count for count in counts if count > 0]
    return len(present) > 1 and min(present) < UNEVEN_BELOW * sum(present) / len(present)


def balanced_weights(counts: Sequence[float]) -> tuple[float, ...]:
    """What classes must weigh for each that occurs to weigh the same in all; 1 on average over examples."""
    present = sum(count > 0 for count in counts)
    return tuple(sum(counts) / (present * count) if count > 0 else 1.0 for count in counts)


def automatic_metric(target: Target, class_counts: Sequence[float] = (), *, link: bool = False) -> str:
    """The name of the metric that `auto` stands for; `class_counts` are training nodes of each class, of all owners.

    class    accuracy; if the rarest class that occurs has less than half of an equal share, roc_auc: a model that says the
             most frequent class of every node has a high accuracy, and the same one in every round
    labels   roc_auc, as each label is usually rare
    value    mae, which one owner with nearly equal numbers cannot spoil as it does r2; of several numbers, whose units may
             differ, r2
    link     roc_auc
    """
    if link or target.kind == "labels":
        return ROC_AUC.name
    if target.kind == "value":
        return R2.name if len(target.scale) > 1 else MAE.name
    return ROC_AUC.name if uneven(class_counts) else ACCURACY.name
