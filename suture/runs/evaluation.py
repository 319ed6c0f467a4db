"""From clients' counts to the numbers of a table, and the choice of the round that is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suture.core.message import Model
from suture.graph.batch import GraphBatch
from suture.method import Method, Scores, Task, score
from suture.settings import EvaluationSettings, Protocol

TRAIN, VALIDATION, TEST = 0, 1, 2


def accuracies(scores: Scores, column: int) -> Tensor:
    """Accuracy (or ROC-AUC) of each client that has any example of this role, float64 [at most K]."""
    return scores.value[scores.total[:, column] > 0, column]


def averaged(scores: Scores, column: int, average: str) -> float:
    """Over clients: plain mean, or weighted by examples; NaN if nobody has any."""
    weight = scores.total[:, column].double()
    if average == "clients":
        weight = (weight > 0).double()
    return float((scores.value[:, column] * weight).sum() / weight.sum())


@dataclass(frozen=True)
class Summary:
    """Test accuracy of one evaluation, in the three ways the table shows."""

    client_mean: float
    weighted: float
    worst: float

    @staticmethod
    def of(scores: Scores) -> Summary:
        """Summarise the test column."""
        values = accuracies(scores, TEST)
        worst = float(values.min()) if values.numel() else float("nan")
        return Summary(averaged(scores, TEST, "clients"), averaged(scores, TEST, "nodes"), worst)


@dataclass(frozen=True)
class Selection:
    """The reported evaluation so far: its scores, and the round they were taken in for each client [K]."""

    settings: EvaluationSettings
    scores: Scores | None = None
    round: int = 0
    rounds: Tensor | None = None

    def update(self, scores: Scores, round_number: int) -> tuple[Selection, tuple[str, ...]]:
        """(the new selection, the ids of the clients whose reported model is now the one of this round)."""
        everyone = torch.full((len(scores.ids),), round_number)
        taken = Selection(self.settings, scores, round_number, everyone)
        if self.scores is None or self.rounds is None or self.settings.select == "last":
            return taken, scores.ids
        if self.settings.select == "best-validation":
            how = self.settings.average
            better = averaged(scores, VALIDATION, how) > averaged(self.scores, VALIDATION, how)
            return (taken, scores.ids) if better else (self, ())
        improved = scores.value[:, VALIDATION] > self.scores.value[:, VALIDATION]
        ids = tuple(name for name, yes in zip(scores.ids, improved.tolist(), strict=True) if yes)
        if not ids:
            return self, ()
        merged = self.scores.replace_rows(scores.select(ids))
        rounds = torch.where(improved, everyone, self.rounds)
        return Selection(self.settings, merged, int(rounds.max()), rounds), ids


def out_of_patience(lines: Sequence[Mapping[str, Any]], patience: int) -> bool:
    """Whether the last of these iterations was a test, `patience` or more of them after the best one; 0: never.

    The first of equal scores is the best. Only a test can end a phase, so its last model is always a tested one.
    """
    if patience == 0 or not lines or lines[-1].get("validation") is None:
        return False
    scores = [line.get("validation") for line in lines]
    best = scores.index(max(score for score in scores if score is not None))
    return len(scores) - 1 - best >= patience


def accuracy_on(graph: GraphBatch, method: Method[Any, Any], model: Model, task: Task) -> float:
    """Test accuracy of one model on one graph."""
    with torch.no_grad():
        scores = score(graph, method.predict(graph, model, task), task.metric)
    return float(scores.value[0, TEST])


def tested_on_uncut(method: Method[Any, Any], protocol: Protocol) -> bool:
    """Whether the models of a run are tested on the uncut graph too.

    Links are held out by clients, so nobody can test them on the uncut graph. Personal models make no statement about the
    whole graph, except in protocols whose headline is the uncut graph: there each is tested on it.
    """
    return protocol.task == "node" and (method.one_model or protocol.evaluation.graph == "global")


def global_accuracy(method: Method[Any, Any], uncut_graph: GraphBatch, models: Model, task: Task) -> float:
    """Accuracy on the uncut graph's test nodes, averaged over `models` (one row if one model serves everybody)."""
    each = [accuracy_on(uncut_graph, method, models.select([name]), task) for name in models.ids]
    return sum(each) / len(each)
