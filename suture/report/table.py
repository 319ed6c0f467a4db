"""The table at the end of a comparison, and the lines below it that say what its numbers mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from suture.bench.tune import tuned_method, value_at
from suture.config.toml import written
from suture.core.metrics import AUTO, OURS, Metric, metric_for
from suture.report.console import grid
from suture.report.text import NOTHING, count, listed, megabytes, score_spread, three_digits
from suture.runs import origin
from suture.runs.comparison import Row
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan
from suture.settings import EvaluationSettings

ACCURACIES = {
    "accuracy_client_mean": "client\nmean",
    "accuracy_weighted": "node-\nweighted",
    "accuracy_worst": "worst\nclient",
    "accuracy_global": "uncut\ngraph",
}
ROUND_REPORTED = {
    "best-validation": "the one with the best validation {}",
    "best-validation-per-client": "for each client the one with its best validation {}",
    "last": "the last",
}
_VALUES = re.compile(r"([\w.]+) = (\"[^\"]*\"|[^,()\s]+)")
UNCUT = "global trains on the uncut graph: a reference, not a federated method."


def metric_of(plan: Plan, told: str) -> Metric:
    """What scores of a plan's runs are; `told` is what their outcomes say, which knows what `auto` has become."""
    asked = plan.protocol.evaluation.metric
    return metric_for(told if asked == AUTO else asked, plan.protocol.task)


def headline(settings: EvaluationSettings) -> str:
    """Which column a protocol reports."""
    if settings.graph == "global":
        return "accuracy_global"
    return "accuracy_weighted" if settings.average == "nodes" else "accuracy_client_mean"


def comparison_report(rows: Sequence[Row], plan: Plan, clients: int) -> Group:
    """The table and its legend."""
    return Group(_Fitting(rows, plan), Text(), *(Text(line) for line in legend(rows, plan, clients)))


def warned(outcomes: Sequence[Outcome]) -> list[RenderableType]:
    """A line for each thing that a reader of the table must know; runs of which the same is to be said share it."""
    said: dict[str, list[str]] = {}
    for outcome in outcomes:
        for warning in outcome.warnings:
            said.setdefault(warning, []).append(f"{outcome.method} (seed {outcome.seed})")
    return [Text(f"Warning, {', '.join(runs)}: {warning}.", style="bold") for warning, runs in said.items()]


@dataclass(frozen=True)
class _Fitting:
    """The table in the roomiest form that the terminal is wide enough for."""

    rows: Sequence[Row]
    plan: Plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(width=1000)
        forms = [_table(self.rows, self.plan, gap, decimals) for gap, decimals in ((3, 2), (1, 2), (1, 1))]
        fitting = (form for form in forms if console.measure(form, options=unbounded).maximum <= options.max_width)
        yield next(fitting, forms[-1])


def _table(rows: Sequence[Row], plan: Plan, gap: int, decimals: int) -> Table:
    marked = headline(plan.protocol.evaluation)
    headers = [f"{text} *" if name == marked else text for name, text in ACCURACIES.items()]
    share = metric_of(plan, rows[0].metric).is_share
    promises = any(row.least_private is not None for row in rows)
    private = ["epsilon,\ndelta"] if promises else []
    table = grid("\nmethod", *headers, "MB\nup", "MB\ndown", "\nseconds", *private, numbers_from=1, gap=gap)
    for row in rows:
        several = row.seeds > 1
        unfinished = len(plan.seeds) - row.seeds
        name = f"{row.method} ({row.seeds} of {len(plan.seeds)})" if unfinished else row.method
        cells = [
            Text(score_spread(row.values[column], several, share, decimals), style="bold" if column == marked else "")
            for column in ACCURACIES
        ]
        promised = [_promise(row)] if promises else []
        # One client that holds everything sends nothing to anybody.
        central = any(method.name == row.method and method.sees_uncut_graph for method in plan.methods)
        traffic = [NOTHING if central else _traffic(row, column) for column in ("bytes_up", "bytes_down")]
        table.add_row(name, *cells, *traffic, _seconds(row), *promised)
    return table


