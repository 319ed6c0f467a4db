"""How a plan is carried out: one run after the other in this process, or several side by side.

Whatever is chosen here changes no number: every run draws from streams of its own, and computes with the same threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.core.forks import Died, Ended, Job, Link, side_by_side
from suture.core.progress import Step, listening
from suture.core.progress import tell as tell_listeners
from suture.errors import ConfigError, SutureError
from suture.method import Method
from suture.nn.module import ModuleFactory
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.comparison import Comparison
from suture.runs.execute import check_engine, execute
from suture.runs.folder import EMBEDDED, Asked, RunFolder
from suture.runs.intake import check_device, path_of
from suture.runs.loop import Interrupted
from suture.runs.outcome import Line, Outcome, Tick
from suture.runs.plan import Plan
from suture.runs.prepare import Prepared, Source
from suture.runs.pulse import Pulse, carried_out
from suture.runs.result import Result
from suture.trackers.tracking import check_trackers, tracked

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How to compute, as opposed to what: none of these changes a result beyond rounding."""

    data_root: str | Path | None = None
    """Where raw datasets are; None looks at SUTURE_DATA, then at the cache folder."""
    device: str = "cpu"
    """A torch device."""
    chunk: int = 0
    """Clients computed together; 0 chooses by memory."""
    watch: Callable[[str, int, Tick], None] = lambda method, seed, tick: None
    """Called after every round with the method, the seed and the tick."""
    stop: Callable[[], bool] = lambda: False
    """Asked after every round; True saves and raises `Interrupted`."""
    tell: Callable[[Sequence[str]], None] = lambda notes: None
    """Called once before the first round with all that was dropped or assumed, if the graph is somebody's own or names
    owners."""
    engine: str = EMBEDDED
    """embedded; sealed: the server is shown sums only, where a method needs no more; or debug: slow,
    one client at a time, and an error says client, step, phase and round."""
    record: bool = False
    """Keep the content of every message in the run folder, for `suture attack`."""
    track: Sequence[str] = ()
    """Trackers to tell every round: `tensorboard`, `mlflow`, `wandb`, each also as `NAME:FOLDER`."""
    warn: Callable[[str], None] = log.warning
    """Called with a sentence when a tracker fails; the run goes on."""
    jobs: int = 1
    """Runs of a comparison that are computed side by side, each in a process of its own."""
    threads: int | None = None
    """With several jobs, threads of each; None: those of this process, divided among them."""


