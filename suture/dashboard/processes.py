"""Runs as processes of their own: started, stopped after their round, gone on with. They outlive the dashboard.

Such a process is the command line, called with a list of words. What it says goes to console.log in its folder, which stays
locked as long as it lives: the lock comes with the file that the process writes to, and goes with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import disk_errors, make_folder, read_json, write_json
from suture.core.trusted import refuse_foreign
from suture.dashboard.folders import LAUNCH, LOG
from suture.dashboard.rows import is_alive
from suture.errors import ConfigError, StorageError
from suture.federation.operator.files import FOLLOWED, JOB
from suture.runs.folder import codes_of, is_begun
from suture.runs.pulse import LOCK, holder_of, is_locked

MOST_STARTED = 4
PACKAGE = Path(__file__).resolve().parents[1].name


@dataclass
class Processes:
    """What was started from here."""

    data_root: Path | None = None
    most: int = MOST_STARTED
    _own: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    _asked: dict[Path, int] = field(default_factory=dict)
    """How often a run was asked to stop."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, folder: Path, words: Sequence[str], asked: dict[str, str]) -> None:
        """Carry out what was asked for, in a new folder."""
        if folder.exists():
            raise ConfigError(f"{folder.name} is there already; choose another name")
        self._launch(folder, [*words, f"--out={folder}", *self._root()], asked)

    def resume(self, folder: Path) -> None:
        """Go on with a run or comparison."""
        if is_alive(folder):
            raise ConfigError("it is running already")
        if (folder / JOB).exists():
            words = ["federation", "resume", str(folder)]
        elif is_begun(folder):
            refuse_foreign(codes_of(folder), "this run", str(folder))
            words = ["resume", str(folder), *self._root()]
        else:
            raise ConfigError("it was never begun; start it anew")
        self._launch(folder, words, None)

    def _root(self) -> list[str]:
        return [f"--data-root={self.data_root}"] if self.data_root else []

    def _launch(self, folder: Path, words: list[str], asked: dict[str, str] | None) -> None:
        with self._lock:
            self._own = {path: process for path, process in self._own.items() if process.poll() is None}
            if len(self._own) >= self.most:
                raise ConfigError(f"{self.most} runs that were started here are running; wait for one of them, or stop it")
            command = [sys.executable, "-m", PACKAGE, *words]
            log = make_folder(folder) / LOG
            with disk_errors("open", log):
                handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            try:
                _hold(handle, log)
                if asked is not None:
                    write_json(folder / LAUNCH, {"asked": asked, "time": time.time()})
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=handle,
                    stderr=handle,
                    start_new_session=True,
                    env={**os.environ, "COLUMNS": "120"},
                )
            finally:
                os.close(handle)
            _as_usual(process.pid)
            self._own[folder] = process
            self._asked.pop(folder, None)
        threading.Thread(target=process.wait, daemon=True).start()  # so that nothing is left of it when it has ended

    def stop(self, folder: Path) -> str:
        """Let a run end after its round; asked again, at once. What happens now, in words."""
        if not is_alive(folder):
            raise ConfigError("it is not running")
        pid = self._process(folder)
        if pid is None:
            raise ConfigError("which process carries it out cannot be told from here; stop it where it was started")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        self._asked[folder] = self._asked.get(folder, 0) + 1
        return "stopping after this round" if self._asked[folder] == 1 else "stopping at once"

    def is_stopping(self, folder: Path) -> bool:
        """Whether a run that is still running was asked to stop here."""
        return folder in self._asked

    def settle(self, folder: Path, alive: bool) -> None:
        """Forget that a run was to stop, once it has."""
        if not alive:
            self._asked.pop(folder, None)

    def _process(self, folder: Path) -> int | None:
        """The process at it, as the system knows it: what a file says of a process could be made up."""
        own = self._own.get(folder)
        if own is not None and own.poll() is None:
            return own.pid
        for name in (LOCK, FOLLOWED):
            told = holder_of(folder, name) if is_locked(folder / name) else None
            if told is not None and told.is_here and _has_open(told.pid, folder / name):
                return told.pid
        return next((pid for pid in _processes() if _has_open(pid, folder / LOG)), None) if is_locked(folder / LOG) else None


def give_way() -> None:
    """Tell the system that this program can wait: it does not push a job aside when it wakes (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _as_usual(pid: int) -> None:
    """A run that is started here need not give way, too."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def _hold(handle: int, log: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(f"{log.parent.name} is being started already") from None


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process of this user has a file open."""
    try:
        wanted = path.stat()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{name}")
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    except OSError:
        return False
    return False


def free_folder(root: Path, label: str) -> Path:
    """A new folder below the root, named after the time and what it is about."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    names: Callable[[int], str] = lambda n: stem if n == 1 else f"{stem}-{n}"  # noqa: E731
    return next(path for n in range(1, 1000) if not (path := root / names(n)).exists())


def asked_for(folder: Path) -> dict[str, object]:
    """How a run was started from here; empty if it was not."""
    return read_json(folder / LAUNCH, "record of how it was started") if (folder / LAUNCH).exists() else {}
