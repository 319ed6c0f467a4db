"""From run folders to `suture.report.records`, whatever state the folders are in.

Nothing in a folder is trusted: no code that it names is loaded, no link followed, no pipe opened, nothing huge read. A part
that is missing is absent from the record; one that is damaged is a sentence in `problems`, and the rest is shown.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from suture.attacks.trials import read_findings
from suture.config.toml import read_toml, written
from suture.core.metrics import OURS, Metric
from suture.errors import ConfigError, SutureError
from suture.federation.wire.orders import ORDER
from suture.privacy.audited import AUDIT
from suture.privacy.disclosure import Flow, read_disclosure
from suture.report.console import cleaned, shortened
from suture.report.keeping import read_kept, read_scatter, read_sketch
from suture.report.privacy import read_audits
from suture.report.records import Curve, Gathered, Iterations, Kept, RunRecord
from suture.report.rounds import read_curve, read_iterations
from suture.report.theme import IN_FOLDER
from suture.report.trusting import SENTENCE, checked_file, json_of, number, table, text, texts, whole
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.outcome import Outcome

MOST_RUNS, MOST_CLIENTS, MOST_NOTES = 500, 2000, 200
T = TypeVar("T")


def gather(paths: Sequence[Path]) -> Gathered:
    """All runs of these folders, each a run's or a comparison's."""
    if not paths:
        raise ConfigError("give the folder of a run or comparison, such as runs/mine")
    problems: list[str] = []
    runs: list[RunRecord] = []
    homes: list[str] = []
    for path, name, home in _places(paths, problems):
        if len(runs) == MOST_RUNS:
            problems.append(f"only the first {MOST_RUNS} runs are shown")
            break
        runs.append(read_run(path, name))
        homes.append(home)
    if not runs:
        raise ConfigError(f"no run of {', '.join(map(str, paths))} has begun; start one with: suture run --out {paths[0]}")
    return Gathered(told_apart(runs, homes), tuple(problems), _metric(runs))


def told_apart(runs: Sequence[RunRecord], homes: Sequence[str]) -> tuple[RunRecord, ...]:
    """The runs, in which a method that was run twice with a seed is called by its folder too: two settings are not one."""
    times = Counter((run.method, run.seed) for run in runs)
    twice = {method for (method, _), number in times.items() if number > 1}
    named = [
        replace(run, method=f"{run.method}{IN_FOLDER}{home}") if run.method in twice else run
        for run, home in zip(runs, homes, strict=True)
    ]
    return tuple(
        replace(run, outcome=replace(run.outcome, method=run.method, seed=run.seed)) if run.outcome else run for run in named
    )


def _places(paths: Sequence[Path], problems: list[str]) -> Iterator[tuple[Path, str, str]]:
    """The folders of all runs, with what people call them, and the folder that was given for them."""
    seen: set[Path] = set()
    for path in paths:
        if not folders.is_begun(path) and (path / ORDER).exists():
            raise ConfigError(
                f"{path} was ordered from a federation, and no leg of it has ended yet: there is nothing to show; "
                f"go on with: suture federation resume {path}"
            )
        asked = folders.read_asked(path)
        if not folders.is_comparison(path):
            places = [path]
        else:
            everyone = [folders.place_of(path, method, seed) for method in asked.methods for seed in asked.seeds]
            places = [place for place in everyone[: MOST_RUNS + 1] if (place / folders.RUN).is_file()]
            if missing := len(everyone) - len(places):
                problems.append(f"{missing} of the {len(everyone)} runs of {path.name} have not begun")
        for place in places:
            if (real := place.resolve()) not in seen:
                seen.add(real)
                alike = sum(other.name == path.name for other in paths) > 1
                home = str(path) if alike else path.name
                yield place, shortened(cleaned(place.name), 120), shortened(cleaned(home), 60)


def read_run(path: Path, name: str) -> RunRecord:
    """One run; the first thing that is wrong with a file is kept as a sentence, and that file's part left out."""
    problems: list[str] = []

    def tried(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except SutureError as error:
            problems.append(text(str(error), SENTENCE))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError, OSError) as error:
            problems.append(text(f"a file of {name} is damaged ({type(error).__name__}: {error})", SENTENCE))
        return otherwise

    nothing: Mapping[str, Any] = {}
    nobody: tuple[str, ...] = ()
    unset: dict[str, dict[str, str]] = {}
    asked = tried(lambda: table(json_of(path / folders.RUN)), nothing)
    outcome = tried(lambda: _outcome(path), None)
    card = tried(lambda: json_of(path / folders.DATA) or nothing, nothing)
    clients = tried(lambda: texts(card.get("owners", []), MOST_CLIENTS), nobody)
    settings = tried(lambda: _settings(path), unset)
    curve = tried(lambda: read_curve(path, len(clients)), Curve())
    return RunRecord(
        name=name,
        method=tried(lambda: text(table(asked)["methods"][0]), outcome.method if outcome else "unknown"),
        seed=tried(lambda: whole(asked["seeds"][0]), outcome.seed if outcome else 0),
        dataset=tried(lambda: text(origin.label(str(asked["dataset"]))), "unknown"),
        protocol=text(settings.get("", {}).get("name", "").strip('"')),
        engine=tried(lambda: text(asked.get("engine", "")), ""),
        clients=clients,
        settings=settings,
        environment=tried(lambda: _environment(path), {}),
        notes=tried(lambda: texts(card.get("notes", []), MOST_NOTES, SENTENCE), ()),
        outcome=outcome,
        curve=curve,
        iterations=tried(lambda: read_iterations(path), Iterations()),
        flows=tried(lambda: _flows(path), ()),
        evaluation=tried(lambda: _evaluation(path), None),
        findings=tried(lambda: tuple(read_findings(path)) if checked_file(path / folders.ATTACKS) else (), ()),
        audits=tried(lambda: read_audits(path) if checked_file(path / AUDIT) else (), ()),
        sketch=tried(lambda: read_sketch(path), None),
        scatter=tried(lambda: read_scatter(path), None),
        kept=tried(lambda: read_kept(path), Kept()),
        mended=tried(lambda: table((json_of(path / folders.VIEWS) or nothing).get("mended") or nothing), None),
        roles=tried(lambda: _roles(path), ""),
        problems=tuple(dict.fromkeys(problems)),
    )