@dataclass(frozen=True)
class Work:
    """How a plan is carried out: the options, and the user's own module if there is one."""

    module: ModuleFactory | None
    options: Options

    @staticmethod
    def of(module: ModuleFactory | None, options: Options | None) -> Work:
        """Check what was chosen."""
        work = Work(module, options or Options())
        check_engine(work.options.engine)
        check_device(work.options.device)
        check_trackers(work.options.track)
        if work.options.jobs < 1:
            raise ConfigError(f"jobs must be a whole number from 1 on, got {work.options.jobs}")
        if work.options.jobs > 1 and torch.device(work.options.device).type != "cpu":
            raise ConfigError(f"several jobs compute on the processor, not on {work.options.device}; give one of the two")
        return work

    @property
    def threads(self) -> int:
        """Threads of each run."""
        options = self.options
        if options.jobs == 1:
            return torch.get_num_threads()
        return options.threads or max(1, torch.get_num_threads() // options.jobs)

    @contextmanager
    def dividing_threads(self) -> Iterator[Work]:
        """Prepare with the threads that each run computes with, so that every number is that of one process alone."""
        before, each = torch.get_num_threads(), self.threads
        torch.set_num_threads(each)
        try:
            yield replace(self, options=replace(self.options, threads=each))
        finally:
            torch.set_num_threads(before)

    def check_place(self, out: Path | None) -> None:
        """Messages are recorded in a folder or not at all."""
        if self.options.record and out is None:
            raise ConfigError("recorded messages need a folder; give one with out=...")

    def source(self, made: Plan, data: Data | None, manifest: Path | None) -> Source:
        """The graph of a plan, and its cuts."""
        options = self.options
        root = path_of(options.data_root, "data_root")
        return Source(made, data, manifest=manifest, module=self.module, data_root=root, device=options.device)

    def asked(self, made: Plan) -> Asked:
        """What a folder says of the plan."""
        own, options = self.module is not None, self.options
        return Asked.now(
            made.dataset,
            made.names,
            made.seeds,
            own_module=own,
            chunk=options.chunk,
            engine=options.engine,
            sources=made.sources,
            recorded=options.record,
            threads=self.threads,
        )

    def folder(self, made: Plan, method: Method[Any, Any], prepared: Prepared, path: Path, *, new: bool) -> RunFolder:
        """A new run, or one of a comparison, which may have been begun before that was interrupted."""
        one = replace(made, methods=(method,), seeds=(prepared.task.seed,))
        begin = RunFolder.create if new else RunFolder.open
        return begin(path, self.asked(one), made.config(), prepared.cut)

    def tell(self, prepared: Prepared, more: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Say what was dropped or assumed where that is not a paper's doing; returns what was said."""
        own = origin.is_own(prepared.dataset) or prepared.graph.get("client") is not None
        notes = (*more, *(prepared.notes if own else ()))
        if notes:
            self.options.tell(notes)
        return notes

    def compare(self, made: Plan, source: Source, out: Path | None, left_out: tuple[str, ...] = ()) -> Comparison:
        """Every method on every seed; runs that `out` holds are read, or continued."""
        runs = [folders.place_of(out, name, seed) for name in made.names for seed in made.seeds] if out is not None else []
        left = sum(folders.read_outcome(run) is None for run in runs)
        at_once = max(1, min(self.options.jobs, left))
        with carried_out(out if left else None, len(runs), at_once) as pulse:
            grid = _Grid(self, made, source, out, left_out)
            grid.fill(pulse)
        found = [grid.found[place, seed] for place in range(len(made.methods)) for seed in made.seeds]
        return Comparison(tuple(outcome for outcome, _ in found), tuple(history for _, history in found), grid.notes or ())

    def execute(
        self, made: Plan, method: Method[Any, Any], prepared: Prepared, folder: RunFolder | None, pulse: Pulse
    ) -> Result:
        """One run, in this process."""
        seed, options = prepared.task.seed, self.options
        path, before = (folder.path, folder.read_metrics()) if folder is not None else (None, [])
        told = (method.name, seed, prepared.clients.ids, path, before, options.warn)
        try:
            with tracked(options.track, made, *told) as (note, ended):

                def watch(tick: Tick) -> None:
                    pulse.beat(method.name, seed, tick)
                    note(tick)
                    options.watch(method.name, seed, tick)

                finished = execute(
                    prepared,
                    method,
                    made.protocol,
                    folder=folder,
                    chunk_size=options.chunk,
                    engine=options.engine,
                    watch=watch,
                    stop=options.stop,
                )
                ended(finished.outcome)
        finally:
            if folder is not None:
                folder.close()
        return Result(finished.outcome, finished, folder.path if folder is not None else None)


Told = tuple[Outcome, list[Line]]
"""What a comparison keeps of a run."""


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
            for place in self._in_order():
                method = self.made.methods[place]
                path = folders.place_of(self.out, method.name, seed) if self.out is not None else None
                done = folders.read_outcome(path) if path is not None else None
                if path is not None and done is not None:
                    self.found[place, seed] = done, folders.read_metrics(path)
                    continue
                prepared = prepared or self.source.prepared(seed)
                self.notes = self.work.tell(prepared, self.left_out) if self.notes is None else self.notes
                yield _Cell(place, method, prepared, path)

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


def _raise_first(failed: Sequence[Ended[Told]], kept: bool) -> None:
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
