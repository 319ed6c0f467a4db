"""Whether somebody is at work in a run folder at this moment.

Whoever works there holds a lock on a file in it, and the system gives the lock back however the process ends. So nobody goes
on with a run that is running, and whoever looks at a folder can tell a run that is slow from one that was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suture.core.storage import disk_errors, make_folder
from suture.errors import StorageError

LOCK = ".lock"
SECONDS_FOR_LOOKERS = 1.0
"""Whoever looks whether a folder is occupied holds its lock for a moment, which is no reason to give up."""


@contextmanager
def alone_in(folder: Path, seconds: float = SECONDS_FOR_LOOKERS) -> Iterator[None]:
    """Work in a folder as the only process that does; wait so long for another one to end."""
    make_folder(folder)
    with disk_errors("write", folder / LOCK):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        end = time.monotonic() + seconds
        while not _locked(lock, fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise StorageError(f"{folder} is in use by {_named(folder)}; wait for it, or stop it first")
            time.sleep(0.1)
        with disk_errors("write", folder / LOCK):
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
        try:
            yield
        finally:
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def is_occupied(folder: Path, lock: str = LOCK) -> bool:
    """Whether a process is at work there. What cannot be read is not."""
    try:
        file = os.open(folder / lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def occupant(folder: Path) -> int | None:
    """The number of the process that is at work there; None: nobody is, or it does not say."""
    if not is_occupied(folder):
        return None
    try:
        number = int((folder / LOCK).read_bytes()[:20])
    except (OSError, ValueError):
        return None
    return number if number > 0 else None


def _named(folder: Path) -> str:
    number = occupant(folder)
    return "another process" if number is None else f"another process (number {number})"


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a disk without locks
    return True
