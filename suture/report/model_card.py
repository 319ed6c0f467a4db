"""The model card of an exported model: what it is, how it was trained, how good it is, what it hides, how it is used.

Its text is `templates/model_card.txt`; here its gaps are filled in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from suture.errors import some_of
from suture.report.loader import EDGES, MEANINGS, Told, template
from suture.runs import origin
from suture.runs.card import DataCard
from suture.runs.outcome import SHARED, Outcome
from suture.runs.trained import Trained

Z = 1.96
"""Two-sided 95 %."""
MOST_COLUMNS, MOST_NAMES = 40, 20


@dataclass(frozen=True)
class Subject:
    """What a card is about."""

    trained: Trained
    outcome: Outcome
    told: Told
    client: str
    """Whose model it is, or `shared`."""
    evaluation: Mapping[str, Any] | None
    schema: Mapping[str, Any] | None
    parameters: int
    environment: Mapping[str, Any]
    hashes: Mapping[str, str]
    """SHA-256 of each file beside the card."""


def wilson(share: float, total: int) -> tuple[float, float]:
    """95 % interval of a share of `total` independent examples (Wilson 1927)."""
    middle = share + Z * Z / (2 * total)
    half = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
    return (middle - half) / (1 + Z * Z / total), (middle + half) / (1 + Z * Z / total)


def hanley(area: float, positive: int, negative: int) -> tuple[float, float]:
    """95 % interval of an area under the ROC curve (Hanley and McNeil 1982)."""
    one, both = area / (2 - area), 2 * area * area / (1 + area)
    variance = area * (1 - area) + (positive - 1) * (one - area * area) + (negative - 1) * (both - area * area)
    half = Z * math.sqrt(max(variance, 0.0) / (positive * negative))
    return max(0.0, area - half), min(1.0, area + half)


def interval(metric: str, row: Mapping[str, Any]) -> tuple[tuple[float, float] | None, str]:
    """(interval of an owner's test score, whose formula it is); None where there is no plain formula."""
    value, support = row["test"].get(metric), row["test"]["support"]
    if value is None or not support:
        return None, ""
    if metric == "accuracy":
        return wilson(value, support), "Wilson"
    classes = [one["support"] for one in row.get("classes", ())]
    if metric == "roc_auc" and len(classes) == 2 and all(classes):
        return hanley(value, classes[1], classes[0]), "Hanley and McNeil"
    return None, ""


def card_text(subject: Subject) -> str:
    """The card, as Markdown."""
    trained, outcome, told, card = subject.trained, subject.outcome, subject.told, subject.trained.card
    method = trained.method
    return Template(template("model_card")).substitute(
        METHOD=method.name,
        DATASET=origin.label(card.dataset),
        WHAT=_what(told),
        FEATURES=f"{told.features:,}",
        WHOSE="one model for all owners" if subject.client == SHARED else f"the model of {subject.client}",
        NETWORK=f"{method.model.kind}, {method.model.layers} layers of width {method.model.hidden}"
        if told.stock
        else "the user's own module",
        PARAMETERS=f"{subject.parameters:,}",
        OUT=MEANINGS[told.kind][0],
        CALL=", edge_weight" if told.weighted else "",
        EDGES=EDGES[told.edges],
        PROGRAM=_program(told),
        MENDING=_mending(trained),
        SUMMARY=f"{method.summary}{f' ({method.paper})' if method.paper else ''}",
        PROTOCOL=f"{trained.protocol.name}, {trained.protocol.description}",
        ROUNDS=outcome.rounds,
        BEST=outcome.best_round,
        SEED=outcome.seed,
        OPTIMIZER=method.training.optimizer,
        LR=f"{method.training.lr:g}",
        CLIENTS=outcome.clients,
        OWNERS=_names(card.owners),
        SUTURE=subject.environment.get("suture"),
        TORCH=subject.environment.get("packages", {}).get("torch"),
        METRIC=outcome.metric,
        MEAN=_shown(outcome.accuracy_client_mean),
        WEIGHTED=_shown(outcome.accuracy_weighted),
        WORST=_shown(outcome.accuracy_worst),
        WARNINGS="".join(f"\n**Warning**: {warning}.\n" for warning in outcome.warnings),
        SCORES="\n".join(_scores(subject)),
        SIZE=_size(card),
        NOTES="\n".join(f"- {note}" for note in card.notes) or "Nothing was dropped or assumed.",
        SCHEMA="\n".join(_schema(subject.schema)),
        PRIVACY=_privacy(outcome),
        FILES="\n".join(f"| {name} | `{digest}` |" for name, digest in sorted(subject.hashes.items())),
    )


def _size(card: DataCard) -> str:
    kinds = f"{', directed' if card.directed else ''}{', with weights' if card.weighted else ''}"
    if card.nodes is None or card.edges is None:
        return f"Pieces of a graph that nobody has seen together{kinds}."
    edges = card.edges if card.directed else card.edges // 2
    return f"{card.nodes:,} nodes, {edges:,} edges{kinds}; fingerprint `{card.fingerprint[:16]}`."


def _what(told: Told) -> str:
    if told.kind == "value":
        return "a number" if told.outputs == 1 else f"{told.outputs} numbers"
    return (
        f"{'one of ' if told.kind == 'class' else ''}{told.outputs} {'classes' if told.kind == 'class' else 'labels'} "
        + (f"({_names(told.classes)})")
    )


def _program(told: Told) -> str:
    if not told.stock:
        return "The network is yours: `load(layers=YourNetwork(...))`."
    return (
        "The same without PyG: `torch.export.load('model.pt2').module()(x, edge_index"
        f"{', edge_weight' if told.weighted else ''})`,\nwith edges as `loader.prepared` gives them."
    )


def _mending(trained: Trained) -> str:
    name = trained.method.name
    if trained.method.mends == "nothing":
        return ""
    return (
        f"\n{name} mends graphs before it predicts, and what it mends with is not exported. This model gives what\n"
        "`suture predict --no-mend` gives; the scores below are those with mending.\n"
    )


def _scores(subject: Subject) -> Iterator[str]:
    metric, found = subject.outcome.metric, subject.evaluation
    if found is None:
        yield "The scores of single owners are theirs."
        return
    yield f"| owner | test nodes | {metric} | 95 % interval |"
    yield "|---|---|---|---|"
    kinds = set()
    for name, row in [*found["clients"].items(), ("all pooled", found["pooled"])]:
        between, kind = interval(metric, row)
        kinds |= {kind} - {""}
        shown = f"{_shown(between[0])} to {_shown(between[1])}" if between else "none"
        yield f"| {name} | {row['test']['support']:,} | {_shown(row['test'].get(metric))} | {shown} |"
    yield ""
    yield (
        f"Intervals: {' and '.join(sorted(kinds)) or 'there is no plain formula for this metric'}. They take nodes as "
        "independent, which neighbours are not, and say nothing of another seed."
    )


def _schema(schema: Mapping[str, Any] | None) -> Iterator[str]:
    if schema is None:
        yield "The graph was not imported from tables: features go by their places."
        return
    columns = [column for column in schema["columns"] if column["kind"] != "ignored"]
    yield "| column | kind | |"
    yield "|---|---|---|"
    for column in columns[:MOST_COLUMNS]:
        more = f"{len(column['categories'])} categories" if column.get("categories") else ""
        more = f"{column['width']:,} wide" if column.get("width") else more
        name = " ".join(column["name"].split()).replace("|", "\\|")
        yield f"| {name} | {column['kind']} | {more} |"
    if len(columns) > MOST_COLUMNS:
        yield f"| and {len(columns) - MOST_COLUMNS} more | | |"
    yield ""
    yield "All of it is in `schema.json`; `suture import new --schema schema.json` makes features that fit."


def _privacy(outcome: Outcome) -> str:
    said = f"{outcome.privacy[:1].upper()}{outcome.privacy[1:]}".rstrip(".")
    if outcome.mechanism is None:
        return said
    epsilon = "none that is finite" if outcome.epsilon is None else f"{outcome.epsilon:.3g}"
    return f"{said} ({outcome.mechanism}, epsilon {epsilon}, delta {outcome.delta})"


def _names(names: Sequence[str]) -> str:
    return some_of(names, MOST_NAMES) or "without names"


def _shown(value: float | None) -> str:
    return "unknown" if value is None or value != value else f"{value:.4f}"
