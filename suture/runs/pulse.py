"""Whether a run is being carried out at this moment, by whom, and how far it is.

.lock            locked as long as a process carries the run out: the system lets go of it however that process ends
progress.json    how far it is, about once a second; after the end, how it ended
followed.jsonl   lines of metrics.jsonl that an operator has heard of, as long as the file itself is at the coordinator's

All of it is for those who look on. Nothing that a run computes, keeps or resumes from depends on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from suture.core.storage import damaged, disk_errors, make_folder, read_json, write_atomically
from suture.errors import StorageError, SutureError
from suture.runs.folder import is_comparison
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick

LOCK, PROGRESS, FOLLOWED_LINES = ".lock", "progress.json", "followed.jsonl"
SECONDS_BETWEEN_BEATS = 1.0
SECONDS_FOR_THE_LOCK = 2.0
"""Whoever looks on holds the lock for a moment, too."""
MOST_REMARKS = 50


class State(StrEnum):
    """What a process says of the run it carries out; what it said last, if it is gone."""

    PREPARING = "preparing"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class Progress:
    """What progress.json holds."""

    state: State
    pid: int
    host: str
    began: float
    """Seconds since 1970, as `time`: of the process, not of a run that it goes on with."""
    time: float
    runs: int = 1
    """How many runs a comparison has."""
    at_once: int = 1
    """How many of them are computed side by side; what follows is of the one that was heard of last."""
    method: str = ""
    seed: int = 0
    phase: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    """Of the run that is at it, over all processes."""
    bytes_up: int = 0
    bytes_down: int = 0
    owners: int = 0
    """0: everybody is in this process."""
    absent: dict[str, str] = field(default_factory=dict)
    """Owners that are lost at the moment, and why."""
    remarks: tuple[str, ...] = ()
    """What happened to a federation, the last of them."""
    reason: str = ""
    """Why it ended early."""


@dataclass(frozen=True)
class Holder:
    """The process that says it carries a run out."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is one of this machine."""
        return self.host == socket.gethostname()


class Pulse:
    """Tells whoever looks into a folder how far its run is; without a folder, nobody."""

    def __init__(self, folder: Path | None, runs: int = 1, at_once: int = 1) -> None:
        self.folder, self._last, self._followed = folder, 0.0, 0
        self.progress = Progress(State.PREPARING, os.getpid(), socket.gethostname(), time.time(), 0.0, runs, at_once)

    def beat(self, method: str, seed: int, tick: Tick, *, owners: int = 0, absent: Mapping[str, str] | None = None) -> None:
        """A round has ended; written down once a second, and for a run's first and last round."""
        told, recent = self.progress, time.monotonic() - self._last < SECONDS_BETWEEN_BEATS
        another = told.at_once == 1 and (method, seed) != (told.method, told.seed)
        first = another or told.state != State.RUNNING
        if self.folder is None or (recent and not first and tick.done != tick.total):
            return
        self.tell(
            state=State.RUNNING,
            method=method,
            seed=seed,
            phase=tick.phase,
            done=tick.done,
            total=tick.total,
            seconds=tick.seconds,
            bytes_up=tick.sent.get("up", 0),
            bytes_down=tick.sent.get("down", 0),
            owners=owners,
            absent=dict(absent or {}),
        )

    def remark(self, text: str) -> None:
        """Something has happened."""
        self.tell(remarks=(*self.progress.remarks, text)[-MOST_REMARKS:])

    def follow(self, tick: Tick) -> None:
        """Keep the line of a round that was heard of, once."""
        if self.folder is None or tick.done == self._followed:
            return
        self._followed = tick.done
        with contextlib.suppress(OSError), open(self.folder / FOLLOWED_LINES, "ab", opener=_no_link) as file:
            file.write(json.dumps({"done": tick.done, **tick.line}, separators=(",", ":")).encode() + b"\n")

    def tell(self, **changed: object) -> None:
        """Write down what has changed. A disk that is full is for the run itself to complain of."""
        if self.folder is None:
            return
        self._last = time.monotonic()
        self.progress = replace(self.progress, time=time.time(), **changed)  # type: ignore[arg-type]
        with contextlib.suppress(StorageError):
            content = json.dumps(asdict(self.progress), indent=2) + "\n"
            write_atomically(self.folder / PROGRESS, content.encode(), durable=False)


