"""The report of runs: which sections a page has, and in which order. See `suture.report` for how the parts fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from suture.assessment.candidates import ALONE
from suture.config.toml import parsed
from suture.errors import unknown
from suture.report import results, tabled
from suture.report.figures import communities, curves, cut, mending, outcomes, said, traffic
from suture.report.figures.figure import Figure
from suture.report.gathering import unlike
from suture.report.page import Folded, Listed, Page, Part, Section, Words
from suture.report.records import Gathered
from suture.report.sheets import Sheet
from suture.report.text import count, listed, score_spread
from suture.report.trusting import SENTENCE, text

FIGURES: Mapping[str, Callable[[Gathered], Figure | None]] = {
    "scores": outcomes.scores,
    "gains": outcomes.gains,
    "owners": outcomes.owners,
    "curves": curves.learning,
    "clients": curves.by_client,
    "reported": traffic.reported,
    "graph": cut.graph,
    "labels": cut.labels,
    "between": cut.between,
    "cost": outcomes.cost,
    "traffic": traffic.traffic,
    "time": outcomes.time,
    "similarity": communities.similarity,
    "agreement": communities.agreement,
    "neighbours": mending.neighbours,
    "learned": mending.learned,
    "server-graph": mending.server_graph,
    "confusion": said.confusion,
    "classes": said.by_class,
    "embedding": said.scatter,
}
"""By name, as `suture plot` takes them."""
NOT_KEPT = "These runs do not hold what the pictures of this part need; runs of this version do."


def figure_of(name: str, gathered: Gathered) -> Figure | None:
    """One figure; None: the runs do not hold what it needs."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name](gathered)


def report_page(gathered: Gathered) -> Page:
    """Everything that is known of these runs."""
    drawn = partial(_drawn, gathered)
    sections = [
        Section("results", "Results", (*_results(gathered), *drawn("scores", "gains", "owners"))),
        Section("learning", "Learning", drawn("curves", "clients", "reported")),
        Section("cut", "The cut", drawn("graph", "labels", "between")),
        Section("cost", "Traffic and time", drawn("cost", "traffic", "time")),
        Section("privacy", "Privacy", _privacy(gathered)),
        Section("methods", "Inside the methods", drawn("similarity", "agreement", "neighbours", "learned", "server-graph")),
        Section("predictions", "What the models say", drawn("confusion", "classes", "embedding")),
        Section("asked", "What was asked", _asked(gathered)),
    ]
    kept = tuple(section for section in sections if section.parts)
    return Page(_title(gathered), _lead(gathered), kept, gathered.methods)


def _drawn(gathered: Gathered, *names: str) -> tuple[Part, ...]:
    return tuple(part for name in names if (part := _tried(name, gathered)) is not None)


def _tried(name: str, gathered: Gathered) -> Figure | Words | None:
    """A figure, or why there is none: a folder may hold values that fit their files and not each other."""
    try:
        return FIGURES[name](gathered)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return Words(text(f"The figure {name} cannot be drawn of these runs: {error}", SENTENCE), "problem")


def _there(*parts: Part | None) -> tuple[Part, ...]:
    return tuple(part for part in parts if part is not None)


def _title(gathered: Gathered) -> str:
    first, methods = gathered.runs[0], gathered.methods
    names = ", ".join(methods[:6]) + (f" and {len(methods) - 6} more" if len(methods) > 6 else "")
    clients = f", {count(len(first.clients), 'owner')}" if first.clients else ""
    return f"{names} on {first.dataset}{clients}"


def _lead(gathered: Gathered) -> tuple[str, ...]:
    """What came out, in a sentence or two; the method is chosen by validation, never by the test."""
    if unlike(gathered):
        return ()
    done = results.comparison(gathered)
    federated = [method for method in gathered.methods if not results.is_reference(method) and method != ALONE]
    best = done.chosen(federated, gathered.sign)
    if best is None:
        return ()
    column = results.headline(gathered.runs[0])
    told = results.spread([results.score(one, column) for one in results.finished(gathered, best)])
    several = len(results.finished(gathered, best)) > 1
    name = "score" if gathered.metric is None else gathered.metric.title.removeprefix("Test ")
    unit = " %" if gathered.share else ""
    chosen = "Chosen by validation" if len(federated) > 1 else "The one federated method"
    said_of = f"{chosen}: {best}, test {name} {score_spread(told, several, gathered.share)}{unit}"
    against = results.baseline(gathered)
    pairs = {one.method: one for one in results.paired(gathered, against, column)} if against else {}
    if against == best or best not in pairs:
        return (f"{said_of} ({listed('seed', gathered.seeds)}).",)
    times, found = (100.0 if gathered.share else 1.0), pairs[best].gain
    how = f"{times * found.mean:+.2f} {'points' if gathered.share else ''} against {against}".replace("  ", " ")
    if found.low is None or found.high is None:
        sure = "one seed, so nobody can say how sure that is"
    else:
        verdict = "better" if found.is_sure else "worse" if found.is_loss else "the seeds cannot tell them apart"
        sure = f"95 % interval {times * found.low:+.2f} to {times * found.high:+.2f}: {verdict}"
    return (f"{said_of}, {how} ({sure}).",)


