"""A run or comparison folder on one screen: what was asked, how far it is, how good it got, what was sent."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from suture.assessment.assess import read_assessment
from suture.core.metrics import AUTO, Metric
from suture.graph.cut import load_manifest
from suture.privacy.disclosure import EVALUATION_STEP
from suture.report.assessment import assessment_report
from suture.report.attacks import attacked
from suture.report.console import grid, shortened, titled
from suture.report.history import Curve, read_curve, read_traffic
from suture.report.table import comparison_report, metric_of, warned
from suture.report.text import NOTHING, byte_size, duration, listed, percent, score, sparkline, three_digits
from suture.runs import origin
from suture.runs.appraisal import POOLED, Evaluation
from suture.runs.comparison import Comparison
from suture.runs.folder import (
    is_comparison,
    manifest_of,
    place_of,
    read_asked,
    read_evaluation,
    read_notes,
    read_outcome,
    read_plan,
)
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan

LONG_CURVE, SHORT_CURVE = 40, 20
MOST_CLIENTS, MOST_CLASSES = 30, 10


def folder_report(path: Path) -> Group:
    """What `suture show` prints."""
    made = read_plan(path)
    return _comparison(path, made) if is_comparison(path) else _run(path, made)


def _comparison(path: Path, made: Plan) -> Group:
    share = metric_of(made, _told(path, made)).is_share
    table = grid("method", "seed", "rounds", "reported", "seconds", "validation, by round", "last %" if share else "last")
    outcomes = []
    for method in made.methods:
        total = sum(phase.times for phase in method.plan())
        for seed in made.seeds:
            run = place_of(path, method.name, seed)
            outcome, curve = read_outcome(run), read_curve(run)
            outcomes += [outcome] if outcome else []
            reported, seconds = (str(outcome.best_round), three_digits(outcome.seconds)) if outcome else (NOTHING, NOTHING)
            last = score(curve.validation[-1], share) if curve.validation else NOTHING
            line = sparkline(curve.validation, SHORT_CURVE)
            table.add_row(method.name, str(seed), f"{curve.iterations} of {total}", reported, seconds, line, last)
    parts: list[RenderableType] = [_title(path, made), Text()]
    if (assessment := read_assessment(path)) is not None:
        parts += [assessment_report(assessment), Text()]
    if outcomes:
        parts += [
            comparison_report(Comparison(tuple(outcomes)).rows(), made, outcomes[0].clients),
            *warned(outcomes),
            *attacked(path, made),
            Text(),
        ]
    parts.append(titled("Runs", table))
    if len(outcomes) < len(made.methods) * len(made.seeds):
        parts += [Text(), Text(f"Not finished; continue with: suture resume {path}")]
    parts += _notes(place_of(path, made.methods[0].name, made.seeds[0]))
    parts += [Text(), Text(f"More about one of them: suture show {place_of(path, made.methods[0].name, made.seeds[0])}")]
    return Group(*parts)


def _run(path: Path, made: Plan) -> Group:
    outcome, curve = read_outcome(path), read_curve(path)
    total, metric = (
        sum(phase.times for phase in made.methods[0].plan()),
        metric_of(made, outcome.metric if outcome else AUTO),
    )
    parts: list[RenderableType] = [_title(path, made), Text(_state(outcome, curve, total).capitalize() + "."), Text()]
    if outcome is not None:
        parts += [comparison_report(Comparison((outcome,)).rows(), made, outcome.clients), *warned([outcome])]
        parts += [*attacked(path, made), Text()]
    else:
        whole = path.parent if is_comparison(path.parent) else path
        resume = "suture federation resume" if read_asked(path).engine == origin.FEDERATION else "suture resume"
        parts += [Text(f"Not finished; continue with: {resume} {whole}"), Text()]
    if curve.rounds:
        parts.append(Text(f"Learning curve, rounds {curve.rounds[0]} to {curve.rounds[-1]}", style="bold"))
    for name, values in (("validation", curve.validation), ("test", curve.test)):
        if values:
            ends = f"{score(values[0], metric.is_share)} to {score(values[-1], metric.is_share)}"
            ends += " %" if metric.is_share else ""
            parts.append(Text(f"{name:<10}  {sparkline(values, LONG_CURVE)}  {ends}"))
    evaluation = read_evaluation(path)
    parts += [Text(), _clients(path, metric, outcome, curve, evaluation), *_classes(evaluation), Text(), _traffic(path)]
    return Group(*parts, *_notes(path))


def _notes(run: Path) -> list[RenderableType]:
    """What was dropped or assumed of the graph, if the run says so."""
    notes = read_notes(run)
    lines = [Text(f"  {shortened(note)}") for note in notes]
    return [Text(), Text("What was dropped or assumed of the graph", style="bold"), *lines] if notes else []


def _told(path: Path, made: Plan) -> str:
    """By what the finished runs of a comparison were scored."""
    runs = (read_outcome(place_of(path, method.name, seed)) for method in made.methods for seed in made.seeds)
    return next((run.metric for run in runs if run is not None), AUTO)


def _title(path: Path, made: Plan) -> Text:
    methods = ", ".join(method.name for method in made.methods)
    asked = f"{methods} on {origin.label(made.dataset)}, protocol {made.protocol.name}, {listed('seed', made.seeds)}"
    return Text(f"{path}: {asked}", style="bold")


def _state(outcome: Outcome | None, curve: Curve, total: int) -> str:
    if outcome is not None:
        early = f" after {curve.iterations} of {total} rounds" if curve.iterations < total else ""
        return f"finished in {duration(outcome.seconds)}{early}, round {outcome.best_round} reported"
    return f"{curve.iterations} of {total} rounds" if curve.iterations else "not begun"


def _clients(
    path: Path, metric: Metric, outcome: Outcome | None, curve: Curve, evaluation: Evaluation | None
) -> RenderableType:
    manifest = manifest_of(path)
    if manifest is None:
        return Text("The pieces of the graph are with their owners; what each of them predicts, only it knows.")
    parts = load_manifest(manifest).partition
    when = "in the reported round" if outcome else f"in round {curve.rounds[-1]}" if curve.rounds else "unknown yet"
    scores: tuple[float | None, ...] = (None,) * len(parts.ids)
    if curve.rounds:
        scores = curve.reported(outcome.best_rounds) if outcome else curve.client_test[-1]
    tested = [(evaluation or {}).get("clients", {}).get(name, {}).get("test", {}).get("support") for name in parts.ids]
    rows = list(zip(parts.ids, parts.members, parts.graphless, tested, scores, strict=True))
    title = f"Clients, {metric.title[0].lower()}{metric.title[1:]} {when}"
    if len(rows) > MOST_CLIENTS:
        title += f": the {MOST_CLIENTS} worst of {len(rows)}"
        rows = sorted(rows, key=lambda row: math.inf if row[4] is None else metric.sign * row[4])[:MOST_CLIENTS]
    table = grid("client", "nodes", "tested", "test %" if metric.is_share else "test", numbers_from=1)
    for name, members, graphless, support, value in rows:
        told = NOTHING if support is None else str(support)
        table.add_row(f"{name} (no edges)" if graphless else name, str(len(members)), told, score(value, metric.is_share))
    return titled(title, table)


def _classes(evaluation: Evaluation | None) -> list[RenderableType]:
    """How well each class is found in the test nodes of all clients, if there are not too many."""
    rows = (evaluation or {}).get(POOLED, {}).get("classes", [])
    if not 0 < len(rows) <= MOST_CLASSES:
        return []
    table = grid("class", "tested", "precision %", "recall %", "F1 %", numbers_from=1)
    for row in rows:
        table.add_row(row["class"], str(row["support"]), *(percent(row[name]) for name in ("precision", "recall", "f1")))
    return [Text(), titled("Classes, test nodes of all clients", table)]


def _traffic(path: Path) -> RenderableType:
    table = grid("step", "way", "messages", "each", "all", "what")
    for index in (2, 3, 4):
        table.columns[index].justify = "right"
    for sent in read_traffic(path):
        name = f"{sent.step} (not counted)" if sent.step == EVALUATION_STEP else sent.step
        fields = ", ".join(sent.fields) or "nothing"
        each = byte_size(sent.bytes / max(sent.messages, 1))
        table.add_row(name, sent.direction, str(sent.messages), each, byte_size(sent.bytes), fields)
    return titled("Sent between server and clients", table)