def _traffic(row: Row, column: str) -> str:
    spread = row.values[column]
    return NOTHING if spread is None else megabytes(spread[0])


def _seconds(row: Row) -> str:
    spread = row.values["seconds"]
    return NOTHING if spread is None else three_digits(spread[0])


def _promise(row: Row) -> str:
    run = row.least_private
    if run is None or run.delta is None:
        return "none"
    return f"{'inf' if run.epsilon is None else three_digits(run.epsilon)}, {run.delta:.2g}"


def _privacy(rows: Sequence[Row]) -> list[str]:
    """What the guarantees are worth, in words."""
    verdicts: dict[str, list[str]] = {}
    for row in rows:
        if (run := row.least_private) is not None:
            verdicts.setdefault(f"{run.mechanism}, {run.privacy}", []).append(row.method)
    lines = [f"Privacy of the least protected client, {', '.join(names)}: {verdict}." for verdict, names in verdicts.items()]
    if any(row.least_private is None for row in rows):
        others = "the others" if verdicts else "any of these"
        lines.append(f"No privacy guarantee by {others}; what they sent: suture privacy RUN.")
    return lines


def legend(rows: Sequence[Row], plan: Plan, clients: int) -> list[str]:
    """What the numbers of a table mean, line by line."""
    settings = plan.protocol.evaluation
    training, metric = plan.protocol.training, metric_of(plan, rows[0].metric)
    rounds = f"{'at most ' if training.patience else ''}{count(training.rounds, 'round')}"
    where = f"{plan.protocol.name}, {origin.label(plan.dataset)}, {count(clients, 'client')}, {listed('seed', plan.seeds)}"
    lines = [
        f"{where}, {rounds}; round reported: {ROUND_REPORTED[settings.select].format(_short(metric))}.",
        _meaning(plan, metric),
    ]
    if plan.protocol.task == "link":
        lines.append(f"{NOTHING} uncut graph: each client hides its own links, so none are tested there.")
    elif any(row.values["accuracy_global"] is None for row in rows):
        lines.append(f"{NOTHING} uncut graph: each client has a model of its own, none is for the whole graph.")
    if any(row.method == "global" for row in rows):
        lines.append(UNCUT)
    lines += _tuned(plan)
    if different := _own_settings(plan):
        lines.append(f"Otherwise than above: {', '.join(different)}.")
    return lines + _privacy(rows)


def _tuned(plan: Plan) -> list[str]:
    """Which values were tuned, if any were; all others are those that the protocol had before."""
    lines, shown = [], {method.name: method for method in plan.methods}
    for line in plan.protocol.tuned:
        if (method := shown.get(tuned_method(line))) is None:
            continue
        changed = [key for key, value in _VALUES.findall(line) if written(value_at(method, key)) != value]
        since = f"; changed since: {', '.join(changed)}" if changed else ""
        lines.append(f"Tuned on validation, {line}{since}.")
    if lines and (others := [name for name in shown if not any(tuned_method(one) == name for one in plan.protocol.tuned)]):
        lines.append(f"Not tuned: {', '.join(others)}.")
    return lines


def _own_settings(plan: Plan) -> list[str]:
    """Where a method has a network or training of its own."""
    return [
        f"{method.name}.{section}.{key} = {written(value)}"
        for method in plan.methods
        for section, own in plan.resolved.sections.items()
        for key, value in own.get(method.name, {}).items()
    ]


def _meaning(plan: Plan, metric: Metric) -> str:
    spread = "mean ± deviation over seeds" if len(plan.seeds) > 1 else "one seed"
    title = metric.title + (" of held-out links" if plan.protocol.task == "link" and metric in OURS else "")
    unit = " in %" if metric.is_share else ""
    return f"{title}{unit}, {metric.direction}, {spread}; * is the number this protocol reports."


def _short(metric: Metric) -> str:
    """As part of a sentence."""
    return metric.title.removeprefix("Test ") if metric in OURS else "score"
