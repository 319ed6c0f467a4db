"""The runs of a comparison: those that are there are read, and what is left is done, here, side by side, or on Ray."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from suture.bench import on_ray
from suture.bench.work import Options, Work
from suture.core.forks import Died, Ended, Job, Link, side_by_side
from suture.core.progress import Step, listening
from suture.core.progress import tell as tell_listeners
from suture.errors import SutureError
from suture.graph.cut import Cut
from suture.method import Method
from suture.runs import folder as folders
from suture.runs.comparison import Comparison
from suture.runs.loop import Interrupted
from suture.runs.outcome import Line, Outcome, Tick
from suture.runs.plan import Plan
from suture.runs.prepare import Prepared, Source, prepare
from suture.runs.pulse import Pulse, carried_out

Told = tuple[Outcome, list[Line]]
"""What a comparison keeps of a run."""


def compare(work: Work, made: Plan, source: Source, out: Path | None, left_out: tuple[str, ...] = ()) -> Comparison:
    """Every method on every seed; runs that `out` holds are read, or continued."""
    runs = [folders.place_of(out, name, seed) for name in made.names for seed in made.seeds] if out is not None else []
    left = sum(folders.read_outcome(run) is None for run in runs)
    at_once = max(1, min(work.options.jobs, left))
    with carried_out(out if left else None, len(runs), at_once) as pulse:
        grid = _Grid(work, made, source, out, left_out)
        grid.fill(pulse)
    found = [grid.found[place, seed] for place in range(len(made.methods)) for seed in made.seeds]
    return Comparison(tuple(outcome for outcome, _ in found), tuple(history for _, history in found), grid.notes or ())


@dataclass(frozen=True)
class _Cell:
    """A run of a comparison that is left to do."""

    place: int
    method: Method[Any, Any]
    prepared: Prepared
    path: Path | None

    @property
    def seed(self) -> int:
        return self.prepared.task.seed

    @property
    def name(self) -> str:
        return f"{self.method.name} seed {self.seed}"


@dataclass
class _Grid:
    """The runs of a comparison: those that are there, and those that are left."""

    work: Work
    made: Plan
    source: Source
    out: Path | None
    left_out: tuple[str, ...]
    found: dict[tuple[int, int], Told] = field(default_factory=dict)
    notes: tuple[str, ...] | None = None

    def fill(self, pulse: Pulse) -> None:
        """Do what is left."""
        if self.work.options.on is not None:
            self._on_ray(self.work.options.on)
            return
        if self.work.options.jobs > 1:
            self._side_by_side(pulse)
            return
        for cell in self._left():
            self.found[cell.place, cell.seed] = self._run(self.work, cell, pulse)
            del cell  # its graph, before the next one is laid out

    def _run(self, work: Work, cell: _Cell, pulse: Pulse) -> Told:
        path = cell.path
        folder = work.folder(self.made, cell.method, cell.prepared, path, new=False) if path is not None else None
        result = work.execute(self.made, cell.method, cell.prepared, folder, pulse)
        return result.outcome, result.history

    def _left(self) -> Iterator[_Cell]:
        """What is to be done, prepared; each seed's graph is laid out when its first run is asked for."""
        for seed in self.made.seeds:
            prepared: Prepared | None = None
            for place, path in self._missing(seed):
                prepared = prepared or self._prepared(seed)
                yield _Cell(place, self.made.methods[place], prepared, path)

    def _missing(self, seed: int) -> Iterator[tuple[int, Path | None]]:
        """Places of the methods whose run is not finished, and its folder; those that are finished are read."""
        for place in self._in_order():
            path = self._path(place, seed)
            if path is None or not self._read(place, seed, path):
                yield place, path

    def _path(self, place: int, seed: int) -> Path | None:
        return folders.place_of(self.out, self.made.names[place], seed) if self.out is not None else None

    def _read(self, place: int, seed: int, path: Path) -> bool:
        """Read a run; False if it is not finished."""
        done = folders.read_outcome(path)
        if done is not None:
            self.found[place, seed] = done, folders.read_metrics(path)
        return done is not None

    def _prepared(self, seed: int) -> Prepared:
        prepared = self.source.prepared(seed)
        self.notes = self.work.tell(prepared, self.left_out) if self.notes is None else self.notes
        return prepared

    def _in_order(self) -> list[int]:
        """Places of the methods; side by side, those that are known to take long first, so that none is left at the end."""
        places = list(range(len(self.made.methods)))
        if self.work.options.jobs == 1:
            return places
        seconds = {place: told[0].seconds for (place, _), told in self.found.items()}
        return sorted(places, key=lambda place: -seconds.get(place, math.inf))

    def _side_by_side(self, pulse: Pulse) -> None:
        options, cells = self.work.options, dict[str, tuple[int, int, str]]()

        def jobs() -> Iterator[Job[Told]]:
            for cell in self._left():
                cells[cell.name] = cell.place, cell.seed, cell.method.name
                yield Job(cell.name, lambda link, cell=cell: self._in_a_fork(cell, link))  # type: ignore[misc]

        def hear(name: str, event: object) -> None:
            _, seed, method = cells[name]
            match event:
                case Tick():
                    pulse.beat(method, seed, event)
                    options.watch(method, seed, event)
                case Step():
                    tell_listeners(replace(event, what=f"{name}: {event.what}", key=hash((name, event.key))))
                case str():
                    options.warn(event)

        def ended(end: Ended[Told]) -> None:
            if end.result is not None:
                place, seed, _ = cells[end.name]
                self.found[place, seed] = end.result

        threads = self.work.threads
        ends = side_by_side(jobs(), at_once=options.jobs, threads=threads, hear=hear, ended=ended, stop=options.stop)
        _raise_first([end for end in ends if end.error is not None], kept=self.out is not None)

    def _on_ray(self, on: str) -> None:
        """Let Ray do what is left; the files it hands back are read as if they had always been here."""
        options, source = self.work.options, self.source
        cells = [(place, seed, path) for seed in self.made.seeds for place, path in self._missing(seed)]
        if not cells:
            return
        on_ray.refuse_own_code(self.made)
        self._prepared(cells[0][1])  # to say what was dropped or assumed, and that it can be laid out at all
        named = {f"{self.made.names[place]} seed {seed}": (place, seed, path) for place, seed, path in cells}
        errands = [
            on_ray.Errand(name, replace(self.made, methods=(self.made.methods[place],), seeds=(seed,)), cut)
            for name, (place, seed, _) in named.items()
            for cut in [source.given or source.cuts[seed]]
        ]

        def ended(end: Ended[on_ray.Files]) -> None:
            place, seed, path = named[end.name]
            if end.result is not None:
                with on_ray.kept(end.result, path) as kept:
                    self._read(place, seed, kept)

        carry = partial(_carry_out, options=Options(chunk=options.chunk, engine=options.engine, record=options.record))
        ends = on_ray.carry_out(
            errands, source.graph, carry, on=on, threads=self.work.threads, ended=ended, stop=options.stop
        )
        _raise_first([end for end in ends if end.error is not None], kept=self.out is not None)

    def _in_a_fork(self, cell: _Cell, link: Link) -> Told:
        told = replace(
            self.work.options,
            watch=lambda method, seed, tick: link.tell(tick),
            stop=link.stop,
            warn=link.tell,
            jobs=1,
        )
        with listening(link.tell):
            return self._run(replace(self.work, options=told), cell, Pulse(None))


def _carry_out(made: Plan, graph: Data, cut: Cut, path: Path, *, options: Options) -> None:
    """One run in a folder, wherever this process is; the graph is preprocessed."""
    work, (method,), (seed,) = Work.of(None, options), made.methods, made.seeds
    prepared = prepare(graph, made.dataset, made.protocol, seed, cut=cut)
    work.execute(made, method, prepared, work.folder(made, method, prepared, path, new=True), Pulse(None))


def _raise_first(failed: Sequence[Ended[Any]], kept: bool) -> None:
    """Say which runs have failed, and what has become of the others."""
    if not failed:
        return
    stopped = [end for end in failed if isinstance(end.error, Interrupted)]
    real = [end for end in failed if end not in stopped]
    if not real:
        raise Interrupted("; ".join(f"{end.name} {end.error}" for end in stopped))
    first, error = real[0], real[0].error
    if not isinstance(error, SutureError):
        assert error is not None
        error.add_note(f"in {first.name}")
        raise error
    named = str(error) if isinstance(error, Died) else f"{first.name}: {error}"
    others = f"; {len(real) - 1} more failed" if len(real) > 1 else ""
    told = type(error)(f"{named}{others}{'; all other runs are kept' if kept else ''}")
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    raise told
