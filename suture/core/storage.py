"""Files that are either wholly there or not there at all, and disks that answer in one sentence."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.errors import IntegrityError, StorageError

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
"""What a JSON file can hold."""

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EROFS: "the disk is read-only; choose another folder",
    errno.EACCES: "permission is missing; choose another folder or change its permissions",
    errno.EPERM: "permission is missing; choose another folder or change its permissions",
    errno.EEXIST: "a file of that name is in the way; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
}


@contextlib.contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an operating-system error into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot {action} {path}: {reason}") from error


def write_atomically(path: Path, content: bytes, *, private: bool = False, durable: bool = True) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one, never a part.

    A private file is for its owner's eyes alone, from its first byte on. One that is not durable survives its writer, but
    not a crash of the machine, and costs next to nothing.
    """
    with disk_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        try:
            with open(name, "xb", opener=_for_its_owner if private else None) as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                name.unlink()
            raise


def _for_its_owner(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


@contextlib.contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` that takes its place at the end, or is gone."""
    with disk_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            yield folder
            before = path.parent / f"{folder.name}.before"
            if path.exists():
                os.rename(path, before)
            os.rename(folder, path)
            shutil.rmtree(before, ignore_errors=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write_json(path: Path, content: object, *, private: bool = False) -> None:
    """Write readable JSON atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode(), private=private)


def read_json(path: Path, what: str) -> dict[str, object]:
    """Read a JSON object, or say in one sentence that `what` is damaged."""
    with disk_errors("read", path):
        text = path.read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"the {what} {path} is not valid JSON; it is damaged, restore or recreate it") from error
    if not isinstance(content, dict):
        raise IntegrityError(f"the {what} {path} should hold a JSON object; it is damaged, restore or recreate it")
    return content


def copy_files(source: Path, target: Path, skip: Sequence[str] = ()) -> list[str]:
    """Copy a folder's files and folders into another one; the paths of what was left out for being neither.

    Links are not followed: whoever fills a folder must not choose which other files are copied with it. Nor are links in
    the target written through. `skip` are names that stay behind, wherever they lie.
    """
    left: list[str] = []
    with disk_errors("copy to", target):
        target.mkdir(parents=True, exist_ok=True)
        for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
            place = target / entry.name
            if entry.name in skip:
                continue
            if entry.is_dir(follow_symlinks=False) and not place.is_symlink():
                left += copy_files(Path(entry.path), place, skip)
            elif entry.is_file(follow_symlinks=False):
                if place.is_symlink():
                    place.unlink()
                shutil.copyfile(entry.path, place, follow_symlinks=False)
            else:
                left.append(entry.path)
    return left


def refuse_links(folder: Path) -> None:
    """Whoever fills a folder must not choose which other files are read, or written over, in its place."""
    home = real_path(folder)
    waiting = [str(home)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink() and not real_path(Path(entry.path)).is_relative_to(home):
                    raise IntegrityError(
                        f"{entry.path} is a link that leads out of {folder}; put the file itself in its place"
                    )


def inside(folder: Path, name: object) -> Path:
    """The file of this name in a folder; a name that a file gives must not lead elsewhere."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
        raise IntegrityError(f"{folder} speaks of a file {name!r}, which is no file in it; it is damaged")
    return folder / name


def sha256_of_file(path: Path) -> str:
    """Hash of a file's content."""
    with disk_errors("read", path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(content: Mapping[str, object]) -> str:
    """Hash of a JSON object, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def make_folder(path: Path) -> Path:
    """Create a folder and show that it can be written to, before any work is done for it."""
    with disk_errors("create folder", path):
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path, prefix=".probe.")
        os.close(handle)
        os.unlink(name)
    return path


def real_path(path: Path) -> Path:
    """Without links and dots; a link that leads to itself stays what it is, for whoever opens it to complain."""
    return Path(os.path.realpath(path))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `LineFile` that may still be growing; none if there is no such file."""
    if not path.exists():
        return
    with disk_errors("read", path):
        content = path.read_bytes()
    # What follows the last line break is a line that is being written at this moment.
    for line in content.split(b"\n")[:-1]:
        try:
            content_of_line = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise damaged(path) from error
        if not isinstance(content_of_line, dict):
            raise damaged(path)
        yield content_of_line


def damaged(path: Path) -> IntegrityError:
    """A file of a run that cannot be what the run wrote."""
    return IntegrityError(f"{path} is damaged; start the run anew")


def encoded_line(content: Mapping[str, object]) -> bytes:
    """A line of a `LineFile`, with its end."""
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


class AppendedFile:
    """An append-only file that can be cut back to an earlier length."""

    def __init__(self, path: Path, keep_bytes: int = 0, mode: int = 0o666) -> None:
        self.path = path
        with disk_errors("open", path):
            # A link in the file's place would let somebody else's file be cut.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        self._file = os.fdopen(handle, "r+b")
        with disk_errors("open", path):
            if self._file.seek(0, os.SEEK_END) < keep_bytes:
                raise IntegrityError(f"{path} is shorter than its checkpoint says; it was damaged, start the run anew")
            self._file.truncate(keep_bytes)
            self._file.seek(keep_bytes)

    def length(self) -> int:
        """Bytes so far, all of them on disk."""
        with disk_errors("write", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Flush and close."""
        with disk_errors("write", self.path):
            self._file.close()


class LineFile(AppendedFile):
    """One of JSON lines."""

    def append(self, content: dict[str, object]) -> None:
        """Add one line."""
        self.append_encoded(encoded_line(content))

    def append_encoded(self, line: bytes) -> None:
        """Add one that `encoded_line` made."""
        with disk_errors("write", self.path):
            self._file.write(line)

    def flush(self) -> None:
        """Hand everything to the system: it is there even if this process is killed now."""
        with disk_errors("write", self.path):
            self._file.flush()
