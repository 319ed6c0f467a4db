"""From clients' counts to the numbers of a table, and the choice of the round that is reported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from suture.core.message import Model
from suture.core.metrics import ACCURACY, Metric
from suture.graph.batch import GraphBatch
from suture.method import Method, Scores, Task, score
from suture.settings import EvaluationSettings, Protocol

TRAIN, VALIDATION, TEST = 0, 1, 2


def accuracies(scores: Scores, column: int) -> Tensor:
    """The score of each client that has examples of this role, float64 [at most K]."""
    return scores.value[scores.total[:, column] > 0, column]


def averaged(scores: Scores, column: int, average: str) -> float:
    """Over clients: plain mean, or weighted by examples; NaN if nobody has any."""
    weight = scores.total[:, column].double()
    if average == "clients":
        weight = (weight > 0).double()
    return float((scores.value[:, column] * weight).sum() / weight.sum())


@dataclass(frozen=True)
class Summary:
    """Test scores of one evaluation, in the three ways the table shows."""

    client_mean: float
    weighted: float
    worst: float

    @staticmethod
    def of(scores: Scores, metric: Metric) -> Summary:
        """Summarise the test column."""
        values = accuracies(scores, TEST)
        worst = float((values * metric.sign).min()) * metric.sign if values.numel() else float("nan")
        return Summary(averaged(scores, TEST, "clients"), averaged(scores, TEST, "nodes"), worst)


def validation_loss(scores: Scores, average: str) -> float:
    """Over clients, weighted as their validation scores are; if nobody has one, over those with a validation example."""
    weight = scores.total[:, VALIDATION].double()
    if average == "clients" or not weight.any():
        weight = ((weight > 0) if weight.any() else (scores.validation_loss > 0)).double()
    return float((scores.validation_loss.double() * weight).sum() / weight.sum())


@dataclass(frozen=True)
class Selection:
    """The reported evaluation so far: its scores, and the round they were taken in for each client [K].

    The best validation score wins. Of equal ones, and where nobody can be scored, it is that of the lower validation loss,
    and the later one if that is equal too: a model may have ceased to change its decisions long before it ceased to learn.
    A round after which everybody's scores and losses are what they were has changed nothing, and is not the reported one.
    """

    settings: EvaluationSettings
    metric: Metric
    scores: Scores | None = None
    round: int = 0
    rounds: Tensor | None = None

    def update(self, scores: Scores, round_number: int) -> tuple[Selection, tuple[str, ...]]:
        """(the new selection, the ids of the clients whose reported model is now the one of this round)."""
        everyone = torch.full((len(scores.ids),), round_number)
        taken = replace(self, scores=scores, round=round_number, rounds=everyone)
        if self.scores is None or self.rounds is None or self.settings.select == "last":
            return taken, scores.ids
        if self.settings.select == "best-validation":
            new, old = (self._standing(one) for one in (scores, self.scores))
            return (taken, scores.ids) if new >= old and not _same(scores, self.scores) else (self, ())
        improved = self._improved(scores, self.scores)
        ids = tuple(name for name, yes in zip(scores.ids, improved.tolist(), strict=True) if yes)
        if not ids:
            return self, ()
        merged = self.scores.replace_rows(scores.select(ids))
        rounds = torch.where(improved, everyone, self.rounds)
        return replace(self, scores=merged, round=int(rounds.max()), rounds=rounds), ids

    def _standing(self, scores: Scores) -> Standing:
        how = self.settings.average
        return standing(averaged(scores, VALIDATION, how), validation_loss(scores, how), self.metric)

    def _improved(self, new: Scores, old: Scores) -> Tensor:
        """Which clients are better off with the new round, bool [K]."""
        now, then = (_Told.of(one, self.metric) for one in (new, old))
        better = (now.worth > then.worth) | ((now.worth == then.worth) & (now.validation_loss <= then.validation_loss))
        # Of an owner that could not be reached the old scores are repeated; they are not those of its present model. One
        # that tells no scores at all repeats nothing: its last model counts.
        repeated = (now.total > 0).any(1) & (now.value == then.value).all(1) & (now.loss == then.loss)
        return torch.from_numpy(better & ~(repeated & (now.validation_loss == then.validation_loss)))


class _Told(NamedTuple):
    """Scores as numpy's arrays, with which a few numbers are compared in a fraction of torch's time."""

    value: np.ndarray
    total: np.ndarray
    loss: np.ndarray
    validation_loss: np.ndarray
    worth: np.ndarray
    """Validation scores so that greater is better; what is unknown is worst."""

    @staticmethod
    def of(scores: Scores, metric: Metric) -> _Told:
        parts = (scores.value, scores.total, scores.loss, scores.validation_loss)
        value, total, loss, validation = (part.cpu().numpy() for part in parts)
        worth = np.where(total[:, VALIDATION] > 0, metric.sign * value[:, VALIDATION], -np.inf)
        return _Told(value, total, loss, np.nan_to_num(validation, nan=np.inf), worth)


def _same(new: Scores, old: Scores) -> bool:
    """Whether nothing at all has changed, training losses included, of what somebody told."""
    fields = ("value", "total", "loss", "validation_loss")
    return bool((new.total > 0).any()) and all(torch.equal(getattr(new, name), getattr(old, name)) for name in fields)


Standing = tuple[float, float]
"""How good a round is, to be compared: its validation score, then its validation loss, both so that greater is better."""


def standing(score: float | None, loss: float | None, metric: Metric) -> Standing:
    """Of a round with this validation score and loss; what is unknown is worst."""
    worth = -math.inf if score is None or math.isnan(score) else metric.sign * score
    return worth, -math.inf if loss is None or math.isnan(loss) else -loss


def out_of_patience(lines: Sequence[Mapping[str, Any]], patience: int, metric: Metric = ACCURACY) -> bool:
    """Whether the last of these iterations was a test, `patience` or more of them after the best one; 0: never.

    Of equal scores that with the lower loss is the best, and the first of those. Only a test can end a phase, so its last
    model is always a tested one.
    """
    if patience == 0 or not lines or lines[-1].get("validation") is None:
        return False
    standings = [standing(line.get("validation"), line.get("validation_loss"), metric) for line in lines]
    return len(lines) - 1 - standings.index(max(standings)) >= patience


def accuracy_on(graph: GraphBatch, method: Method[Any, Any], model: Model, task: Task) -> float:
    """Test score of one model on one graph; NaN if it has too few test nodes to say."""
    with torch.no_grad():
        scores = score(graph, method.predict(graph, model, task), task.metric, method.training)
    return averaged(scores, TEST, "nodes")


def tested_on_uncut(method: Method[Any, Any], protocol: Protocol) -> bool:
    """Whether the models of a run are tested on the uncut graph too.

    Links are held out by clients, so nobody can test them on the uncut graph. Personal models make no statement about the
    whole graph, except in protocols whose headline is the uncut graph: there each is tested on it.
    """
    return protocol.task == "node" and (method.one_model or protocol.evaluation.graph == "global")


def global_accuracy(method: Method[Any, Any], uncut_graph: GraphBatch, models: Model, task: Task) -> float:
    """Score on the uncut graph's test nodes, averaged over `models` (one row if one model serves everybody)."""
    each = [accuracy_on(uncut_graph, method, models.select([name]), task) for name in models.ids]
    return sum(each) / len(each)
