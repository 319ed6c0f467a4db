"""What somebody else has shared, opened with care: a zip file whose members are exactly those that it promises.

Nothing is written before every name, size and hash has been looked at, and nothing outside of the folder it is written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from suture.bench.share import ABOUT, DATA, FORMAT, OF_RUN
from suture.core.headers import HeaderBounds, read_header
from suture.core.storage import disk_errors
from suture.errors import IntegrityError
from suture.runs.folder import COMPARISON, CONFIG, MANIFEST
from suture.runs.outcome import Outcome

MOST_BYTES, MOST_MEMBERS = 2 << 30, 20_000
"""In all, unpacked, which goes to the disk piece by piece; and how many."""
ABOUT_BOUNDS, MOST_TIMES_PACKED = HeaderBounds(1 << 26, 1 << 22, 24), 40
"""Of share.json, which is read as a whole: nobody's results are packed into a fortieth."""
CHUNK = 1 << 20
_RUN = re.compile(r"[a-z][a-z0-9_]*-seed[0-9]{1,18}/(" + "|".join(map(re.escape, OF_RUN)) + ")")


@dataclass(frozen=True)
class Graph:
    """What a shared file says of the graph."""

    name: str
    own: bool
    included: bool
    fingerprint: str


@dataclass(frozen=True)
class Parcel:
    """What a shared file says."""

    path: Path
    graph: Graph
    environment: dict[str, Any]
    runs: tuple[Outcome, ...]
    members: dict[str, str]
    """SHA-256 by name."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[Parcel, zipfile.ZipFile]]:
    """Open a file and check what can be checked without unpacking it."""
    with contextlib.ExitStack() as stack:
        with disk_errors("read", path):
            try:
                file = stack.enter_context(zipfile.ZipFile(path))
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise IntegrityError(f"{path} is not a zip file, or it is damaged; have it sent again") from error
        _check_members(path, file)
        yield _about(path, file), file


def _check_members(path: Path, file: zipfile.ZipFile) -> None:
    """By what the file's directory says: names, kinds and sizes."""
    members = file.infolist()
    names = [member.filename for member in members]
    if len(members) > MOST_MEMBERS or len(set(names)) < len(names):
        raise IntegrityError(f"{path} has {len(members):,} members, some of them twice or too many; have it made again")
    for member in members:
        if not _is_ours(member.filename) or stat.S_ISLNK(member.external_attr >> 16) or member.flag_bits & 1:
            raise IntegrityError(f"{path} holds {member.filename!r}, which `suture share` puts into no file; do not use it")
    size = sum(member.file_size for member in members)
    if size > MOST_BYTES:
        raise IntegrityError(f"{path} would be {size / 1e9:,.0f} GB when unpacked, which no shared run is; do not use it")


def _is_ours(name: str) -> bool:
    if name in (ABOUT, COMPARISON, CONFIG, MANIFEST) or _RUN.fullmatch(name):
        return True
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and not set(part) & set("\\:\0") for part in parts)
    return parts[0] == DATA and len(parts) > 1 and plain


def _about(path: Path, file: zipfile.ZipFile) -> Parcel:
    try:
        told = read_header(_content(path, file, ABOUT), ABOUT_BOUNDS, finite=False)
        if told["format"] != FORMAT:
            raise IntegrityError(f"{path} has format {told['format']!r}, this version reads {FORMAT!r}; update Suture")
        graph = TypeAdapter(Graph).validate_python(told["graph"])
        runs = TypeAdapter(tuple[Outcome, ...]).validate_python(told["runs"])
        environment = TypeAdapter(dict[str, Any]).validate_python(told["environment"])
        members = TypeAdapter(dict[str, str]).validate_python(told["members"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise IntegrityError(f"{ABOUT} of {path} is not what `suture share` writes; have it made again") from error
    there = {name for name in file.namelist() if name != ABOUT}
    needed = {COMPARISON, CONFIG, *(f"{run.method}-seed{run.seed}/{name}" for run in runs for name in OF_RUN)}
    if not runs or (odd := sorted((there ^ set(members)) | (needed - there))):
        raise IntegrityError(
            f"{path} is not complete, or holds too much ({odd[0] if runs else 'no run'}); have it made again"
        )
    return Parcel(path, graph, environment, runs, members)


def _content(path: Path, file: zipfile.ZipFile, name: str) -> bytes:
    with _readable(path, name):
        most = min(ABOUT_BOUNDS.size, MOST_TIMES_PACKED * file.getinfo(name).compress_size)
        with file.open(name) as member:
            content = member.read(most + 1)
    if len(content) > most:
        raise IntegrityError(f"{name} of {path} is larger than any that `suture share` writes; do not use it")
    return content


@contextlib.contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise IntegrityError(f"{path} has no {name}, so `suture share` did not write it; have it made again") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise IntegrityError(f"{name} of {path} cannot be unpacked; the file is damaged, have it sent again") from error
    except Exception as error:  # zlib.error and its like, which have no common ground
        raise IntegrityError(f"{name} of {path} cannot be unpacked ({error}); have it sent again") from error


def unpack(parcel: Parcel, file: zipfile.ZipFile, folder: Path) -> None:
    """Write all members but share.json into a folder, if each has the hash that it should have."""
    for name, promised in parcel.members.items():
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise IntegrityError(f"{parcel.path} holds {name!r}, which leads out of its folder; do not use it")
        digest, size = hashlib.sha256(), 0
        with disk_errors("write", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                for chunk in _chunks(parcel.path, file, name):
                    digest.update(chunk)
                    size += out.write(chunk)
        if size != file.getinfo(name).file_size or digest.hexdigest() != promised:
            raise IntegrityError(
                f"{name} of {parcel.path} is not what was shared: its SHA-256 is another; have it sent again"
            )


def _chunks(path: Path, file: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """What a member holds, of which no more than a piece is in memory."""
    with contextlib.ExitStack() as stack:
        with _readable(path, name):
            member = stack.enter_context(file.open(name))
        while True:
            with _readable(path, name):
                chunk = member.read(CHUNK)
            if not chunk:
                return
            yield chunk
