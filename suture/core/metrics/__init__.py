"""Metrics: how good predictions are, one number for each group of examples.

`metric.py` says what a metric is, and is the door for those of others; `ranking.py`, `shares.py` and `errors.py` hold ours.
See docs/metrics.md for their formulas.
"""

from __future__ import annotations

from suture.core.metrics.errors import ECE, LOG_LOSS, MAE, R2
from suture.core.metrics.metric import AUTO, Metric, Predicted, Task, check_metric, of_one
from suture.core.metrics.ranking import PR_AUC, ROC_AUC
from suture.core.metrics.shares import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from suture.errors import ConfigError
from suture.plugins import Door

__all__ = ["ACCURACY", "AUTO", "DOOR", "OURS", "ROC_AUC", "Metric", "Predicted", "fitting", "metric_for", "of_one"]

OURS = (ACCURACY, BALANCED_ACCURACY, MACRO_F1, ROC_AUC, PR_AUC, LOG_LOSS, ECE, MAE, R2)
"""In the order in which they are told."""
DOOR = Door("metric", "suture.metrics", {metric.name: metric for metric in OURS}, check_metric, lambda it: it.name)
IN_WORDS = {"class": "classes of nodes", "labels": "several labels of a node", "value": "numbers of nodes", "link": "links"}
USUAL = {"node": ACCURACY, "class": ACCURACY, "labels": ROC_AUC, "value": MAE, "link": ROC_AUC}
"""What `auto` means where no share of any class is known."""


def fitting(predicted: Predicted) -> tuple[Metric, ...]:
    """Those of ours that can measure this."""
    return tuple(metric for metric in OURS if predicted in metric.kinds)


def metric_for(name: str, predicted: Task | Predicted) -> Metric:
    """The metric of this name or spelling, if it can measure this; `node` is any of class, labels and value."""
    if name == AUTO:
        return USUAL[predicted]
    metric = DOOR.recall(name)
    fits = metric.kinds - {"link"} if predicted == "node" else metric.kinds & {predicted}
    if not fits:
        can = " and ".join(words for kind, words in IN_WORDS.items() if kind in metric.kinds)
        asked = "nodes" if predicted == "node" else IN_WORDS[predicted]
        others = OURS if predicted == "node" else fitting(predicted)
        names = ", ".join(other.name for other in others)
        raise ConfigError(f"the metric {metric.name} is for {can}, not for {asked}; choose one of {names}")
    return metric
