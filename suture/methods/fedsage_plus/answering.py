"""What a client of FedSage+ lets its answers depend on (line 2): the three forms of `answers`, and what each gives away.

    means   generated rows are matched with means of random groups of at least `smallest` of the client's nodes, made once.
            All answers of a run are functions of these means: whatever is solved for, no row of a node comes out. Of groups
            of five a row's likeness does (docs/fedsage.md), so they are larger.
    coarse  rows are matched with single nodes; gradients are rounded to eight binary places (bfloat16), and a client answers
            only as long as all it has ever answered, to everybody, are fewer equations than it has nodes: an answer is one
            equation for each hidden unit of fGen and one for its bias.
    exact   as published: single nodes, exact gradients, as often as asked. The stacked gradients of a run span the client's
            features, and linear programs in what they span find whole rows (docs/fedsage.md).

Legend: K clients, M senders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from suture.core.streams import Streams
from suture.core.tree import Tree, map_tree
from suture.graph.batch import Features, GraphBatch
from suture.graph.grouping import group_features, random_groups
from suture.methods.fedsage_plus.exchange import foreign_gradients
from suture.methods.fedsage_plus.messages import Offers
from suture.methods.fedsage_plus.neighgen import NeighGen

Form = Literal["means", "coarse", "exact"]


@dataclass(frozen=True)
class Answering:
    """How clients answer: `form` as above, `smallest` for means."""

    form: Form
    smallest: int
    softness: float

    def matched(self, graph: GraphBatch, seed: int) -> Features:
        """What generated rows are matched with: nodes, or means of groups of them."""
        if self.form != "means":
            return graph.x
        own = graph.lasting_seed(seed, "answering groups", self.smallest)
        streams = Streams.of(own, graph.ids, "answering groups", device=graph.device)

        def build() -> Features:
            return group_features(graph.x, random_groups(graph.segments, self.smallest, streams))

        return graph.once("answering groups", (seed, self.smallest), build)

    def answer(self, network: NeighGen, offers: Offers, graph: GraphBatch, told_K: Tensor, seed: int) -> tuple[Tree, Tensor]:
        """Gradients [K, M, ...] for offers that are the same for all clients, and how many each has now answered, [K]."""
        fgen = map_tree(lambda value: value[0], offers.fgen)
        x = self.matched(graph, seed)
        given, answered_KM = foreign_gradients(network, fgen, offers.rows[0], offers.weight, x, self.softness)
        if self.form != "coarse":
            return given, told_K
        after_K = told_K + answered_KM.sum(1)
        # Whoever would have answered too much is silent from here on: it answers nobody, so its count stays.
        silent_K = after_K * (network.width + 1) >= graph.sizes
        given = map_tree(lambda value: coarse(value).masked_fill_(_beside(silent_K, value), 0.0), given)
        return given, torch.where(silent_K, told_K, after_K)


def coarse(values: Tensor) -> Tensor:
    """Rounded to eight binary places."""
    return values.to(torch.bfloat16).to(values.dtype)


def _beside(mask_K: Tensor, value: Tensor) -> Tensor:
    return mask_K.view(-1, *[1] * (value.dim() - 1))