def _results(gathered: Gathered) -> tuple[Part, ...]:
    problems = [Words(one, "problem") for one in (*unlike(gathered), *gathered.problems)]
    warned: dict[str, list[str]] = {}
    for run in gathered.runs:
        for warning in run.outcome.warnings if run.outcome else ():
            warned.setdefault(warning, []).append(f"{run.method} (seed {run.seed})")
    warnings = tuple(f"{', '.join(who)}: {warning}." for warning, who in warned.items())
    final = tabled.final(gathered)
    nothing = None if final else Words("No run has ended yet; what is known so far follows.", "problem")
    metrics = tabled.metrics(gathered)
    return _there(
        *problems,
        nothing,
        final,
        tabled.differences(gathered),
        Listed(warnings, f"{count(len(warnings), 'warning')} about these numbers") if warnings else None,
        Folded("Every metric", (metrics,)) if metrics else None,
    )


def _privacy(gathered: Gathered) -> tuple[Part, ...]:
    sent, attacks = tabled.sent(gathered), tabled.attacks(gathered)
    tried = any(run.findings for run in gathered.runs)
    words = (
        None
        if tried
        else Words(
            "What these messages are worth to somebody curious was not measured; train with --record, then suture attack.",
            "soft",
        )
    )
    audits = tuple(
        f"{run.method}, seed {run.seed}: canaries show epsilon >= {one['lower']:.3g}, promised <= {one['upper']:.3g}."
        for run in gathered.runs
        for one in run.audits[:20]
    )
    done = tabled.guarantees(gathered) if results.finished(gathered) else None
    return _there(
        done, words, attacks, Listed(audits) if audits else None, Folded("What was sent", (sent,)) if sent else None
    )


def _values(gathered: Gathered, key: str) -> str:
    return ", ".join(dict.fromkeys(run.environment.get(key, "") for run in gathered.runs))


def _asked(gathered: Gathered) -> tuple[Part, ...]:
    first = gathered.runs[0]
    description = first.settings.get("", {}).get("description", "").strip('"')
    facts: list[Sequence[str]] = [
        ("dataset", ", ".join(dict.fromkeys(run.dataset for run in gathered.runs))),
        ("protocol", f"{first.protocol}{': ' if description else ''}{description}"),
        ("methods", ", ".join(gathered.methods)),
        ("seeds", ", ".join(map(str, gathered.seeds))),
        ("owners", f"{len(first.clients)}: {', '.join(first.clients[:12])}{', ...' if len(first.clients) > 12 else ''}"),
        ("carried out by", ", ".join(dict.fromkeys(run.engine for run in gathered.runs))),
    ]
    tuned = parsed(first.settings.get("", {}).get("tuned", "[]"))
    facts += [("tuned on validation", str(line)) for line in tuned] if isinstance(tuned, list) else []
    facts += [(key, _values(gathered, key)) for key in first.environment]
    about = Sheet.of(
        "about", "What these runs are, and the code and machine that made them.", ("what", "value"), facts, numbers_from=99
    )
    notes = tuple(dict.fromkeys(note for run in gathered.runs for note in run.notes))
    problems = tuple(dict.fromkeys(f"{run.name}: {one}" for run in gathered.runs for one in run.problems))
    settings = tabled.settings(gathered)
    return _there(
        about,
        Words("What was dropped or assumed of the graph:") if notes else None,
        Listed(notes) if notes else None,
        Words("What could not be read:", "problem") if problems else None,
        Listed(problems) if problems else None,
        Folded(f"All {count(len(gathered.runs), 'run')}", (tabled.runs(gathered),)),
        Folded("Every value of the configuration", (settings,)) if settings else None,
    )
