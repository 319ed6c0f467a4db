"""`suture merge`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from suture.bench.merge import merge
from suture.commands.inspecting import show
from suture.commands.running import STDOUT, check_json_target, write_results
from suture.errors import some_of
from suture.report import console
from suture.report.text import count


def merge_runs(folders: Sequence[Path], out: Path, json: str | None) -> None:
    """Merge, say what a reader must know, and print the comparison."""
    check_json_target(json)
    merged = merge(folders, out)
    notes = console.notes()
    for note in merged.notes:
        notes.print(note, soft_wrap=True)
    if json is not None:
        write_results(dataclasses.asdict(merged), json)
    if json != STDOUT:
        show(out)
    notes.print(f"{count(merged.runs, 'run')} in {out}", soft_wrap=True)
    if merged.missing:
        notes.print(f"missing: {some_of(merged.missing)}; compute them with: suture resume {out}", soft_wrap=True)
