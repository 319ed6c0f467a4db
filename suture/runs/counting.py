"""The census of a run in this process: which statistics the owners share first, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch_geometric.data import Data

from suture.core.message import Message
from suture.core.metrics import AUTO
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch
from suture.graph.scaling import Statistics
from suture.graph.target import Kind, Target, automatic_metric, balanced_weights, uneven
from suture.method import Task
from suture.methods.census import Census, Counted, statistics_of
from suture.settings import Protocol

KINDS: dict[str, Kind] = {"classification": "class", "multi-label": "labels", "regression": "value"}
MOST_SHOWN = 6


@dataclass(frozen=True)
class Sent:
    """A message of the census, for the ledgers of the runs that follow."""

    number: int
    step: str
    direction: str
    message: Message


@dataclass
class Record:
    """A ledger that only remembers."""

    sent: list[Sent] = field(default_factory=list)

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`."""
        self.sent.append(Sent(number, step, direction, message))


@dataclass(frozen=True)
class Counts:
    """What the census found, what follows from it, and what was sent for it."""

    statistics: Statistics
    metric: str
    notes: tuple[str, ...]
    sent: tuple[Sent, ...]


def kind_of(data: Data) -> Kind:
    """What the labels of a checked graph mean."""
    return KINDS[data.get("task") or "classification"]


def needs_census(protocol: Protocol, kind: Kind, weighted: bool) -> bool:
    """Whether a run needs to know anything of everybody's data; `weighted`: their edges have weights."""
    if protocol.preprocess.standardise or (protocol.preprocess.edge_weights == "scaled" and weighted):
        return True
    uncertain = protocol.evaluation.metric == AUTO or protocol.training.class_weights != "none"
    return protocol.task == "node" and (uncertain or kind == "value")


def count(graph: GraphBatch, outputs: int, protocol: Protocol, data: Data, seed: int) -> Counts:
    """Carry the census out between the clients of `graph`."""
    method, task, record = Census(), Task(graph.x.width, outputs, seed), Record()
    cohort = EmbeddedCohort.start(method, graph, task, ledger=record)
    server = method.init_server(task)
    for phase in method.plan():
        cohort.begin(phase.name, 1)
        server = cohort.carry_out(phase.body, server)
    marked, kind = data.get("standardise"), kind_of(data)
    marks = None if marked is None else marked.tolist()
    found = found_in(server, protocol, kind, marks, graph.edge_weight is not None)
    return concluded(found, protocol, kind, data.get("class_names") or (), tuple(record.sent))


def found_in(counted: Counted, protocol: Protocol, kind: Kind, marked: Sequence[bool] | None, weighted: bool) -> Statistics:
    """The statistics that a protocol uses of what was counted; `marked` features are standardised, if any are marked."""
    settings = protocol.preprocess
    found = statistics_of(counted, marked, kind, settings.standardise)
    return found if settings.edge_weights == "scaled" and weighted else replace(found, edge_scale=1.0)


def concluded(
    found: Statistics, protocol: Protocol, kind: Kind, class_names: Sequence[str], sent: tuple[Sent, ...] = ()
) -> Counts:
    """What follows from statistics: the metric, and all that must be said."""
    target, link = target_from(found, protocol, kind), protocol.task == "link"
    asked = protocol.evaluation.metric
    metric = automatic_metric(target, found.classes, link=link) if asked == AUTO else asked
    notes = [*_scale_notes(found)]
    if found.classes and not link:
        notes.append(_share_note(found, class_names))
    if asked == AUTO and not link:
        notes.append(f"the metric is {metric}, chosen from what is predicted; another with evaluation.metric")
    if target.class_weights and not link:
        notes.append(
            "each class weighs the same in the loss, so probabilities of rare ones come out too high: they rank nodes, "
            "and are no chances (training.class_weights)"
        )
    if found.edge_scale != 1:
        notes.append(f"edge weights were divided by their mean, {found.edge_scale:.4g} (preprocess.edge_weights=scaled)")
    return Counts(found, metric, tuple(notes), sent)


def target_of(data: Data, protocol: Protocol, counts: Counts | None) -> Target:
    """What is predicted of the nodes of a checked graph, and how it weighs."""
    return target_from(counts.statistics, protocol, kind_of(data)) if counts else Target(kind_of(data))


def target_from(found: Statistics, protocol: Protocol, kind: Kind) -> Target:
    """What is predicted, as statistics and settings say."""
    asked, counts = protocol.training.class_weights, found.classes
    weighted = kind != "value" and (asked == "balanced" or (asked == "auto" and kind == "class" and uneven(counts)))
    if not weighted:
        return Target(kind, (), found.target_shift, found.target_scale)
    if kind == "labels":
        # A label's weight is that of its positive examples.
        return Target(kind, tuple((found.trained - n) / n if 0 < n < found.trained else 1.0 for n in counts))
    return Target(kind, balanced_weights(counts))


def _scale_notes(found: Statistics) -> Iterator[str]:
    scaled = sum(scale != 1 or shift != 0 for shift, scale in zip(found.shift, found.scale, strict=True))
    if scaled:
        yield (
            f"{scaled:,} of {len(found.scale):,} features are standardised by sums over all owners' nodes; "
            "those of 0 and 1 stay (preprocess.standardise)"
        )


def _share_note(found: Statistics, class_names: Sequence[str]) -> str:
    total = sum(found.classes) or 1.0
    names = class_names if len(class_names) == len(found.classes) else [str(number) for number in range(len(found.classes))]
    shares = sorted(zip(found.classes, names, strict=True), key=lambda pair: -pair[0])
    shown = ", ".join(f"{name} {100 * n / total:.3g} %" for n, name in shares[:MOST_SHOWN])
    return f"training nodes by class: {shown}{', ...' if len(shares) > MOST_SHOWN else ''}"
