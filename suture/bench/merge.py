"""Runs that were computed in pieces, become one comparison: of other seeds, other methods, on other machines.

What does not fit together is refused: another graph, another cut of a seed, other values, a run that is there twice with
other numbers. Runs that are missing in the grid of methods and seeds are left to `suture resume`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suture.config.resolve import Own, Resolved, to_toml
from suture.core.progress import each
from suture.core.storage import copy_files, sha256_of_json, staged_folder
from suture.errors import ConfigError, IntegrityError, some_of
from suture.graph.cut import Cut, load_manifest, same_cut
from suture.plugins import Source
from suture.runs.folder import (
    Asked,
    begin_comparison,
    is_begun,
    is_comparison,
    manifest_of,
    place_of,
    read_asked,
    read_environment,
    read_metrics,
    read_outcome,
    read_plan,
    refuse_used,
)
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan
from suture.runs.pulse import LOCK, PROGRESS, is_carried_out


@dataclass(frozen=True)
class Merged:
    """What came of it."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: int
    """Finished ones."""
    missing: tuple[str, ...]
    """Names of those that are left to do."""
    notes: tuple[str, ...]
    """What a reader of its numbers must know."""


@dataclass(frozen=True)
class _Run:
    """One run, wherever it lies."""

    path: Path
    asked: Asked
    made: Plan
    cut: Cut
    outcome: Outcome | None

    @property
    def method(self) -> str:
        return self.asked.methods[0]

    @property
    def seed(self) -> int:
        return self.asked.seeds[0]

    @property
    def cell(self) -> tuple[str, int]:
        return self.method, self.seed

    @property
    def name(self) -> str:
        return f"{self.method} seed {self.seed}"


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Put the runs of all folders into a new comparison; a folder is a run, a comparison, or holds some of either."""
    refuse_used(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; give --out a new folder")
    places = list(_places(folders))
    paths = [path for place in places for path in _runs_of(place)]
    runs = [_read(path) for path in each("merge", "reading runs", paths, "runs", name=lambda path: path.name)]
    if not runs:
        raise ConfigError(f"there is no run in {some_of([str(folder) for folder in folders])}; give folders of runs")
    _check_fits(runs)
    chosen, notes = _chosen(runs)
    wanted = [read_asked(place) for place in places]
    methods = tuple(dict.fromkeys(name for asked in wanted for name in asked.methods))
    seeds = tuple(sorted({seed for asked in wanted for seed in asked.seeds}))
    asked = _asked(runs, methods, seeds)
    config = to_toml(_resolved(runs, methods, seeds))
    cut = _shared_cut(runs)
    with staged_folder(out) as staged:
        begin_comparison(staged, asked, config, cut)
        for run in each("merge", "copying runs", chosen, "runs", name=lambda run: run.name):
            left = copy_files(run.path, place_of(staged, *run.cell), skip=(LOCK, PROGRESS))
            if left:
                raise IntegrityError(f"{left[0]} is neither a file nor a folder; put the file itself in its place")
    finished = {run.cell for run in chosen if run.outcome is not None}
    missing = [f"{method} seed {seed}" for method in methods for seed in seeds if (method, seed) not in finished]
    return Merged(methods, seeds, len(finished), tuple(missing), (*notes, *_noted(runs)))


def _places(folders: Iterable[Path]) -> Iterator[Path]:
    """Runs and comparisons, also those that lie in a folder that is neither."""
    for folder in folders:
        if is_begun(folder):
            yield folder
            continue
        inside = sorted(path for path in folder.iterdir() if is_begun(path)) if folder.is_dir() else []
        if not inside:
            raise ConfigError(f"{folder} holds no run, and no folder in it does; give folders of runs or comparisons")
        yield from inside


def _runs_of(place: Path) -> list[Path]:
    if is_carried_out(place):
        raise ConfigError(f"{place} is being carried out; wait for it, or stop it first")
    if not is_comparison(place):
        return [place]
    asked = read_asked(place)
    every = (place_of(place, method, seed) for method in asked.methods for seed in asked.seeds)
    return [path for path in every if is_begun(path)]


def _read(path: Path) -> _Run:
    asked, manifest = read_asked(path), manifest_of(path)
    if manifest is None:
        raise ConfigError(f"{path} is a run between owners, each of whom has its own piece; only runs of one machine merge")
    made, outcome = read_plan(path), read_outcome(path)
    if outcome is not None and (outcome.method, outcome.seed) != (asked.methods[0], asked.seeds[0]):
        raise IntegrityError(f"{path} was asked for other runs than the one whose result it holds; it is damaged")
    return _Run(path, asked, made, load_manifest(manifest), outcome)


def _check_fits(runs: Sequence[_Run]) -> None:
    """Refuse what cannot be one comparison, by the first thing that differs."""
    first = runs[0]
    same_method, same_seed = dict[str, _Run](), dict[int, _Run]()
    for run in runs:
        _check_alike(first, run)
        alike = same_method.setdefault(run.method, run)
        if differing := difference(alike.made.methods[0], run.made.methods[0]):
            raise ConfigError(
                f"{alike.path} and {run.path} ran {run.method} with other values: {differing}; rerun one of them"
            )
        cut = same_seed.setdefault(run.seed, run)
        if not same_cut(cut.cut, run.cut):
            raise ConfigError(
                f"{cut.path} and {run.path} have other cuts of seed {run.seed}; run one anew with the other's --manifest"
            )


def _check_alike(one: _Run, other: _Run) -> None:
    """What all runs of a comparison have in common."""
    between = f"{one.path} and {other.path}"
    if one.cut.fingerprint != other.cut.fingerprint:
        raise ConfigError(
            f"{between} were not computed on the same graph: {one.cut.dataset} and {other.cut.dataset} have other nodes, "
            "edges or features after preprocessing; merge runs of one graph"
        )
    ours, theirs = (replace(run.made.protocol, seeds=(0,), description="") for run in (one, other))
    if differing := difference(ours, theirs):
        raise ConfigError(f"{between} do not follow one protocol: {differing}; merge runs of one protocol")
    if one.asked.own_module != other.asked.own_module:
        raise ConfigError(f"{between} did not train the same network: that of one was somebody's own module")


def difference(one: object, other: object, name: str = "") -> str | None:
    """The first value in which two settings differ, in words; None if none does."""
    if one == other:
        return None
    if type(one) is not type(other) or not dataclasses.is_dataclass(one):
        return f"{name or 'its code'} is {one} and {other}"
    parts = (part.name for part in dataclasses.fields(one))
    found = (difference(getattr(one, part), getattr(other, part), f"{name}.{part}".lstrip(".")) for part in parts)
    return next((text for text in found if text is not None), None)


def _chosen(runs: Sequence[_Run]) -> tuple[list[_Run], list[str]]:
    """One run for each cell, a finished one if there is one; the same run twice must have the same numbers."""
    chosen: dict[tuple[str, int], _Run] = {}
    notes = []
    for run in runs:
        before = chosen.get(run.cell)
        if before is None or (before.outcome is None and run.outcome is not None):
            chosen[run.cell] = run
        elif before.outcome is not None and run.outcome is not None:
            _refuse_other_numbers(before, run, before.outcome, run.outcome)
            notes.append(f"{run.name} is in {before.path} and in {run.path}, with the same numbers; the first was taken")
    return list(chosen.values()), notes


def _refuse_other_numbers(one: _Run, other: _Run, ours: Outcome, theirs: Outcome) -> None:
    differing = difference(replace(ours, seconds=0.0), replace(theirs, seconds=0.0))
    if differing is None and read_metrics(one.path) != read_metrics(other.path):
        differing = "their metrics of single rounds"
    if differing is not None:
        raise ConfigError(
            f"{one.name} is in {one.path} and in {other.path} with other numbers: {differing}; leave one of them out"
        )


def _asked(runs: Sequence[_Run], methods: tuple[str, ...], seeds: tuple[int, ...]) -> Asked:
    """What the comparison was asked: all of it, with the threads and chunks of the first run."""
    sources: dict[tuple[str, str], Source] = {}
    for run in runs:
        for source in run.asked.sources:
            known = sources.setdefault((source.kind, source.name), source)
            if known.sha256 != source.sha256:
                raise ConfigError(
                    f"the {source.kind} {source.name} of {run.path} was other code; rerun it with the same code"
                )
    plugins = tuple(dataclasses.asdict(source) for source in sources.values())
    recorded = all(run.asked.recorded for run in runs)
    return replace(runs[0].asked, methods=methods, seeds=seeds, plugins=plugins, recorded=recorded)


def _resolved(runs: Sequence[_Run], methods: tuple[str, ...], seeds: tuple[int, ...]) -> Resolved:
    """The values of everybody, and of each method those it was run with, or would be by the first run's configuration."""
    first = runs[0].made.resolved
    own: Own = {}
    sections: dict[str, Own] = {}
    for method in dict.fromkeys(
        (*methods, *first.methods, *(name for tables in first.sections.values() for name in tables))
    ):
        ran = next((run for run in runs if run.method == method), None)
        resolved = ran.made.resolved if ran is not None else first
        if method in resolved.methods:
            own[method] = resolved.methods[method]
        for section, tables in resolved.sections.items():
            if method in tables:
                sections.setdefault(section, {})[method] = tables[method]
    return Resolved(replace(first.protocol, seeds=seeds), own, sections)


def _shared_cut(runs: Sequence[_Run]) -> Cut | None:
    """The one cut of all runs; None: every seed has its own, as its protocol makes it."""
    first = runs[0].cut
    if all(same_cut(first, run.cut) for run in runs):
        return first
    for run in runs:
        protocol = run.made.protocol
        made = {part: dataclasses.asdict(getattr(protocol, part)) for part in ("preprocess", "partition", "split")}
        if run.cut.seed != run.seed or sha256_of_json(run.cut.settings) != sha256_of_json(made):
            raise ConfigError(
                f"{run.path} has a cut from a manifest, and others have another one; merge runs of one manifest, or of none"
            )
    return None


def _noted(runs: Sequence[_Run]) -> Iterator[str]:
    """What is allowed to differ, and may show in late digits."""
    for what in ("threads", "chunk", "engine"):
        found = sorted({str(getattr(run.asked, what)) for run in runs})
        if len(found) > 1:
            yield f"runs were computed with {what} {' and '.join(found)}: their numbers may differ in late digits"
    where = {str(read_environment(run.path).get("source")) for run in runs}
    if len(where) > 1:
        yield "runs were computed by different versions of Suture's code"
