"""The key of a noisy step: written down before it is used, used for one content, and gone when the reply is in the journal.

- A step that a kill interrupted is run again with the same key, and gives the same bytes.
- Anything else that is asked (another message, another state, another number, another run) gets a key of its own.
- A reply is given again from the journal, which needs no key. Once a reply is there, nobody can take its noise off it any
  more, whoever gets hold of the owner's disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path

from suture.core.storage import damaged, disk_errors
from suture.privacy.keystream import KEY_BYTES, Keystream

KEY = "key.json"
LASTING_KEY, EARLIER_NAME = "lasting.key", "sums.key"


def lasting_key(home: Path) -> bytes:
    """The owner's one key of what it draws once for its graph: noise on sums, edges that may be seen, groups of nodes.

    It stays, as these must be the same in every step, test and run, and never leaves. Of two processes that need it first,
    one writes it; a damaged key is not replaced, as other noise would be told for free.
    """
    path, before = home / LASTING_KEY, home / EARLIER_NAME
    with disk_errors("write", path):
        if not path.exists():
            part = home / f".{LASTING_KEY}.{secrets.token_hex(4)}"
            try:
                _write_private(part, before.read_bytes() if before.exists() else Keystream.fresh())
                with contextlib.suppress(FileExistsError):
                    os.link(part, path)
            finally:
                part.unlink(missing_ok=True)
        key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise damaged(path)
    return key


def _write_private(path: Path, content: bytes) -> None:
    """A new file that nobody else can read, on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class StepKey:
    """The one key that is in use in a run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY

    def for_content(self, *content: bytes) -> bytes:
        """The key of a step with this content, on disk."""
        mark = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in content)).hexdigest()
        known = self._read(mark)
        if known is not None:
            return known
        key = Keystream.fresh()
        part = self._path.with_suffix(".part")
        with disk_errors("write", self._path):
            part.unlink(missing_ok=True)
            _write_private(part, json.dumps({"content": mark, "key": key.hex()}).encode())
            part.replace(self._path)
        return key

    def _read(self, mark: str) -> bytes | None:
        """The key that was written down for this content; a damaged one is none, as nothing was sent with it."""
        try:
            kept = json.loads(self._path.read_bytes())
            key = bytes.fromhex(kept["key"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return key if kept.get("content") == mark and len(key) == KEY_BYTES else None

    def forget(self) -> None:
        """The reply is in the journal."""
        with disk_errors("clean", self._path):
            self._path.unlink(missing_ok=True)
