"""A run or comparison folder on one screen: what was asked, how far it is, how good it got, what was sent."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from suture.graph.cut import load_manifest
from suture.privacy.disclosure import EVALUATION_STEP
from suture.report.console import grid, titled
from suture.report.history import Curve, read_curve, read_traffic
from suture.report.table import comparison_report
from suture.report.text import NOTHING, byte_size, duration, listed, percent, sparkline, three_digits
from suture.runs.comparison import Comparison
from suture.runs.folder import is_comparison, manifest_of, place_of, read_outcome, read_plan
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan

LONG_CURVE, SHORT_CURVE = 40, 20
MOST_CLIENTS = 30


def folder_report(path: Path) -> Group:
    """What `suture show` prints."""
    made = read_plan(path)
    return _comparison(path, made) if is_comparison(path) else _run(path, made)


def _comparison(path: Path, made: Plan) -> Group:
    table = grid("method", "seed", "rounds", "reported", "seconds", "validation, by round", "last %")
    outcomes = []
    for method in made.methods:
        total = sum(phase.times for phase in method.plan())
        for seed in made.seeds:
            run = place_of(path, method.name, seed)
            outcome, curve = read_outcome(run), read_curve(run)
            outcomes += [outcome] if outcome else []
            reported, seconds = (str(outcome.best_round), three_digits(outcome.seconds)) if outcome else (NOTHING, NOTHING)
            last = percent(curve.validation[-1]) if curve.validation else NOTHING
            line = sparkline(curve.validation, SHORT_CURVE)
            table.add_row(method.name, str(seed), f"{curve.iterations} of {total}", reported, seconds, line, last)
    parts: list[RenderableType] = [_title(path, made), Text()]
    if outcomes:
        parts += [comparison_report(Comparison(tuple(outcomes)).rows(), made, outcomes[0].clients), Text()]
    parts.append(titled("Runs", table))
    if len(outcomes) < len(made.methods) * len(made.seeds):
        parts += [Text(), Text(f"Not finished; continue with: suture resume {path}")]
    parts += [Text(), Text(f"More about one of them: suture show {place_of(path, made.methods[0].name, made.seeds[0])}")]
    return Group(*parts)


def _run(path: Path, made: Plan) -> Group:
    outcome, curve = read_outcome(path), read_curve(path)
    total = sum(phase.times for phase in made.methods[0].plan())
    parts: list[RenderableType] = [_title(path, made), Text(_state(outcome, curve, total).capitalize() + "."), Text()]
    if outcome is not None:
        parts += [comparison_report(Comparison((outcome,)).rows(), made, outcome.clients), Text()]
    else:
        whole = path.parent if is_comparison(path.parent) else path
        parts += [Text(f"Not finished; continue with: suture resume {whole}"), Text()]
    if curve.rounds:
        parts.append(Text(f"Learning curve, rounds {curve.rounds[0]} to {curve.rounds[-1]}", style="bold"))
    for name, values in (("validation", curve.validation), ("test", curve.test)):
        if values:
            ends = f"{percent(values[0])} to {percent(values[-1])} %"
            parts.append(Text(f"{name:<10}  {sparkline(values, LONG_CURVE)}  {ends}"))
    parts += [Text(), _clients(path, made, outcome, curve), Text(), _traffic(path)]
    return Group(*parts)


def _title(path: Path, made: Plan) -> Text:
    methods = ", ".join(method.name for method in made.methods)
    asked = f"{methods} on {made.dataset}, protocol {made.protocol.name}, {listed('seed', made.seeds)}"
    return Text(f"{path}: {asked}", style="bold")


def _state(outcome: Outcome | None, curve: Curve, total: int) -> str:
    if outcome is not None:
        early = f" after {curve.iterations} of {total} rounds" if curve.iterations < total else ""
        return f"finished in {duration(outcome.seconds)}{early}, round {outcome.best_round} reported"
    return f"{curve.iterations} of {total} rounds" if curve.iterations else "not begun"


def _clients(path: Path, made: Plan, outcome: Outcome | None, curve: Curve) -> RenderableType:
    manifest = manifest_of(path)
    if manifest is None:
        return Text("The pieces of the graph are with their owners; what each of them predicts, only it knows.")
    parts = load_manifest(manifest).partition
    when = "in the reported round" if outcome else f"in round {curve.rounds[-1]}" if curve.rounds else "unknown yet"
    accuracy: tuple[float | None, ...] = (None,) * len(parts.ids)
    if curve.rounds:
        settings = made.protocol.evaluation
        accuracy = curve.reported(settings, outcome.best_round) if outcome else curve.client_test[-1]
    rows = list(zip(parts.ids, parts.members, parts.graphless, accuracy, strict=True))
    title = f"Clients, test {'ROC-AUC' if made.protocol.task == 'link' else 'accuracy'} {when}"
    if len(rows) > MOST_CLIENTS:
        title += f": the {MOST_CLIENTS} lowest of {len(rows)}"
        rows = sorted(rows, key=lambda row: 1.0 if row[3] is None else row[3])[:MOST_CLIENTS]
    table = grid("client", "nodes", "test %", numbers_from=1)
    for name, members, graphless, value in rows:
        table.add_row(f"{name} (no edges)" if graphless else name, str(len(members)), percent(value))
    return titled(title, table)


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
