"""What an owner tells of its test scores, and of losses.

A coordinator chooses the models that are tested. Seven that always answer with the same class give the number of nodes of
each class, to the last node, if scores are exact. Rounding hides single nodes from who does not choose models with care;
only noise with an account, or silence, holds against who does.

    exact     as they are
    rounded   to multiples of 10 nodes: how many there are, and how many are right
    noised    accuracy only: six counts (nodes and right ones, in training, validation and test) with a discrete Gaussian.
              A node adds one to two of them at most: the deviation is sigma sqrt(2), accounted for as (sigma, 1, tests)
    off       nothing: no nodes, no score

Losses tell as much and have no bound, so they are told with exact scores only; otherwise zero stands in their place.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from suture.core.message import Kind, Message
from suture.core.metrics import ACCURACY
from suture.core.streams import Secret
from suture.method import Scores
from suture.privacy.gaussian import discrete_gaussian
from suture.privacy.mechanisms import grid_for

Evaluations = Literal["exact", "rounded", "noised", "off"]
NODES = 10
M = TypeVar("M", bound=Message)


def without_losses(message: M) -> M:
    """The message with zero in the place of its losses."""
    names = [field.name for field in fields(message) if type(message).kind_of(field.name) == Kind.LOSSES]
    held = {name: getattr(message, name) for name in names}
    silent: dict[str, Any] = {name: torch.zeros_like(one) for name, one in held.items() if isinstance(one, Tensor)}
    return replace(message, **silent)


def nothing_told(ids: tuple[str, ...]) -> Scores:
    """As of clients without any node."""
    count = len(ids)
    value, total = torch.zeros(count, 3, dtype=torch.float64), torch.zeros(count, 3, dtype=torch.int64)
    return Scores(ids, value, total, torch.zeros(count), torch.zeros(count))


def rounded(scores: Scores) -> Scores:
    """To multiples of `NODES` nodes."""
    total = (scores.total.double() / NODES).round() * NODES
    right = (scores.value * scores.total.double() / NODES).round() * NODES
    return _with_counts(scores, right, total)


def noised(scores: Scores, metric: str, sigma: float, secret: Secret) -> Scores:
    """With noise; nothing where the score is not a share of counted nodes."""
    if metric != ACCURACY.name:
        return nothing_told(scores.ids)
    counts = torch.stack([scores.value * scores.total.double(), scores.total.double()]).round()
    grid, digits = grid_for(sigma, 2**0.5, counts.numel())
    noise = discrete_gaussian(secret, counts.numel(), digits).view_as(counts)
    right, total = ((counts / grid).round() + noise) * grid
    return _with_counts(scores, right, total.round())


def _with_counts(scores: Scores, right: Tensor, total: Tensor) -> Scores:
    known = total >= 1
    value = torch.where(known, right / total.clamp_min(1), 0.0)
    if bool((scores.value >= 0).all() and (scores.value <= 1).all()):
        value = value.clamp(0, 1)
    told = torch.where(known, total, 0.0).to(scores.total.dtype)
    return without_losses(replace(scores, value=value.to(scores.value.dtype), total=told))
