"""Several pieces of work side by side, each in a process of its own that is forked off this one.

    side_by_side([Job("fedavg seed 0", work), ...], at_once=2, threads=1)

A forked process sees all that this one has in memory, and copies only what it changes: a graph is there once, however many
work on it. One process does one piece of work and ends, so that one which is killed takes nothing else with it. None
outlives this process, not even if it is killed itself.

Every fork is made by a thread of its own. GNU's OpenMP keeps a pool of threads for each thread that has computed; of a pool
that was forked away only the memory is there, and the first matrix product would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Any, Generic, Literal, TypeVar

import torch

from suture.errors import SutureError

T = TypeVar("T")
SECONDS_BETWEEN_LOOKS = 0.2
"""How long whoever wants all work to stop waits at most to be heard."""
SECONDS_TO_END = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Died(SutureError):
    """A process that ended without a word, or that something ended."""


class Link:
    """What a piece of work is handed: whom to tell how far it is, and whether it is to stop."""

    def __init__(self, out: connection.Connection) -> None:
        self._out, self._stop = out, False
        # Ctrl-C reaches every process of a terminal at once; what follows from it, the first of them decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def tell(self, event: object) -> None:
        """Anything that can be pickled; `hear` is called with it."""
        self._out.send(("event", event))

    def stop(self) -> bool:
        """Whether the work is to end as soon as it can be gone on with."""
        return self._stop


@dataclass(frozen=True)
class Job(Generic[T]):
    """A piece of work; what it returns can be pickled."""

    name: str
    work: Callable[[Link], T]


@dataclass(frozen=True)
class Ended(Generic[T]):
    """A piece of work that has returned, or has not: then `error` says why."""

    name: str
    result: T | None = None
    error: BaseException | None = None


@dataclass
class _Child(Generic[T]):
    job: Job[T]
    process: ForkProcess
    heard: connection.Connection
    ended: Ended[T] | None = None


@dataclass
class _Crew(Generic[T]):
    """All processes that are at work."""

    threads: int
    children: list[_Child[T]] = field(default_factory=list)
    lifeline: tuple[int, int] = field(default_factory=os.pipe)
    """Whoever reads it is woken when the process that holds its other end is gone."""

    def fork(self, job: Job[T]) -> None:
        heard, told = get_context("fork").Pipe(duplex=False)
        others = [*(child.heard for child in self.children), heard]
        process = get_context("fork").Process(target=self._at_work, args=(job, told, others), name=job.name, daemon=True)
        starter = threading.Thread(target=_start, args=(process,))
        starter.start()
        starter.join()
        told.close()
        if process.pid is None:
            heard.close()
            raise Died(f"{job.name} could not be begun: the system gives no further process; give fewer --jobs")
        self.children.append(_Child(job, process, heard))

    def _at_work(self, job: Job[T], told: connection.Connection, others: Iterable[connection.Connection]) -> None:
        """What a forked process does, from its first line to its last."""
        link = Link(told)
        os.close(self.lifeline[1])
        for other in others:
            other.close()
        threading.Thread(target=_end_with, args=(self.lifeline[0],), daemon=True).start()
        torch.set_num_threads(self.threads)
        kind: Literal["result", "error"] = "result"
        try:
            content: Any = job.work(link)
        except BrokenPipeError:  # nobody is there any more who would hear it
            return
        except Exception as error:
            kind, content = "error", _portable(error)
        with contextlib.suppress(BrokenPipeError):
            told.send((kind, content))

    def events(self, seconds: float) -> Iterator[tuple[_Child[T], object]]:
        """What was told meanwhile; a process that has ended is marked."""
        connection.wait([part for child in self.children for part in (child.heard, child.process.sentinel)], seconds)
        for child in self.children:
            gone = child.process.exitcode is not None  # before its last words are read, which come before it goes
            while child.ended is None and child.heard.poll():
                try:
                    kind, content = child.heard.recv()
                except (EOFError, OSError, pickle.UnpicklingError):
                    gone = True
                    break
                if kind == "event":
                    yield child, content
                else:
                    named = {kind: content}
                    child.ended = Ended(child.job.name, **named)
            if gone and child.ended is None:
                child.process.join(SECONDS_TO_END)
                child.ended = Ended(child.job.name, error=Died(f"{child.job.name} {_how(child.process.exitcode)}"))

    def dismiss(self, child: _Child[T]) -> None:
        """Done with it."""
        child.process.join(SECONDS_TO_END)
        child.heard.close()
        self.children.remove(child)

    def stop(self) -> None:
        """Ask all of them to stop."""
        for child in self.children:
            child.process.terminate()

    def end(self) -> None:
        """At once."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.join(SECONDS_TO_END)
            child.heard.close()
        for end in self.lifeline:
            os.close(end)


def side_by_side(
    jobs: Iterable[Job[T]],
    *,
    at_once: int,
    threads: int,
    hear: Callable[[str, object], bool | None] = lambda name, event: None,
    ended: Callable[[Ended[T]], None] = lambda ended: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Ended[T]]:
    """Do all of them, so many at once, each with so many threads; whatever ends one, the others go on.

    The next job is asked for when there is room for it. `hear` is called with a job's name and what it tells, and may answer
    that this job is to stop; `ended` when one ends; `stop` now and then: if it says so no other job is begun, and those that
    are at work are asked to stop.
    """
    waiting, crew, done, stopping = iter(jobs), _Crew[T](threads), list[Ended[T]](), False
    try:
        while True:
            while len(crew.children) < at_once and not stopping and (job := next(waiting, None)) is not None:
                crew.fork(job)
            if not crew.children:
                return done
            for child, event in crew.events(SECONDS_BETWEEN_LOOKS):
                if hear(child.job.name, event):
                    child.process.terminate()
            for child in [child for child in crew.children if child.ended is not None]:
                crew.dismiss(child)
                if child.ended is not None:
                    done.append(child.ended)
                    ended(child.ended)
            if not stopping and stop():
                stopping = True
                crew.stop()
    finally:
        crew.end()


def _start(process: ForkProcess) -> None:
    """Fork; signals wait until the new process knows what to do with them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with contextlib.suppress(OSError):
        process.start()


def _end_with(lifeline: int) -> None:
    """Wait until the process that forked this one is gone; then nobody wants its work any more."""
    os.read(lifeline, 1)
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """An exception as another process can have it, with the lines it came from."""
    lines = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a constructor of somebody's own exception may do
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, SutureError):
        error.add_note(lines)
    return error


def _how(code: int | None) -> str:
    """How a process ended that said nothing."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        guess = ", as the system does when memory is used up" if -code == signal.SIGKILL else ""
        return f"was ended by {name}{guess}"
    return f"ended without a word, with exit code {code}"
