"""How a plan is carried out: one run after the other in this process, or several side by side.

Whatever is chosen here changes no number: every run draws from streams of its own, and computes with the same threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.bench.on_ray import check_place
from suture.errors import ConfigError
from suture.method import Method
from suture.nn.module import ModuleFactory
from suture.runs import origin
from suture.runs.execute import check_engine, execute
from suture.runs.folder import EMBEDDED, Asked, RunFolder
from suture.runs.intake import check_device, path_of
from suture.runs.outcome import Tick
from suture.runs.plan import Plan
from suture.runs.prepare import Prepared, Source
from suture.runs.pulse import Pulse
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
    """Of each run of a comparison; None: those of this process, divided among jobs. On Ray, None is one."""
    on: str | None = None
    """`ray` or `ray://HOST:PORT`: the runs of a comparison are computed by Ray; None: here."""


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
        if work.options.on is not None:
            check_place(work.options.on, work.options.jobs, work.options.track, own_module=module is not None)
        return work

    @property
    def threads(self) -> int:
        """Threads of each run."""
        options = self.options
        if options.threads is not None:
            return options.threads
        return 1 if options.on is not None else max(1, torch.get_num_threads() // options.jobs)

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
