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


ONE_CLASS = Target()
"""The usual: one class a node, all weighing alike."""


def automatic_metric(target: Target, class_counts: Sequence[int] = (), *, link: bool = False) -> str:
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
    counts = [count for count in class_counts if count > 0]
    uneven = len(counts) > 1 and min(counts) < sum(counts) / (2 * len(counts))
    return ROC_AUC.name if uneven else ACCURACY.name
