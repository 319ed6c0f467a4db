"""`suture compare`, `suture run`, `suture resume`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from suture import api
from suture.assessment.assess import read_assessment
from suture.commands.listing import write_commands
from suture.commands.planning import dry_run
from suture.commands.request import Request, Work, planned, run_folder, use_device
from suture.commands.stopping import Halt, Stopper
from suture.commands.telling import Teller, telling
from suture.core.forks import Died
from suture.core.progress import work as working
from suture.core.storage import disk_errors, make_folder, write_json
from suture.errors import ConfigError, StorageError, SutureError
from suture.report.assessment import assessment_report
from suture.report.attacks import attacked
from suture.report.brought import brought
from suture.report.events import plain
from suture.report.suspects import suspects
from suture.report.table import comparison_report, metric_of, warned
from suture.report.writing import write_report
from suture.runs import origin
from suture.runs.folder import EMBEDDED, TAPE, is_begun, is_comparison, place_of, read_asked, read_plan
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick

STDOUT = "-"
DRAWS = "vl_convert"
"""What the report extra installs."""
RECORDED = (
    "recording: {tape} in {out} keeps the content of every message, which is all that the server sees; only your account "
    "may read it; delete it when nobody needs it"
)


def start(request: Request, work: Work, only_plan: bool) -> None:
    """Plan a comparison or a run and, unless only the plan is wanted, carry it out and print its table."""
    made = planned(request)
    out = run_folder(made, work)
    if only_plan:
        dry_run(made, out, request.manifest, work.data_root)
        return
    if work.commands is not None:
        write_commands(request, made, out, work, work.commands)
        return
    check_json_target(work.json, work.lines)
    with telling("run" if request.single else "compare", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        if work.record:
            told.note(RECORDED.format(tape=TAPE, out=out))
        with supervised(out, made, work, work.engine or EMBEDDED, told) as options:
            if request.single:
                result = api.run_plan(made, manifest=request.manifest, out=out, options=options)
                comparison = api.Comparison((result.outcome,))
            else:
                comparison = api.compare_plan(made, manifest=request.manifest, out=out, options=options)
        _conclude(comparison, made, out, work, told)


def resume(path: Path, work: Work) -> None:
    """Bring a run or comparison to its end, with the threads it was begun with, and print its table."""
    asked, made = read_asked(path), read_plan(path)
    check_json_target(work.json, work.lines)
    with telling("resume", work.quiet, work.lines) as told:
        work = use_device(replace(work, threads=asked.threads), told.note)
        with supervised(path, made, work, work.engine or asked.engine, told) as options:
            comparison = api.resume_plan(made, path, options=options)
        _conclude(comparison, made, path, work, told)


@contextmanager
def supervised(out: Path, made: api.Plan, work: Work, engine: str, told: Teller) -> Iterator[api.Options]:
    """Options that show progress and obey signals; whatever stops a run, the user hears how to go on."""
    runs = len(made.methods) * len(made.seeds)
    # A live line would be drawn over a debugger's prompt.
    with Stopper() as stopper, told.watching(runs, live=engine == EMBEDDED) as watch:

        def watch_and_note(method: str, seed: int, tick: Tick) -> None:
            stopper.training = True
            watch(method, seed, tick)

        try:
            yield api.Options(
                work.data_root,
                work.device,
                work.chunk,
                watch_and_note,
                lambda: stopper.asked,
                lambda notes: _tell(made, notes, told),
                engine,
                work.record,
                work.track,
                told.note,
                work.at_once,
                work.threads,
                work.on,
            )
        except (Interrupted, StorageError, Died, Halt) as stopped:
            begun = is_begun(out)
            if isinstance(stopped, Halt):
                stopped = Interrupted("stopped at once" if begun else "stopped before the first round; nothing was kept")
            raise type(stopped)(f"{stopped}; continue with: suture resume {out}" if begun else str(stopped)) from None


def _tell(made: api.Plan, notes: Sequence[str], told: Teller) -> None:
    """What was dropped or assumed, once, before training."""
    told.note(f"{origin.label(made.dataset)}, what was dropped or assumed:")
    for note in notes:
        told.note(f"  {note}")


def _conclude(comparison: api.Comparison, made: api.Plan, out: Path, work: Work, told: Teller) -> None:
    if work.json is not None:
        write_results(comparison.as_json(), work.json)
    page = _report(out, told)
    if work.json != STDOUT:
        assessment = read_assessment(out)
        said = [] if assessment is not None else brought(comparison, made)
        table = comparison_report(comparison.rows(), made, comparison.outcomes[0].clients)
        told.result(
            {"out": str(out), "runs": comparison.as_json(), "words": said, "report": page},
            *([assessment_report(assessment)] if assessment is not None else []),
            table,
            *([Text(), Text(" ".join(said), style="bold")] if said else []),
            *warned(comparison.outcomes),
            *attacked(out, made),
            *suspects(comparison.outcomes),
        )
    if not work.lines:
        _say_next(comparison, made, out, page, told)


def _report(out: Path, told: Teller) -> str | None:
    """Write the page of a comparison, where what draws it is installed; that it cannot be drawn ends nothing."""
    if not is_comparison(out) or importlib.util.find_spec(DRAWS) is None:
        return None
    try:
        with told.watching(), working("report", f"drawing {out.name}"):
            return str(write_report(out))
    except SutureError as error:
        told.note(f"no report was written: {error}")
        return None


def _say_next(comparison: api.Comparison, made: api.Plan, out: Path, page: str | None, told: Teller) -> None:
    if page is not None:
        told.note(f"wrote {page}; open it in a browser")
    told.note(f"kept in {out}; look at it again with: suture show {out}")
    if not origin.is_own(made.dataset) or made.protocol.task == "link":
        return
    run = out
    if is_comparison(out):
        federated = [method.name for method in made.methods if not method.sees_uncut_graph]
        best = comparison.chosen(federated, metric_of(made, comparison.outcomes[0].metric).sign)
        if best is None:
            return
        run = place_of(out, best, made.seeds[0])
    told.note(f"next: suture predict {run} --out predictions.csv")


def check_json_target(target: str | None, lines: bool = False) -> None:
    """Find out before the run, not after it, that its results cannot be written."""
    if lines and target == STDOUT:
        raise ConfigError("--json - and --json-lines both print to stdout; leave one out, or give --json a file")
    if target is None or target == STDOUT:
        return
    path = Path(target)
    if path.is_dir():
        raise StorageError(f"cannot write {path}: it is a folder; give --json a file")
    if not _in_place(path):
        make_folder(path.parent)
    elif not os.access(path, os.W_OK):
        raise StorageError(f"cannot write {path}: permission is missing; give --json another file")


def write_results(content: object, target: str) -> None:
    """Results as JSON to a file, or to stdout."""
    content = plain(content)
    path, text = Path(target), json.dumps(content, indent=2) + "\n"
    if target == STDOUT:
        sys.stdout.write(text)
    elif _in_place(path):
        with disk_errors("write", path):
            path.write_text(text)
    else:
        write_json(path, content)


def _in_place(path: Path) -> bool:
    """A link, pipe or device such as /dev/stdout must be written to, not replaced."""
    return path.is_symlink() or (path.exists() and not path.is_file())