def _outcome(path: Path) -> Outcome | None:
    """result.json with every value of its kind."""
    told = json_of(path / folders.RESULT)
    if told is None:
        return None
    values: dict[str, Any] = {}
    for one in fields(Outcome):
        if one.name not in told:
            continue
        value = told[one.name]
        if one.name in ("suspects", "warnings"):
            values[one.name] = texts(value, MOST_CLIENTS, SENTENCE)
        elif one.name == "best_rounds":
            values[one.name] = tuple(whole(number) for number in value)
        elif one.name in ("method", "dataset", "protocol", "metric", "privacy"):
            values[one.name] = text(value, SENTENCE)
        elif one.name == "mechanism":
            values[one.name] = None if value is None else text(value)
        elif one.name in ("seed", "clients", "bytes_up", "bytes_down", "rounds", "best_round"):
            values[one.name] = whole(value)
        else:
            values[one.name] = _score(value, one.name in ("accuracy_global", "epsilon", "delta", "validation"))
    return Outcome(**values)


def _evaluation(path: Path) -> Mapping[str, Any] | None:
    """evaluation.json, if every client's roles hold numbers; of what is drawn the figures check the rest."""
    told = json_of(path / folders.EVALUATION)
    for client in () if told is None else (told["pooled"], *table(told["clients"]).values()):
        for role in ("train", "val", "test"):
            for value in table(table(client)[role]).values():
                number(value)
    return told


def _score(value: object, optional: bool) -> float | None:
    """A number; one that must be there, and is NaN because nobody could be tested, is NaN."""
    found = number(value)
    return float("nan") if found is None and not optional else found


def _settings(path: Path) -> dict[str, dict[str, str]]:
    """config.toml by section, `methods.fedpub` among them; the values at its top under the empty name."""
    file = checked_file(path / folders.CONFIG)
    if file is None:
        return {}
    found: dict[str, dict[str, str]] = {"": {}}
    for key, value in read_toml(file).items():
        if not isinstance(value, dict):
            found[""][text(key)] = text(_written(value), 200)
            continue
        for inner, content in value.items():
            if isinstance(content, dict):
                section = found.setdefault(text(f"{key}.{inner}"), {})
                section |= {text(name): text(_written(one), 200) for name, one in content.items()}
            else:
                found.setdefault(text(key), {})[text(inner)] = text(_written(content), 200)
    return found


def _written(value: object) -> str:
    try:
        return written(value)
    except TypeError:
        return str(value)


def _environment(path: Path) -> dict[str, str]:
    told = json_of(path / folders.ENVIRONMENT) or {}
    flat = {key: value for key, value in told.items() if not isinstance(value, dict)}
    flat |= table(told.get("packages", {}))
    if any(isinstance(value, list | dict) for value in flat.values()):
        raise ValueError(f"{folders.ENVIRONMENT} should hold texts and numbers")
    found = {text(str(key)): text(str(value)) for key, value in list(flat.items())[:50]}
    return found | ({"source": found["source"][:12]} if "source" in found else {})


def _flows(path: Path) -> tuple[Flow, ...]:
    if checked_file(path / folders.LEDGER) is None:
        return ()
    flows = read_disclosure(path).flows()[:500]
    return tuple(replace(one, step=text(one.step), direction=text(one.direction), kind=text(one.kind)) for one in flows)


def _roles(path: Path) -> str:
    told = json_of(path / folders.MANIFEST)
    if told is None:
        return ""
    if not isinstance(told["roles"], str):
        raise ValueError(f"{folders.MANIFEST} does not say who trains and who is tested")
    return hashlib.sha256(told["roles"].encode()).hexdigest()


def _metric(runs: Sequence[RunRecord]) -> Metric | None:
    """By what all runs are scored, if it is one of ours."""
    names = {run.outcome.metric for run in runs if run.outcome} or {
        run.settings.get("evaluation", {}).get("metric", "").strip('"') for run in runs
    }
    return next((metric for metric in OURS if names == {metric.name}), None)


def unlike(gathered: Gathered) -> tuple[str, ...]:
    """What a reader must know before numbers of these runs are compared with each other."""
    said = []
    for what, values in (
        ("datasets", {run.dataset for run in gathered.runs}),
        ("protocols", {run.protocol for run in gathered.runs if run.protocol}),
        ("metrics", {run.outcome.metric for run in gathered.runs if run.outcome}),
    ):
        if len(values) > 1:
            said.append(f"these runs have different {what} ({', '.join(sorted(values))}): their numbers cannot be compared")
    return tuple(said)
