"""The key of a noisy step: written down before it is used, used for one content, and gone when the reply is in the journal.

- A step that a kill interrupted is run again with the same key, and gives the same bytes.
- Anything else that is asked (another message, another state, another number, another run) gets a key of its own.
- A reply is given again from the journal, which needs no key. Once a reply is there, nobody can take its noise off it any
  more, whoever gets hold of the owner's disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from suture.core.storage import disk_errors
from suture.privacy.keystream import KEY_BYTES, Keystream

KEY = "key.json"


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
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump({"content": mark, "key": key.hex()}, file)
                file.flush()
                os.fsync(file.fileno())
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
