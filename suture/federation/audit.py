"""The audit log: one line for everything that was opened, refused, lost or finished, at every party.

{"time": "2026-01-01T12:00:00Z", "party": "hospital-a", "event": "refused", "run": "...", "reason": "..."}
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from pathlib import Path

from suture.core.storage import Json, disk_errors

AUDIT = "audit.jsonl"
JOB_WITH_CODE = re.compile(r"BYOC not permitted")
FOREIGN_CLASS = re.compile(r"Component '(?P<path>[^']*)'[^\n]*is not in allow_list")
NO_RIGHT = re.compile(r"not authorized", re.IGNORECASE)


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


class AuditHandler(logging.Handler):
    """A logging handler for a party's start-up kit: jobs and users that FLARE refuses become lines of its audit log."""

    def __init__(self, path: str, party: str) -> None:
        super().__init__(logging.WARNING)
        self._audit = AuditLog(Path(path), party)
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Copy what is about a refusal, once however often FLARE repeats it."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]}"
        reason = refusal(text)
        if reason and reason != self._last:
            self._last = reason
            self._audit.note("refused", reason=reason)


def refusal(text: str) -> str:
    """What a line of FLARE's log says about a refusal, if it says anything about one."""
    if JOB_WITH_CODE.search(text):
        return f"a job brings code of its own: {text.strip().splitlines()[-1][:300]}"
    if foreign := FOREIGN_CLASS.search(text):
        return f"a job names the class {foreign['path']}, which is not one of ours (not in allow_list)"
    return text.strip().splitlines()[-1][:300] if NO_RIGHT.search(text) else ""
