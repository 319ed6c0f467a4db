"""The curves of a run so far, read as its file grows: every line once."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suture.dashboard.rows import Row
from suture.runs.folder import METRICS, place_of
from suture.runs.pulse import FOLLOWED_LINES

Point = list[Any]
"""[iteration over all phases, round, phase, loss, train, validation, test]; None where nothing was told."""
FIELDS = ("loss", "train", "validation", "test")
MOST_BYTES = 64 << 20
"""Of one file; what a run writes after that is not drawn."""
MOST_AT_ONCE = 8 << 20
MOST_POINTS = 2000
"""Of one curve that is handed out whole; a longer one is thinned."""
REMEMBERED = 64


@dataclass
class Tail:
    """The lines of a growing file that were not read yet. A resumed run cuts its file back: then all is read again."""

    path: Path
    read: int = 0
    _end: bytes = b""
    """The last bytes before `read`, by which a file that was cut back and grew again is known."""

    def more(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether what was read before does not hold any more, the lines that are new)."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return self._forget(self.read > 0), []
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                return False, []
            anew = about.st_size < self.read or os.pread(handle, len(self._end), self.read - len(self._end)) != self._end
            self._forget(anew)
            if self.read >= MOST_BYTES or about.st_size == self.read:
                return anew, []
            file.seek(self.read)
            content = file.read(MOST_AT_ONCE)
        whole = content[: content.rfind(b"\n") + 1]
        self.read += len(whole)
        self._end = (self._end + whole)[-REMEMBERED:]
        return anew, [line for raw in whole.splitlines() if (line := _parsed(raw)) is not None]

    def _forget(self, anew: bool) -> bool:
        if anew:
            self.read, self._end = 0, b""
        return anew


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """One line; one that is damaged is not drawn."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


@dataclass
class Course:
    """The curve of one run, and what of it is new."""

    folder: Path
    method: str
    seed: int
    _known: list[Point] = field(default_factory=list)
    _heard: list[Point] = field(default_factory=list)
    """Of rounds whose lines are still at the coordinator's: what an operator has heard of them."""
    _tails: list[Tail] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tails = [Tail(self.folder / METRICS), Tail(self.folder / FOLLOWED_LINES)]

    @property
    def name(self) -> str:
        """Of the run among those of its comparison."""
        return f"{self.method} seed {self.seed}"

    @property
    def points(self) -> list[Point]:
        """All so far."""
        return [*self._known, *self._heard]

    def more(self) -> tuple[bool, list[Point]]:
        """(whether the points of before do not hold any more, the new ones)."""
        anew, lines = self._tails[0].more()
        if anew:
            self._known.clear()
        known = [_point(number, line) for number, line in enumerate(lines, len(self._known) + 1)]
        self._known += known
        if known and self._heard:
            anew, self._heard = True, [point for point in self._heard if point[0] > len(self._known)]
        heard: list[Point] = []
        for line in self._tails[1].more()[1]:
            done, last = line.get("done"), (heard or self._heard or self._known or [[0]])[-1][0]
            if isinstance(done, int) and done > last:
                heard.append(_point(done, line))
        self._heard += heard
        return anew, known + heard

    def whole(self) -> dict[str, Any]:
        """All of it, thinned where it is long."""
        points = self.points
        step, last = max(1, -(-len(points) // MOST_POINTS)), len(points) - 1
        points = [point for place, point in enumerate(points) if place % step == 0 or place == last]
        return {"method": self.method, "seed": self.seed, "points": points}


def _point(number: int, line: dict[str, Any]) -> Point:
    return [
        number,
        _number(line.get("round")),
        str(line.get("phase", ""))[:40],
        *(_number(line.get(name)) for name in FIELDS),
    ]


def _number(value: object) -> float | int | None:
    """JSON of others may hold anything, and NaN is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e300:
        return None
    return round(value, 5) if isinstance(value, float) else value


def courses_of(folder: Path, row: Row) -> list[Course]:
    """The runs of a folder that has been looked at."""
    if row.kind in ("comparison", "assessment"):
        return [Course(place_of(folder, method, seed), method, seed) for method in row.methods for seed in row.seeds]
    return [Course(folder, row.methods[0], row.seeds[0])] if row.methods and row.seeds else []
