"""Pseudo-labels: nodes without a training label learn what the model of all owners is sure of.

Lee, Pseudo-label: the simple and efficient semi-supervised learning method for deep neural networks, ICML workshop 2013.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suture.graph.batch import GraphBatch
from suture.graph.embeddings import PER_GRAPH, derived

UNSURE = -1


def stage_at(round_: int, rounds: int, begin: float, stages: int) -> int:
    """How often pseudo-labels have been made by this round (from 1): at equal distances over the rounds after `begin`."""
    first = round(begin * rounds)
    passed = round_ - 1 - first
    return min(stages, 1 + passed * stages // max(1, rounds - first)) if stages and passed >= 0 and round_ else 0


def sure_classes(out_NC: Tensor, role_N: Tensor, confidence: float) -> Tensor:
    """The class of every node that does not train and is sure of it, int64 [N]; -1 elsewhere."""
    likely, found = out_NC.softmax(1).max(1)
    return torch.where((likely > confidence) & (role_N != 1), found, UNSURE)


def taught(graph: GraphBatch, classes_N: Tensor) -> GraphBatch:
    """The graphs in which sure nodes train too, with the class they are sure of in the place of any label."""
    sure = classes_N != UNSURE
    role = torch.where(sure, torch.ones_like(graph.role), graph.role)
    out = replace(graph, y=torch.where(sure, classes_N.to(graph.y.dtype), graph.y), role=role)
    vars(out).update(derived(graph, "num_train", *PER_GRAPH))
    return out