@contextlib.contextmanager
def telling(folder: Path | None, runs: int = 1, at_once: int = 1) -> Iterator[Pulse]:
    """Tell how far a run is while it is carried out here, and at its end how it ended."""
    pulse = Pulse(folder, runs, at_once)
    pulse.tell()
    try:
        yield pulse
    except Interrupted as error:
        pulse.tell(state=State.STOPPED, reason=str(error))
        raise
    except SutureError as error:
        pulse.tell(state=State.FAILED, reason=str(error))
        raise
    except Exception as error:
        pulse.tell(state=State.FAILED, reason=f"{type(error).__name__}: {error}")
        raise
    except BaseException:  # a signal that ends the program at once
        pulse.tell(state=State.STOPPED, reason="stopped at once; the last rounds are computed again")
        raise
    pulse.tell(state=State.FINISHED)


@contextlib.contextmanager
def carried_out(folder: Path | None, runs: int = 1, at_once: int = 1) -> Iterator[Pulse]:
    """Be the only process that carries out the run in a folder, and tell how far it is."""
    if folder is None:
        yield Pulse(None)
        return
    with alone_in(folder), telling(folder, runs, at_once) as pulse:
        yield pulse


class Busy(StorageError):
    """Another process holds a lock."""


@contextlib.contextmanager
def alone_in(folder: Path, seconds: float = SECONDS_FOR_THE_LOCK) -> Iterator[None]:
    """One process at a time; the one before, if it was killed, may take a moment to be gone."""
    with ExitStack() as opened:
        try:
            opened.enter_context(holding(make_folder(folder) / LOCK, seconds))
        except Busy:
            other = holder_of(folder)
            who = f"process {other.pid} on {other.host}" if other else "another process"
            raise StorageError(f"{folder} is in use by {who}; wait for it, or stop it first") from None
        yield


@contextlib.contextmanager
def holding(path: Path, seconds: float = SECONDS_FOR_THE_LOCK) -> Iterator[None]:
    """Hold the lock on a file, which says who does."""
    with ExitStack() as opened:
        with disk_errors("open", path):
            file = opened.enter_context(open(path, "a+b", opener=_no_link))
        end = time.monotonic() + seconds
        while not _locked(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise Busy(f"{path} is locked by another process; wait for it, or stop it first")
            time.sleep(0.05)
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
            file.flush()
        yield


def refuse_part_of_running(run: Path) -> None:
    """A run of a comparison must not be gone on with while that is carried out."""
    if is_comparison(run.parent) and is_carried_out(run.parent):
        raise StorageError(f"{run} is a part of {run.parent}, which is being carried out; wait for it, or stop it first")


def is_carried_out(folder: Path) -> bool:
    """Whether a process carries the run in this folder out; right even after it was killed."""
    return is_locked(folder / LOCK)


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on this file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def holder_of(folder: Path, lock: str = LOCK) -> Holder | None:
    """Who says that it has locked a folder; that somebody has, only `is_locked` tells."""
    with contextlib.suppress(OSError, ValueError), open(folder / lock, "rb", opener=_no_link) as file:
        pid, host = file.read(300).decode().split()
        return Holder(int(pid), host)
    return None


def read_progress(folder: Path) -> Progress | None:
    """What was last said of the run in a folder; None if nothing was."""
    if not (folder / PROGRESS).exists():
        return None
    try:
        return _reader().validate_python(read_json(folder / PROGRESS, "progress of the run"))
    except ValidationError as error:
        raise damaged(folder / PROGRESS) from error


@cache
def _reader() -> TypeAdapter[Progress]:
    """Made once: making it takes longer than reading a hundred files."""
    return TypeAdapter(Progress)


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a disk without locks
    return True


def _no_link(name: str, flags: int) -> int:
    """A link in a file's place would let somebody else's be written."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)
