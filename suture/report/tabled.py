"""Tables of runs, as `suture table` and reports show them: results, every metric, paired differences, runs, settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from suture.attacks.attack import Finding
from suture.core.metrics import OURS
from suture.privacy.disclosure import ENVELOPE, EVALUATION_STEP
from suture.report import results
from suture.report.attacks import untried, worst_in_words
from suture.report.gathering import unlike
from suture.report.records import Gathered
from suture.report.sheets import Cell, Sheet, ranked
from suture.report.text import NOTHING, byte_size, duration, megabytes, score, score_spread, three_digits

SHOWN_SHARE = 100.0


def final(gathered: Gathered) -> Sheet | None:
    """Scores, traffic and time of every method; None: nothing is finished."""
    rows = results.comparison(gathered).rows()
    if not rows:
        return None
    marked = results.headline(gathered.runs[0])
    references = [place for place, row in enumerate(rows) if results.is_reference(row.method)]
    unranked = references if not unlike(gathered) else list(range(len(rows)))
    columns = {name: [spread[0] if (spread := row.values[name]) else None for row in rows] for name in results.SCORES}
    marks = {name: ranked(_as_shown(values, gathered.share), gathered.sign, unranked) for name, values in columns.items()}
    promises = any(row.least_private is not None for row in rows)
    lines: list[list[object]] = []
    for place, row in enumerate(rows):
        cells: list[object] = [row.method]
        for name in results.SCORES:
            spread = row.values[name]
            told = score_spread(spread, row.seeds > 1, gathered.share)
            cells.append(Cell(told, spread[0] if spread else None, marks[name][place]))
        sent = None if place in references else row.values["bytes_up"], row.values["bytes_down"]
        up, down = (None, None) if sent[0] is None else sent
        cells += [Cell(NOTHING) if part is None else Cell(megabytes(part[0]), part[0] / 1e6) for part in (up, down)]
        seconds = row.values["seconds"]
        cells.append(Cell(three_digits(seconds[0]), seconds[0]) if seconds else Cell(NOTHING))
        cells.append(Cell(str(row.seeds), row.seeds))
        if promises:
            run = row.least_private
            epsilon = math.inf if run is None or run.epsilon is None else run.epsilon
            cells.append(Cell("none" if run is None else f"{epsilon:.3g}, {run.delta:.2g}", epsilon))
        lines.append(cells)
    names = [f"{text} *" if name == marked else text for name, text in results.SCORES.items()]
    header = ["method", *names, "MB up", "MB down", "seconds", "seeds", *(["epsilon, delta"] if promises else [])]
    return Sheet.of("results", _final_caption(gathered, bool(references)), header, lines, by_method=True)


def _final_caption(gathered: Gathered, references: bool) -> str:
    unit, several = (" in %" if gathered.share else ""), len(gathered.seeds) > 1
    how = "mean ± sample deviation over seeds" if several else "one seed"
    name = gathered.metric.title if gathered.metric else "Test score"
    direction = gathered.metric.direction if gathered.metric else "greater is better"
    kept_out = "; references trained on the uncut graph are not ranked" if references else ""
    return (
        f"{name}{unit}, {direction}, {how}; * is the number the protocol reports; bold is best, underlined second{kept_out}."
    )


def _as_shown(values: Sequence[float | None], share: bool) -> list[float | None]:
    """Rounded as they are printed: what looks equal shares its mark."""
    return [None if value is None or math.isnan(value) else float(score(value, share)) for value in values]


def differences(gathered: Gathered, against: str | None = None) -> Sheet | None:
    """Every method against one, paired by seed; None: there is nothing to compare."""
    chosen = against or results.baseline(gathered)
    if chosen is None:
        return None
    found = results.paired(gathered, chosen, results.headline(gathered.runs[0]))
    if not found:
        return None
    times = SHOWN_SHARE if gathered.share else 1.0
    lines: list[list[object]] = []
    for one in found:
        told = one.gain
        low, high = (None if end is None else times * end for end in (told.low, told.high))
        interval = NOTHING if low is None or high is None else f"{low:+.2f} to {high:+.2f}"
        verdict = (
            "better" if told.is_sure else "worse" if told.is_loss else "not told apart" if told.half is not None else NOTHING
        )
        lines.append(
            [
                one.method,
                Cell(f"{times * told.mean:+.2f}", times * told.mean),
                Cell(interval, interval),
                Cell(NOTHING if one.p is None else "< 0.001" if one.p < 0.001 else f"{one.p:.3f}", one.p),
                Cell(f"{told.better} of {told.seeds}", told.better),
                verdict,
            ]
        )
    share = results.resampled(gathered)
    how = "corrected resampled t (Nadeau and Bengio)" if share else "paired t over seeds that test the same nodes"
    caption = (
        f"Difference to {chosen} in {'points' if gathered.share else 'the metric'}, paired by seed, above 0 is better; 95 % "
        f"interval and p by the {how}. Not corrected for the number of comparisons ({len(found)})."
    )
    header = ("method", f"against {chosen}", "95 % interval", "p", "seeds better", "verdict")
    return Sheet.of("differences", caption, header, lines, numbers_to=5, by_method=True)


def metrics(gathered: Gathered) -> Sheet | None:
    """Every metric of evaluation.json: mean over clients, mean and deviation over seeds."""
    names, smaller = results.metric_names(gathered), results.smaller_is_better(gathered)
    if not names:
        return None
    shares = {metric.name: metric.is_share for metric in OURS}
    methods = gathered.methods
    told = {name: [_of_seeds(gathered, method, name) for method in methods] for name in names}
    alike = not unlike(gathered)
    references = [place for place, method in enumerate(methods) if not alike or results.is_reference(method)]
    marks = {
        name: ranked(
            _as_shown([one[0] if one else None for one in column], shares.get(name, False)),
            -1.0 if name in smaller else 1.0,
            references,
        )
        for name, column in told.items()
    }
    lines = [
        [
            method,
            *(
                Cell(
                    score_spread(told[name][place], len(gathered.of(method)) > 1, shares.get(name, False)),
                    one[0] if (one := told[name][place]) else None,
                    marks[name][place],
                )
                for name in names
            ),
        ]
        for place, method in enumerate(methods)
    ]
    header = ["method", *(f"{name.replace('_', ' ')}{' ↓' if name in smaller else ''}" for name in names)]
    caption = (
        f"Every metric of the reported models on test {gathered.examples}: mean over clients that can be measured, then "
        "mean ± sample deviation over seeds; shares in %, ↓ smaller is better."
    )
    return Sheet.of("metrics", caption, header, lines, by_method=True)


def _of_seeds(gathered: Gathered, method: str, name: str) -> tuple[float, float] | None:
    values = [results.of_clients(run, name) for run in gathered.of(method) if run.evaluation is not None]
    return results.spread([statistics.fmean(one) for one in values if one])


def runs(gathered: Gathered) -> Sheet:
    """A line for each run: how far it is and how good."""
    column = results.headline(gathered.runs[0])
    lines: list[list[object]] = []
    for run in gathered.runs:
        outcome, done = run.outcome, len(run.iterations.round)
        state = "finished" if outcome else f"{done} iterations so far"
        value = results.score(outcome, column) if outcome else math.nan
        lines.append(
            [
                run.method,
                Cell(str(run.seed), run.seed),
                Cell(score(value, gathered.share), None if math.isnan(value) else value),
                Cell(str(outcome.best_round), outcome.best_round) if outcome else Cell(NOTHING),
                Cell(str(outcome.rounds), outcome.rounds) if outcome else Cell(NOTHING),
                Cell(duration(outcome.seconds), outcome.seconds) if outcome else Cell(NOTHING),
                state,
                run.name,
            ]
        )
    header = ("method", "seed", "test score", "round reported", "rounds", "time", "state", "folder")
    return Sheet.of("runs", "Every run.", header, lines, numbers_to=6, by_method=True)


def sent(gathered: Gathered) -> Sheet | None:
    """What kind of thing went where, by method; one run of each."""
    lines: list[list[object]] = []
    for method in gathered.methods:
        for flow in gathered.of(method)[0].flows:
            if flow.kind == ENVELOPE or flow.step == EVALUATION_STEP:
                continue
            counts = [Cell(str(flow.clients), flow.clients), Cell(str(flow.times), flow.times)]
            size = Cell(byte_size(flow.bytes), flow.bytes)
            way = "clients to server" if flow.direction == "up" else "server to clients"
            lines.append([method, flow.kind, way, flow.step, *counts, size])
    if not lines:
        return None
    header = ("method", "what", "way", "step", "clients", "times each", "bytes")
    caption = "What left whom: every kind of thing in the messages of the first seed's run; scores of tests are left out."
    return Sheet.of("sent", caption, header, lines, numbers_from=4, by_method=True)


def guarantees(gathered: Gathered) -> Sheet:
    """Epsilon and delta, what they are worth in words, and what attacks made of the messages."""
    lines: list[list[object]] = []
    for row in results.comparison(gathered).rows():
        found: list[Finding] = [one for run in gathered.of(row.method) for one in run.findings]
        run = row.least_private
        epsilon = "none" if run is None else "infinite" if run.epsilon is None else f"{run.epsilon:.3g}"
        delta = NOTHING if run is None or run.delta is None else f"{run.delta:.2g}"
        words = "no guarantee" if run is None else f"{run.mechanism}: {run.privacy}"
        lines.append([row.method, epsilon, delta, words, worst_in_words(found)])
    caption = "Guarantee of the least protected client, and the attack that told most, where any was tried."
    header = ("method", "epsilon", "delta", "in words", "measured attack")
    return Sheet.of("privacy", caption, header, lines, numbers_to=3, by_method=True)


def attacks(gathered: Gathered) -> Sheet | None:
    """Every attack that was tried, and which were not."""
    lines: list[list[object]] = []
    for run in gathered.runs:
        for one in run.findings:
            if (m := one.measured) is None:
                continue
            interval = f"{m.low:+.3f} to {m.high:+.3f}"
            numbers = [Cell(f"{value:.3f}", value) for value in (m.success, m.guess, m.advantage)]
            verdict = "messages tell" if one.succeeds else "no better than a guess"
            lines.append(
                [run.method, Cell(str(run.seed), run.seed), one.attack, one.view, m.measure, *numbers, interval, verdict]
            )
        if left := untried(run.findings):
            nothing = [NOTHING] * 6
            lines.append([run.method, Cell(str(run.seed), run.seed), ", ".join(left), *nothing, "not tried: says nothing"])
    if not lines:
        return None
    header = ("method", "seed", "attack", "seen by", "measure", "success", "guess", "advantage", "95 % interval", "verdict")
    caption = (
        "Advantage is success minus the best guess without messages. An attack that fails proves nothing: a better one may "
        "succeed."
    )
    return Sheet.of("attacks", caption, header, lines, numbers_from=5, numbers_to=9, by_method=True)


def settings(gathered: Gathered) -> Sheet | None:
    """Every value of the protocol, and where runs differ."""
    sections = list(dict.fromkeys(section for run in gathered.runs for section in run.settings))
    lines: list[list[object]] = []
    for section in sections:
        keys = dict.fromkeys(key for run in gathered.runs for key in run.settings.get(section, {}))
        for key in keys:
            values = list(dict.fromkeys(run.settings.get(section, {}).get(key, NOTHING) for run in gathered.runs))
            lines.append([f"{section}.{key}" if section else key, " | ".join(values)])
    if not lines:
        return None
    caption = "Every value the runs were made with; several where they differ, | between them."
    return Sheet.of("settings", caption, ("key", "value"), lines, numbers_from=99)


SHEETS = {
    "results": final,
    "differences": differences,
    "metrics": metrics,
    "runs": runs,
    "sent": sent,
    "privacy": guarantees,
}
SHEETS |= {"attacks": attacks, "settings": settings}
"""By name, as `suture table` takes them."""
