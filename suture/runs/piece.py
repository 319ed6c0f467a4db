"""One owner's graph made ready for a run, as `prepare` makes every piece of a graph that is cut in one process.

What all owners must do alike is a `Handling`; whoever leads the run tells it to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.checks import LARGEST
from suture.graph.links import hide_links
from suture.graph.partition import Partition
from suture.graph.scaling import Statistics, scaled
from suture.graph.splits import make_split
from suture.graph.target import Target
from suture.runs.preprocess import preprocess
from suture.settings import PreprocessSettings, SplitSettings

SMALLEST = 1e-37
"""Less is zero in single precision."""
HEAVIEST = 1e9
"""A class weighs at most as much as there are training nodes."""


@dataclass(frozen=True)
class Handling:
    """What every owner does with its graph before a run."""

    preprocess: PreprocessSettings = field(default_factory=PreprocessSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    masks: tuple[str, ...] = ()
    """Masks that any owner has; with none, owners draw who trains, validates and tests."""
    target: Target = field(default_factory=Target)
    """What is predicted."""
    statistics: Statistics | None = None
    """What owners have found together of their data; None: nothing yet, or nothing is needed."""

    def check(self, features: int, outputs: int) -> None:
        """Refuse scales and weights that do not fit features and labels, or that would make of any number none."""
        found, target = self.statistics or Statistics(nodes=0, trained=0), self.target
        for values, right in ((found.scale, features), (target.scale, outputs), (target.class_weights, outputs)):
            if values and len(values) != right:
                raise ConfigError(f"statistics of {right} columns were expected, and others came")
        if len(found.shift) != len(found.scale) or len(target.shift) != len(target.scale):
            raise ConfigError("statistics must shift as many columns as they scale")
        divisors = (*target.scale, *found.scale, found.edge_scale)
        if not all(SMALLEST <= divisor <= LARGEST for divisor in divisors):
            raise ConfigError(f"statistics hold a scale that is not from {SMALLEST:g} to {LARGEST:g}")
        if not all(abs(shift) <= LARGEST for shift in (*target.shift, *found.shift)):
            raise ConfigError(f"statistics hold a shift beyond {LARGEST:g}")
        if not all(0 < weight <= HEAVIEST for weight in target.class_weights):
            raise ConfigError(f"a class must weigh more than 0 and at most {HEAVIEST:g}")


@dataclass(frozen=True)
class OwnersPiece:
    """One client that can be trained, its graph on the shared scale, and what was dropped or assumed of it."""

    graph: GraphBatch
    data: Data
    notes: tuple[str, ...]


def owners_piece(
    data: Data, owner: str, handling: Handling, seed: int, *, roles: Tensor | None = None, link: bool = False
) -> OwnersPiece:
    """A checked graph that is one owner's alone as the single client `owner`.

    `roles` are what its nodes are for, if that is settled already. Otherwise it is drawn, or read from masks, as if all
    owners' graphs were cut from one.
    """
    if handling.preprocess.largest_component:
        raise ConfigError(
            "preprocess.largest_component speaks of the uncut graph, which no owner has; set it to false or use protocol own"
        )
    data, everything = preprocess(data, handling.preprocess), torch.arange(int(data.num_nodes))
    graphless, notes = data.edge_index.shape[1] == 0, [str(note) for note in data.get("notes") or ()]
    if roles is None:
        if handling.split.scope == "global":
            raise ConfigError("split.scope 'global' speaks of the uncut graph, which no owner has; take 'auto' or 'client'")
        alone = Partition((owner,), (everything,), (graphless,))
        among_all = handling.masks if handling.split.scope == "auto" else None
        split = make_split(data, alone, handling.split, seed, among_all)
        roles, notes = split.roles, [*notes, *split.notes]
    if handling.statistics is not None:
        data = scaled(data, handling.statistics)
    graph = replace(batch_of(data, [owner], [everything], [roles], [graphless]), target=handling.target)
    if link:
        graph = hide_links(graph, handling.split, seed)
    return OwnersPiece(graph, data, tuple(notes))
