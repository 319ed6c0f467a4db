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
from suture.graph.links import hide_links
from suture.graph.partition import Partition
from suture.graph.scaling import Statistics, scaled
from suture.graph.splits import make_split
from suture.graph.target import Target
from suture.runs.preprocess import preprocess
from suture.settings import PreprocessSettings, SplitSettings


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
        """Refuse scales and weights that do not fit features and labels."""
        found, target = self.statistics, self.target
        per_output = [target.class_weights, target.shift, target.scale]
        per_feature = [found.shift, found.scale] if found else []
        for sizes, right in ((per_feature, features), (per_output, outputs)):
            if any(values and len(values) != right for values in sizes):
                raise ConfigError(f"statistics of {right} columns were expected, and others came")
        divisors = (*target.scale, *(found.scale if found else ()), found.edge_scale if found else 1.0)
        if not all(divisor > 0 for divisor in divisors):
            raise ConfigError("statistics hold a scale that is not above 0")


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
