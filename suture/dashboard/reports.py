"""Reports of runs, made when somebody asks and kept until the run changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from suture.dashboard.rows import Row
from suture.report import page
from suture.report.gathering import gather
from suture.report.report import report_page

MOST_KEPT = 8
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report is a file of its own, with scripts in it. In this sandbox it is no page of the dashboard's, and can ask it
nothing; the report's own policy lets through the scripts that were put into it, by their hashes."""


@dataclass
class Reports:
    """One is made at a time."""

    _kept: OrderedDict[str, tuple[Row, str]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, id: str, folder: Path, row: Row) -> str:
        """The report of a folder whose line is this one."""
        with self._lock:
            kept = self._kept.get(id)
            if kept is None or kept[0] != row:
                kept = row, page.written(report_page(gather([folder])))
                self._kept[id] = kept
            self._kept.move_to_end(id)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return kept[1]
