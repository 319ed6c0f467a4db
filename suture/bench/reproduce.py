"""The missing runs of papers' tables, carried out one after the other or side by side, within a budget.

Every run trains in a folder of its own, `.under-way/` in the store, so that one that was stopped or killed is gone on with;
when it is finished its numbers go into the file of its table, and the folder is deleted. A budget begins no run that is
expected to take longer than what is left of it, and stops those at work after their current round when it is used up.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suture.bench.order import Left
from suture.bench.recipe import THREADS, Recipe
from suture.bench.reproduced import Run, Store, here, made_by
from suture.bench.work import Options, Work
from suture.core.forks import Ended, Job, Link, side_by_side
from suture.core.progress import Step, listening
from suture.core.progress import tell as tell_listeners
from suture.core.progress import work as working
from suture.core.storage import make_folder
from suture.errors import SutureError
from suture.graph.cut import Cut
from suture.runs.appraisal import POOLED
from suture.runs.folder import read_evaluation, read_metrics, read_outcome
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick
from suture.runs.pulse import LOCK, Busy, Pulse, holding

UNDER_WAY = ".under-way"


@dataclass(frozen=True)
class Done:
    """What came of it."""

    finished: int = 0
    failed: tuple[str, ...] = ()
    """A sentence each."""
    left: int = 0
    """Runs that the budget, or whoever stopped it, did not allow."""


@dataclass(frozen=True)
class Errand:
    """One run."""

    table: str
    recipe: Recipe
    seed: int
    seconds: float

    @property
    def name(self) -> str:
        """For people."""
        recipe = self.recipe
        values = f" ({', '.join(recipe.overrides)})" if recipe.overrides else ""
        clients = "" if recipe.clients is None else f" {recipe.clients} clients"
        return f"{recipe.protocol} {recipe.dataset}{clients}: {recipe.method}{values} seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of the folder that it trains in."""
        return f"{self.recipe.key[:16]}-seed{self.seed}"


@dataclass
class Bench:
    """Carries runs out and keeps what comes of them."""

    store: Store
    options: Options
    budget: float | None = None
    """Seconds; None: as long as it takes."""
    ended: Callable[[Errand, Run], None] = lambda errand, run: None
    made: Mapping[str, Any] = field(default_factory=here)
    begun: float = field(default_factory=time.monotonic)

    def carry_out(self, order: Sequence[Left]) -> Done:
        """All of them, as far as the budget goes."""
        errands = [Errand(one.table, one.recipe, seed, one.seconds) for one in order for seed in one.seeds]
        with working("reproduce", "runs of papers' tables", len(errands), "runs") as going:

            def ended(errand: Errand, run: Run) -> None:
                self.ended(errand, run)
                going.advance(1, errand.name)

            crew = _Crew(self, ended)
            crew.work_off(errands)
        finished = crew.finished
        return Done(finished, tuple(crew.failed), len(errands) - finished - len(crew.failed))

    @property
    def left(self) -> float | None:
        """Seconds of the budget that are left."""
        return None if self.budget is None else self.budget - (time.monotonic() - self.begun)

    def stop(self) -> bool:
        """Whether work is to end."""
        return self.options.stop() or (self.left is not None and self.left <= 0)


