"""A folder that anybody may have filled, looked at without being led astray by it.

Nothing outside it is read: a link that leads out, a pipe or a device in a file's place, a file too large to be what its name
says, are refused in one sentence before anything is opened.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from suture.core.storage import real_path
from suture.errors import IntegrityError, StorageError
from suture.federation.operator.files import JOB
from suture.federation.wire.orders import ORDER
from suture.federation.wire.status import STATUS
from suture.runs.folder import ASSESSMENT, COMPARISON, CONFIG, RESULT, RUN, place_of
from suture.runs.pulse import LOCK, PROGRESS

LOG, LAUNCH = "console.log", "launch.json"
"""What a process that was started from here said; how it was started."""
BEGUN = (COMPARISON, RUN, ORDER, LAUNCH)
"""Any of these makes a folder one to be listed."""
SMALL = frozenset({COMPARISON, RUN, ORDER, LAUNCH, JOB, STATUS, CONFIG, RESULT, PROGRESS, ASSESSMENT, LOCK})
MOST_BYTES_OF_SMALL = 4 << 20
MOST_ENTRIES = 100_000
MOST_RUNS = 10_000
"""Of one comparison."""


@dataclass(frozen=True)
class Seen:
    """What was found on the way through a folder."""

    size: int
    """Bytes of all files."""


def is_listed(folder: Path) -> bool:
    """Whether there is a run, a comparison, or what was started as one."""
    return any(os.path.lexists(folder / name) for name in BEGUN)


def walked(folder: Path) -> Seen:
    """Go through a folder and refuse what does not belong into one; see the module docstring."""
    home, size, entries = real_path(folder), 0, 0
    waiting = [home]
    while waiting:
        place = waiting.pop()
        try:
            found = list(os.scandir(place))
        except FileNotFoundError:
            continue  # it went while we looked
        except OSError as error:
            raise StorageError(f"cannot read {place.name}: {error.strerror}") from error
        entries += len(found)
        if entries > MOST_ENTRIES:
            raise IntegrityError(f"this folder holds more than {MOST_ENTRIES:,} files; it is no run")
        for entry in found:
            if entry.is_symlink() and not real_path(Path(entry.path)).is_relative_to(home):
                raise IntegrityError(
                    f"{entry.name} is a link that leads out of the folder; put the file itself in its place"
                )
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                size += _size(entry)
    return Seen(size)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        about = entry.stat()
    except OSError:
        return 0  # it went while we looked, or is a link to nothing
    if not stat.S_ISREG(about.st_mode):
        raise IntegrityError(f"{entry.name} is neither a file nor a folder; it is damaged")
    if entry.name in SMALL and about.st_size > MOST_BYTES_OF_SMALL:
        raise IntegrityError(f"{entry.name} is far too large; it is damaged")
    return about.st_size


def signature(folder: Path, runs: list[Path]) -> tuple[tuple[int, int, int], ...]:
    """Changes whenever something does that a list shows: files of the folder, and files that come or go in its runs."""
    names = (folder, *(folder / name for name in (*BEGUN, RESULT, PROGRESS, STATUS, CONFIG, LOG)), *runs)
    return tuple(_stamp(path) for path in names)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        about = os.lstat(path)
    except OSError:
        return (0, 0, 0)
    return (about.st_ino, about.st_mtime_ns, about.st_size)


def parts(folder: Path, methods: tuple[str, ...], seeds: tuple[int, ...]) -> list[Path]:
    """The run folders of a comparison."""
    if len(methods) * len(seeds) > MOST_RUNS:
        raise IntegrityError(f"a comparison of more than {MOST_RUNS:,} runs; its description is damaged")
    if any(Path(name).name != name for name in methods):
        raise IntegrityError("a method's name in the description is a path; it is damaged")
    return [place_of(folder, method, seed) for method in methods for seed in seeds]
