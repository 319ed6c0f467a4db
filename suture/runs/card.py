"""What a run knew of its data: all that is needed to predict for other nodes as it did, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from suture.config.strict import strict
from suture.graph.scaling import Statistics
from suture.graph.target import Kind
from suture.runs.prepare import Prepared


@dataclass(frozen=True)
class DataCard:
    """Of the graph that was cut, after preprocessing."""

    dataset: str
    fingerprint: str
    """Empty where the graph is in pieces that nobody has seen together."""
    nodes: int | None
    """None: nobody who kept this card knows."""
    edges: int | None
    """As they stand in edge_index: twice the links of an undirected graph."""
    features: int
    outputs: int
    """Classes, labels or numbers that are predicted."""
    kind: Kind
    metric: str
    owners: tuple[str, ...]
    directed: bool
    weighted: bool
    """Whether edges have weights that count."""
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    statistics: Statistics | None = None
    """What features, labels and edge weights were scaled by."""
    notes: tuple[str, ...] = ()
    """All that was dropped or assumed."""

    @staticmethod
    def of(prepared: Prepared) -> DataCard:
        """The card of a prepared graph."""
        data, task = prepared.graph, prepared.task
        return DataCard(
            dataset=prepared.dataset,
            fingerprint=prepared.cut.fingerprint,
            nodes=int(data.num_nodes),
            edges=int(data.edge_index.shape[1]),
            features=task.features,
            outputs=task.classes,
            kind=prepared.clients.target.kind,
            metric=task.metric,
            owners=prepared.clients.ids,
            directed=bool(data.get("directed")),
            weighted=data.get("edge_weight") is not None,
            class_names=tuple(data.get("class_names") or ()),
            feature_names=tuple(data.get("feature_names") or ()),
            statistics=prepared.counts.statistics if prepared.counts else None,
            notes=prepared.notes,
        )

    def as_json(self) -> dict[str, Any]:
        """For data.json of a run folder."""
        return asdict(self)

    @staticmethod
    def read(content: Mapping[str, object]) -> DataCard:
        """As `as_json` wrote it, checked."""
        return strict(DataCard, content, "data.json")
