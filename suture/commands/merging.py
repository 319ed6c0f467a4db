"""`suture merge`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from suture.bench.merge import merge
from suture.commands.inspecting import show
from suture.commands.running import STDOUT, check_json_target, write_results
from suture.commands.telling import telling
from suture.errors import some_of
from suture.report.text import count


def merge_runs(folders: Sequence[Path], out: Path, json: str | None, quiet: bool, lines: bool) -> None:
    """Merge, say what a reader must know, and print the comparison."""
    check_json_target(json, lines)
    with telling("merge", quiet, lines) as told:
        with told.watching():
            merged = merge(folders, out)
        for note in merged.notes:
            told.note(note)
        content = dataclasses.asdict(merged)
        if json is not None:
            write_results(content, json)
        if lines:
            told.result(content)
            return
        if json != STDOUT:
            show(out)
        told.note(f"{count(merged.runs, 'run')} in {out}")
        if merged.missing:
            told.note(f"missing: {some_of(merged.missing)}; compute them with: suture resume {out}")
