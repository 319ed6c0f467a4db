"""Where the runs of a folder stand now, read from the files that every engine writes, again and again as they grow."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from suture.core.storage import damaged, disk_errors, read_json
from suture.federation.operator.files import FOLLOWED
from suture.federation.wire.orders import ORDER
from suture.federation.wire.status import STATUS, Status
from suture.privacy.disclosure import EVALUATION_STEP
from suture.runs.folder import (
    LEDGER,
    METRICS,
    RUN,
    is_begun,
    is_comparison,
    manifest_of,
    place_of,
    read_asked,
    read_outcome,
    read_plan,
)
from suture.runs.origin import FEDERATION
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan
from suture.runs.pulse import is_carried_out, is_locked

State = Literal["waiting", "running", "stopped", "finished"]
MOST_AT_ONCE = 1 << 26
"""Bytes of a file that are read in one look; the next look goes on."""


class Tail:
    """The lines of a file that grows; what was read is not read again."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, 0

    def more(self) -> list[dict[str, Any]]:
        """Whole lines since the last look; all of them anew if the file was cut back, as by a run that goes on."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        with disk_errors("read", self.path), self.path.open("rb") as file:
            if size < self.place:
                raise CutBack
            file.seek(self.place)
            content = file.read(MOST_AT_ONCE)
        whole = content[: content.rfind(b"\n") + 1]
        self.place += len(whole)
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise damaged(self.path) from error
        if not all(isinstance(line, dict) for line in lines):
            raise damaged(self.path)
        return lines


class CutBack(Exception):
    """A file is shorter than it was: its run has gone back to its checkpoint."""


@dataclass
class Run:
    """One run, as far as it is known."""

    path: Path
    method: str
    seed: int
    total: int
    """Iterations that were planned."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    outcome: Outcome | None = None
    state: State = "waiting"
    status: Status | None = None
    """What the coordinator says, of a run between owners."""
    new: int = 0
    """How many of its lines came with the last look."""

    def __post_init__(self) -> None:
        self._tails = (Tail(self.path / METRICS), Tail(self.path / LEDGER))

    def look(self, occupied: bool) -> None:
        """Read what is new."""
        try:
            metrics, ledger = (tail.more() for tail in self._tails)
        except CutBack:
            self._tails = (Tail(self.path / METRICS), Tail(self.path / LEDGER))
            self.lines, self.sent = [], {"up": 0, "down": 0}
            metrics, ledger = (tail.more() for tail in self._tails)
        self.lines += metrics
        self.new = len(metrics)
        try:
            for line in ledger:
                if line["step"] != EVALUATION_STEP:
                    self.sent[line["direction"]] += int(sum(line["bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path / LEDGER) from error
        if self.outcome is None:
            self.outcome = read_outcome(self.path)
        if (self.path / STATUS).exists():
            self.status = Status.read(read_json(self.path / STATUS, "status"))
        begun = (self.path / RUN).exists()
        unfinished: State = "waiting" if not begun else "running" if occupied else "stopped"
        self.state = "finished" if self.outcome is not None else unfinished

    @property
    def done(self) -> int:
        """Iterations so far."""
        return len(self.lines)

    @property
    def phase(self) -> str:
        """What it is at."""
        return str(self.lines[-1].get("phase", "")) if self.lines else ""

    @property
    def validation(self) -> tuple[float, ...]:
        """Scores of all tested rounds."""
        told = (line.get("validation") for line in self.lines)
        return tuple(float(value) for value in told if isinstance(value, int | float))

    @property
    def seconds(self) -> float:
        """Of its iterations; of a run that is not finished, since it was begun."""
        if self.outcome is not None:
            return self.outcome.seconds
        try:
            return max(0.0, (self.path / METRICS).stat().st_mtime - (self.path / RUN).stat().st_mtime)
        except OSError:
            return 0.0

    @property
    def seconds_left(self) -> float | None:
        """By its pace so far."""
        if self.state == "finished":
            return 0.0
        return self.seconds / self.done * max(0, self.total - self.done) if self.done else None

    def as_json(self) -> dict[str, object]:
        """For programs."""
        last = self.validation[-1] if self.validation else None
        absent = {} if self.status is None else {name: why.text for name, why in self.status.absent.items()}
        return {
            "method": self.method, "seed": self.seed, "state": self.state, "phase": self.phase, "done": self.done,
            "total": self.total, "validation": last, "seconds": self.seconds, "seconds_left": self.seconds_left,
            "bytes_up": self.sent["up"], "bytes_down": self.sent["down"], "absent": absent,
        }  # fmt: skip


@dataclass
class Standing:
    """A folder and its runs."""

    path: Path
    made: Plan
    runs: Sequence[Run]
    owners: int | None
    """None: owners have their own pieces, and it is not known here how many they are."""
    occupied: bool = False
    when: float = 0.0

    def look(self) -> None:
        """Read what is new in all runs."""
        self.occupied, self.when = _occupied(self.path), time.time()
        for run in self.runs:
            if run.state != "finished":
                run.look(self.occupied)
            else:
                run.new = 0
        if self.owners is None:
            told = next((line["client_test"] for run in self.runs for line in run.lines if "client_test" in line), None)
            self.owners = len(told) if isinstance(told, list) else None

    @property
    def state(self) -> State:
        """Of all of it."""
        if all(run.state == "finished" for run in self.runs):
            return "finished"
        return "running" if self.occupied else "stopped"

    @property
    def seconds_left(self) -> float | None:
        """Of all runs, as many side by side as now; None: of one nothing is known.

        Those of a method that have not begun take as long as its others.
        """
        left = 0.0
        for run in self.runs:
            alike = [other for other in self.runs if other.method == run.method and other.done]
            if run.seconds_left is not None:
                left += run.seconds_left
            elif alike:
                left += max(other.seconds / other.done * other.total for other in alike)
            else:
                return None
        return left / max(1, sum(run.state == "running" for run in self.runs))


def _occupied(path: Path) -> bool:
    places = (path, path.parent) if is_comparison(path.parent) else (path,)
    return any(is_carried_out(place) for place in places) or is_locked(path / FOLLOWED)


def standing(path: Path) -> Standing | None:
    """The runs of a folder; None: an order of a federation whose rounds have not come home yet."""
    if not is_begun(path) and (path / ORDER).is_file():
        return None
    asked, made = read_asked(path), read_plan(path)
    several = is_comparison(path)
    runs = [
        Run(place_of(path, method.name, seed) if several else path, method.name, seed, sum(p.times for p in method.plan()))
        for method in made.methods
        for seed in made.seeds
    ]
    owners = made.protocol.partition.clients if asked.engine != FEDERATION and manifest_of(path) is None else None
    found = Standing(path, made, runs, owners)
    found.look()
    return found
