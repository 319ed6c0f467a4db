"""Stitching: predictions smoothed over links between owners, after any training.

The second half of correct-and-smooth (Huang et al., Combining label propagation and simple models out-performs graph neural
networks, ICLR 2021), across owners:

    P <- the class probabilities of every node, softmax of its owner's model's scores / temperature; Z <- P
    for each of `training.stitch` steps
      1  owners tell rows of Z of those nodes that others have links to, with noise N(0, sigma^2) on every number
      2  Z_v <- a (Z_v + sum of Z over v's neighbours, own and foreign) / (1 + how many they are) + (1 - a) P_v

with a, sigma and the temperature from training.stitch_share, stitch_sigma and stitch_temperature. Noisy rows are added up as
they come, but for extreme ones (`longest_heard`): their noise has no bias, which bringing each back to probabilities would
have; what is told has length one at most. Of a neighbour that nobody offers nothing is heard.
Links count alike, whatever they weigh. C numbers leave an owner for each such node and step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segments_of
from suture.core.message import Record, Rows
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.privacy.mechanisms import noise_rows, secret_sums
from suture.settings import TrainingSettings

SMALLEST = 1e-12
"""Of a probability, so that it has a logarithm."""


STITCH = "stitch"
"""The phase of these steps, after the rounds."""
NOT_TAKEN = -1.0
"""In the place of a number of foreign neighbours: of a step after the test of the model that is reported."""


@dataclass(frozen=True)
class Stitched(Record):
    """What clients heard in every step, as `smoothed` takes it: kept for predicting when the run is over."""

    heard: Rows


def heard_by(state: Record) -> Rows | None:
    """What clients heard so far; None: nothing, or nothing is heard by what they run."""
    return getattr(state, "stitch_heard", None)


def longest_heard(sigma: float) -> float:
    """Noisy rows are shortened to this when they are heard: their own length is one at most, and noise seldom adds more.

    Nothing else bounds what a link can do to what is told in the next step.
    """
    return 1 + 8 * sigma


def shortened(rows_NC: Tensor, longest: float) -> Tensor:
    """Rows no longer than this."""
    length: Tensor = rows_NC.norm(dim=1, keepdim=True)
    return rows_NC * (longest / length.clamp_min(SMALLEST)).clamp_max(1)


def probabilities(graph: GraphBatch, out_NC: Tensor, temperature: float) -> Tensor:
    """P, [N, C]."""
    if graph.pairs is not None or graph.target.kind != "class":
        raise ConfigError("training.stitch smooths probabilities of one class a node; set training.stitch=0 for other tasks")
    return torch.softmax(out_NC / temperature, 1)


def first_steps(heard: Rows, steps_K: Tensor) -> Rows:
    """What every client heard, of which the steps after so many are not taken."""
    values, every = heard.values.clone(), torch.arange(heard.values.shape[1], device=heard.values.device)
    late_NS = every >= steps_K[Segments(heard.ptr).client].unsqueeze(1)
    values[:, :, -1] = values[:, :, -1].masked_fill(late_NS, NOT_TAKEN)
    return Rows(values, heard.ptr)


def smoothed(graph: GraphBatch, probable_NC: Tensor, heard: Rows | None, share: float) -> Tensor:
    """Z after as many steps as were heard, [N, C]; `heard` [N, steps, C + 1]: sums over foreign neighbours, their number."""
    now, listed = probable_NC, graph.neighbours
    if heard is None:
        return now
    for step in range(heard.values.shape[1]):
        foreign, count = heard.values[:, step, :-1], heard.values[:, step, -1:]
        total = now + listed.times(now) + foreign
        after = share * total / (1 + graph.degree.unsqueeze(1) + count) + (1 - share) * probable_NC
        now = torch.where(count == NOT_TAKEN, now, after)
    return now


def stitched(graph: GraphBatch, out_NC: Tensor, heard: Rows | None, training: TrainingSettings) -> Tensor:
    """Z of what the models give for every node, [N, C]."""
    probable = probabilities(graph, out_NC, training.stitch_temperature)
    return smoothed(graph, probable, heard, training.stitch_share)


def stitched_scores(graph: GraphBatch, out_NC: Tensor, heard: Rows, training: TrainingSettings) -> Tensor:
    """The logarithm of Z in the place of what the models give, [N, C]; where no step is taken that is kept."""
    scores = stitched(graph, out_NC, heard, training).clamp_min(SMALLEST).log()
    return torch.where(taken(heard).unsqueeze(1), scores, out_NC)


def taken(heard: Rows) -> Tensor:
    """Of which nodes a step is taken, bool [N]."""
    return heard.values[:, 0, -1] != NOT_TAKEN


def told_rows(graph: GraphBatch, rows_NC: Tensor, nodes: Tensor, sigma: float, rng: Streams) -> Rows:
    """Line 1: the rows of these nodes with noise on them; real owners draw it where nobody else can."""
    segments = segments_of(graph.segments.client[nodes], len(graph.ids))
    if sigma > 0:
        rows_NC = shortened(rows_NC, 1.0)
    chosen = rows_NC[nodes]
    if sigma > 0 and rng.secret is not None:
        one_each = torch.arange(nodes.numel() + 1, device=nodes.device)
        listed = SparseMatrix(one_each, nodes, torch.ones_like(chosen[:, 0]), graph.num_nodes)
        chosen = secret_sums(listed, rows_NC, sigma, rng.secret)
    elif sigma > 0:
        chosen = chosen + noise_rows(segments.ptr, chosen.shape[1], sigma, rng)
    return Rows(chosen, segments.ptr)
