"""What a protocol does to a whole graph before it is cut; what that costs a user's graph is noted."""

from __future__ import annotations

import copy

from torch_geometric.data import Data

from suture.graph.data import largest_component, mirrored, row_normalise, rows_with_negatives
from suture.settings import PreprocessSettings


def preprocess(data: Data, settings: PreprocessSettings) -> Data:
    """A checked graph as the settings ask; `notes` says what was dropped or changed."""
    made, notes = copy.copy(data), [str(note) for note in data.get("notes") or ()]
    if made.y.is_floating_point() and made.y.dim() == 1:
        made.y = made.y.unsqueeze(1)
    if settings.edge_weights == "drop" and made.get("edge_weight") is not None:
        made.edge_weight = None
        notes.append("edge weights are not used (preprocess.edge_weights=drop)")
    if settings.direction == "mirror" and made.get("directed"):
        notes.append("every edge goes both ways, although the graph is directed (preprocess.direction=mirror)")
        made = mirrored(made)
    if settings.largest_component:
        before, owners = int(made.num_nodes), _owners(made)
        made = largest_component(made)
        if int(made.num_nodes) < before:
            notes.append(_dropped(before - int(made.num_nodes), before, owners - _owners(made)))
    if settings.row_normalise:
        left = int(rows_with_negatives(made.x).sum())
        if left:
            notes.append(
                f"{left:,} nodes have negative features, which were not divided by their sum (preprocess.row_normalise)"
            )
        made = row_normalise(made)
    made.notes = notes
    return made


def _owners(data: Data) -> set[str]:
    """Names of those that have a node."""
    if data.get("client") is None:
        return set()
    names, numbers = data.get("owners"), data.client.unique().tolist()
    return {str(names[number]) if names else str(number) for number in numbers}


def _dropped(lost: int, before: int, gone: set[str]) -> str:
    owners = f", all nodes of {', '.join(sorted(gone))} among them" if gone else ""
    return f"{lost:,} of {before:,} nodes are outside the largest component and were dropped{owners}"
