"""What a command does, for programs: one JSON object a line on standard output (`--json-lines`).

    {"event": "begin", "format": 1, "command": "compare"}
    {"event": "note", "text": "..."}
    {"event": "progress", "work": "download", "what": "...", "state": "going", "done": 3, "total": 9, "unit": "bytes", ...}
    {"event": "round", "method": "fedavg", "seed": 0, "phase": "round", "done": 3, "total": 100, "line": {...}, ...}
    {"event": "result", "result": ...}        or    {"event": "error", "text": "..."}

The last line is a result or an error. Within a format, fields may be added; none changes its meaning or goes away.
"""

from __future__ import annotations

import json
import math
from typing import TextIO

from suture.core.progress import Step
from suture.runs.outcome import Tick

FORMAT = 1
LAST = ("result", "error")


class Events:
    """Writes events, each at once."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.over = False

    def write(self, event: str, **fields: object) -> None:
        """One line; none after the last, which work that an error has left behind may still want to be told."""
        if self.over:
            return
        self.over = event in LAST
        self.stream.write(json.dumps(plain({"event": event, **fields}), separators=(",", ":")) + "\n")
        self.stream.flush()

    def hear(self, step: Step) -> None:
        """Something of a work; a listener of `suture.core.progress`."""
        told = {name: value for name, value in vars(step).items() if name != "key"}
        self.write("progress", **told, seconds_left=step.seconds_left)

    def round(self, method: str, seed: int, tick: Tick) -> None:
        """A finished round; `line` is that of metrics.jsonl."""
        told = {name: getattr(tick, name) for name in ("phase", "done", "total", "seconds", "seconds_left", "metric")}
        self.write("round", method=method, seed=seed, **told, validation=tick.validation, line=dict(tick.line))


def plain(content: object) -> object:
    """JSON has no NaN and no infinity, which are the scores of clients without any test node: null."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
