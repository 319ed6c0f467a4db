"""`suture share` and `suture rerun`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from suture.bench.rerun import Pair, Rerun, rerun, unpacked
from suture.bench.share import share
from suture.commands.request import RUNS, Work
from suture.commands.running import STDOUT, check_json_target, supervised, write_results
from suture.commands.telling import telling
from suture.core.metrics import metric_for
from suture.report import console
from suture.report.table import headline
from suture.report.text import NOTHING, byte_size, count, score
from suture.runs.folder import read_asked, read_plan

NOT_IN_IT = (
    "the graph is your own and is not in it (--with-data puts it there); of it, the file has a fingerprint, the number of "
    "its nodes, the names of owners and whose each node is, by number"
)
IN_IT = "the graph is in it, with features, edges, labels and names: whoever has the file has them"


def share_run(run: Path, out: Path, with_data: bool) -> None:
    """Write the file, and say what is in it."""
    shared = share(run, out, with_data=with_data)
    notes = console.notes()
    notes.print(f"wrote {shared.path}, {count(shared.runs, 'run')}, {byte_size(shared.size)}", soft_wrap=True)
    if shared.own_graph:
        notes.print(IN_IT if shared.with_data else NOT_IN_IT, soft_wrap=True)
    graph = " --data FOLDER" if shared.own_graph and not shared.with_data else ""
    notes.print(f"whoever has it: suture rerun {shared.path.name}{graph}", soft_wrap=True)


def rerun_file(file: Path, data: Path | None, work: Work) -> bool:
    """Rerun, compare and print; whether every number is the same."""
    check_json_target(work.json, work.lines)
    out = work.out if work.out is not None else RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-rerun-{file.stem}"
    with telling("rerun", work.quiet, work.lines) as told:
        parcel = unpacked(file, out, data)
        told.note(f"{count(len(parcel.runs), 'run')} of {file}, in {out}")
        with supervised(out, read_plan(out), work, read_asked(out).engine, told) as options:
            found = rerun(parcel, out, options)
        if work.json is not None:
            write_results(_content(found), work.json)
        if work.json != STDOUT:
            told.result(_content(found), _table(found), Text(), *(Text(line) for line in _words(found)))
        return found.same


def _table(found: Rerun) -> Table:
    column = headline(found.made.protocol.evaluation)
    share_of_one = metric_for(found.pairs[0].theirs.metric, found.made.protocol.task).is_share
    table = console.grid("method", "seed", "theirs", "here", "difference", "all numbers", numbers_from=1)
    for pair in found.pairs:
        theirs, ours = getattr(pair.theirs, column), getattr(pair.ours, column)
        cells = [NOTHING if value is None else score(value, share_of_one) for value in (theirs, ours)]
        gap = f"{(ours - theirs) * (100 if share_of_one else 1):+.3g}" if _has(pair, column) else NOTHING
        table.add_row(pair.theirs.method, str(pair.theirs.seed), *cells, gap, "same" if pair.same else _first(pair))
    return table


def _first(pair: Pair) -> str:
    if not pair.differing:
        return "same, but single rounds differ"
    name, (theirs, ours) = next(iter(pair.differing.items()))
    return f"{name}: {_short(theirs)}, here {_short(ours)}"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]


def _words(found: Rerun) -> list[str]:
    differing = [pair for pair in found.pairs if not pair.same]
    if not differing:
        lines = [f"The same: every number of {count(len(found.pairs), 'run')}, and every line of their metrics."]
    else:
        column = headline(found.made.protocol.evaluation)
        gaps = [abs(getattr(pair.ours, column) - getattr(pair.theirs, column)) for pair in differing if _has(pair, column)]
        most = f"; the headline differs by {max(gaps):.4g} at most" if gaps else ""
        lines = [f"{len(differing)} of {count(len(found.pairs), 'run')} differ{most}."]
    if found.versions:
        lines.append(f"Computed there with {', '.join(found.versions)}.")
    return lines


def _has(pair: Pair, column: str) -> bool:
    return getattr(pair.ours, column) is not None and getattr(pair.theirs, column) is not None


def _content(found: Rerun) -> dict[str, object]:
    runs = [
        {
            "method": pair.theirs.method,
            "seed": pair.theirs.seed,
            "same": pair.same,
            "differing": {name: list(both) for name, both in pair.differing.items()},
            "same_metrics": pair.same_metrics,
        }
        for pair in found.pairs
    ]
    return {"out": str(found.out), "same": found.same, "runs": runs, "versions": list(found.versions)}
