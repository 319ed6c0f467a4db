"""The audit log: one line for everything that was opened, refused, lost or finished, at every party.

{"time": "2026-01-01T12:00:00Z", "party": "hospital-a", "event": "refused", "code": "policy", "reason": "...", "run": "..."}

Codes are those of `suture.federation.wire.reasons`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from suture.core.storage import Json, disk_errors

AUDIT = "audit.jsonl"


class AuditLog:
    """Appends lines, each with one write, so that several processes of a party can share the file."""

    def __init__(self, path: Path, party: str) -> None:
        self.path, self.party = path, party
        self._lock = threading.Lock()

    def note(self, event: str, **details: Json) -> None:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": stamp, "party": self.party, "event": event, **details}) + "\n"
        with self._lock, disk_errors("write", self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)


def read_audit(path: Path) -> list[dict[str, Json]]:
    """All lines so far."""
    if not path.exists():
        return []
    with disk_errors("read", path):
        return [json.loads(line) for line in path.read_text().splitlines()]