@dataclass
class _Crew:
    """Those at work."""

    bench: Bench
    ended: Callable[[Errand, Run], None]
    finished: int = 0
    failed: list[str] = field(default_factory=list)

    def work_off(self, errands: Sequence[Errand]) -> None:
        options = self.bench.options
        if options.jobs == 1:
            for errand in self._fitting(errands):
                self._note(_attempt(self.bench, errand, options, self.bench.stop))
            return
        named = {errand.name: errand for errand in errands}

        def jobs() -> Iterator[Job[Run]]:
            for errand in self._fitting(errands):
                yield Job(errand.name, lambda link, errand=errand: _in_a_fork(self.bench, errand, link))  # type: ignore[misc]

        def hear(name: str, event: object) -> None:
            if isinstance(event, Tick):
                options.watch(name, named[name].seed, event)
            elif isinstance(event, Step):
                tell_listeners(replace(event, what=f"{name}: {event.what}", key=hash((name, event.key))))

        def ended(end: Ended[Run]) -> None:
            self._note((named[end.name], end.result, end.error))

        side_by_side(jobs(), at_once=options.jobs, threads=THREADS, hear=hear, ended=ended, stop=self.bench.stop)

    def _fitting(self, errands: Sequence[Errand]) -> Iterator[Errand]:
        """One after the other, as long as the next one fits what is left."""
        for errand in errands:
            if self.bench.stop():
                return
            fits = self.bench.left is None or errand.seconds <= self.bench.left
            # Another process may have done it meanwhile.
            if fits and all(run.seed != errand.seed for run in self.bench.store.runs(errand.recipe)):
                yield errand

    def _note(self, end: tuple[Errand, Run | None, BaseException | None]) -> None:
        errand, run, error = end
        if run is not None:
            self.finished += 1
            self.ended(errand, run)
        elif isinstance(error, Interrupted | Busy):
            return  # gone on with next time; or another process is at it
        elif isinstance(error, SutureError):
            self.failed.append(f"{errand.name}: {error}")
        elif error is not None:
            error.add_note(f"in {errand.name}")
            raise error


def _attempt(
    bench: Bench, errand: Errand, options: Options, stop: Callable[[], bool]
) -> tuple[Errand, Run | None, BaseException | None]:
    try:
        return errand, _run(bench, errand, replace(options, stop=stop)), None
    except SutureError as error:
        return errand, None, error


def _in_a_fork(bench: Bench, errand: Errand, link: Link) -> Run:
    told = replace(bench.options, watch=lambda method, seed, tick: link.tell(tick), stop=link.stop, jobs=1)
    with listening(link.tell):
        return _run(bench, errand, told)


def _run(bench: Bench, errand: Errand, options: Options) -> Run:
    """One run in this process, from its beginning or from where it was stopped."""
    shown = replace(options, watch=lambda method, seed, tick: options.watch(errand.name, seed, tick), threads=THREADS)
    place = make_folder(bench.store.folder / UNDER_WAY / errand.folder)
    with holding(place / LOCK, 0), Work.of(None, shown).dividing_threads() as work:
        made = errand.recipe.plan([errand.seed])
        prepared = work.source(made, None, None).prepared(errand.seed)
        processor = None
        if read_outcome(place) is None:  # else it was killed between its end and the line below
            folder = work.folder(made, made.methods[0], prepared, place, new=False)
            resumed, began = folder.saved is not None, time.process_time()
            work.execute(made, made.methods[0], prepared, folder, Pulse(None))
            processor = None if resumed else round(time.process_time() - began, 2)
        run = _told(place, prepared.cut, bench.made, processor)
        bench.store.add(errand.table, errand.recipe, run, bench.made)  # here, so that whoever is killed next loses nothing
        shutil.rmtree(place, ignore_errors=True)
        return run


def _told(place: Path, cut: Cut, made: Mapping[str, Any], processor: float | None) -> Run:
    """What is kept of the finished run in a folder."""
    outcome, evaluation = read_outcome(place), read_evaluation(place)
    assert outcome is not None and evaluation is not None
    pooled = evaluation[POOLED]
    counts = int(pooled["test"]["support"]), int(pooled["train"]["support"])
    about = {"cut": cut_hash(cut), "made": made_by(made), "processor": processor}
    return Run.of(outcome, read_metrics(place), counts, **about)


def cut_hash(cut: Cut) -> str:
    """Of who holds, trains on and tests what."""
    digest = hashlib.sha256(cut.fingerprint.encode())
    for members, roles in zip(cut.partition.members, cut.split.client_roles, strict=True):
        digest.update(members.long().numpy().tobytes() + roles.to(members.dtype).numpy().tobytes())
    digest.update(bytes(cut.partition.graphless))
    return digest.hexdigest()[:16]


def under_way(store: Path) -> int:
    """How many runs were begun and are to be gone on with."""
    return len(list((store / UNDER_WAY).glob("*-seed*")))
