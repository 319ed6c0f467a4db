"""`suture rerun`: what somebody has shared, computed again, and compared number by number."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path

from suture.bench.grid import compare
from suture.bench.parcel import Parcel, opened, unpack
from suture.bench.share import DATA
from suture.bench.work import Options, Work
from suture.core.storage import sha256_of_file, staged_folder, write_json
from suture.errors import ConfigError, IntegrityError
from suture.runs import origin
from suture.runs.folder import (
    COMPARISON,
    MANIFEST,
    METRICS,
    Asked,
    manifest_of,
    place_of,
    read_asked,
    read_plan,
    refuse_used,
)
from suture.runs.intake import path_of
from suture.runs.machine import environment
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan
from suture.runs.prepare import Source

THEIRS = "theirs"
"""Under a run's folder: what was shared of it."""


@dataclass(frozen=True)
class Pair:
    """A run as it was shared, and as it is here."""

    theirs: Outcome
    ours: Outcome
    same_metrics: bool
    """Every line of metrics.jsonl, byte for byte."""

    @property
    def differing(self) -> dict[str, tuple[object, object]]:
        """What is not the same, but for seconds and for where the graph lies, which is known by its fingerprint."""
        told = {name: (value, getattr(self.ours, name)) for name, value in vars(self.theirs).items()}
        return {name: both for name, both in told.items() if name not in ("seconds", "dataset") and not _equal(*both)}

    @property
    def same(self) -> bool:
        """Whether nothing but the seconds differs."""
        return self.same_metrics and not self.differing


def _equal(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # NaN is what it is


@dataclass(frozen=True)
class Rerun:
    """What came of it."""

    made: Plan
    pairs: tuple[Pair, ...]
    versions: tuple[str, ...]
    """What is another here than where it was computed, in words."""
    out: Path

    @property
    def same(self) -> bool:
        """Whether every number is."""
        return all(pair.same for pair in self.pairs)


def unpacked(file: Path, out: Path, data: Path | None) -> Parcel:
    """Make a comparison of a shared file, with none of its runs done yet; refuses what is not whole, or has no graph."""
    refuse_used(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; give --out a new folder")
    with opened(file) as (parcel, archive):
        graph = parcel.graph
        if graph.own and not graph.included and data is None:
            raise ConfigError(
                f"the graph {graph.name} of {file} is somebody's own and not in it; ask for it, and give it as --data FOLDER"
            )
        if data is not None and not graph.own:
            raise ConfigError(f"{file} is of the dataset {graph.name}, which is loaded by its name; leave --data out")
        with staged_folder(out) as staged:
            unpack(parcel, archive, staged)
            asked = read_asked(staged)
            _check_asked(parcel, asked)
            if graph.own:
                dataset = origin.named(data if data is not None else staged / DATA)
                asked = replace(asked, dataset=dataset if data is not None else str(out.resolve() / DATA))
            (staged / THEIRS).mkdir()
            for outcome in parcel.runs:
                place = place_of(staged, outcome.method, outcome.seed)
                place.rename(staged / THEIRS / place.name)
            write_json(staged / COMPARISON, dataclasses.asdict(asked))
    return parcel


def _check_asked(parcel: Parcel, asked: Asked) -> None:
    """What a file asks for must be what it holds."""
    runs = {(method, seed) for method in asked.methods for seed in asked.seeds}
    same_graph = asked.dataset == parcel.graph.name and not (origin.is_folder(asked.dataset) or asked.own_module)
    if {(one.method, one.seed) for one in parcel.runs} != runs or len(parcel.runs) != len(runs) or not same_graph:
        raise IntegrityError(f"{parcel.path} asks for other runs, or another graph, than it speaks of; have it made again")


def rerun(parcel: Parcel, out: Path, options: Options | None = None) -> Rerun:
    """Compute what `unpacked` has made, with the cuts, threads and chunks that were shared, and compare."""
    asked, made = read_asked(out), read_plan(out)
    chosen = replace(options or Options(), chunk=asked.chunk, threads=asked.threads, engine=asked.engine)
    with Work.of(None, chosen).dividing_threads() as work:
        root, given = path_of(work.options.data_root, "data_root"), manifest_of(out)
        cuts = {seed: place_of(out / THEIRS, asked.methods[0], seed) / MANIFEST for seed in asked.seeds}
        source = Source(made, manifest=given, manifests=None if given is not None else cuts, data_root=root)
        comparison = compare(work, made, source, out)
    ours = {(outcome.method, outcome.seed): outcome for outcome in comparison.outcomes}
    pairs = [
        Pair(theirs, ours[theirs.method, theirs.seed], _same_metrics(out, theirs.method, theirs.seed))
        for theirs in parcel.runs
    ]
    return Rerun(made, tuple(pairs), tuple(_other_versions(parcel)), out)


def _same_metrics(out: Path, method: str, seed: int) -> bool:
    here, there = (sha256_of_file(place_of(home, method, seed) / METRICS) for home in (out, out / THEIRS))
    return here == there


def _other_versions(parcel: Parcel) -> list[str]:
    """What else than the machine may make numbers differ."""
    here, there = environment(), parcel.environment
    found = [
        f"{name} {there.get(name)} (here {here[name]})"
        for name in ("suture", "python", "system")
        if there.get(name) != here[name]
    ]
    theirs = there.get("packages")
    packages = here["packages"]
    if isinstance(packages, dict) and isinstance(theirs, dict):
        found += [f"{name} {theirs.get(name)} (here {now})" for name, now in packages.items() if theirs.get(name) != now]
    if there.get("source") != here["source"] and not found:
        found.append("Suture of the same version, but other code")
    return [json.dumps(text)[1:-1][:200] for text in found]
