"""`suture tune`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from suture.bench.search import Found
from suture.bench.tune import Tuned, Wish, tune
from suture.bench.work import Options
from suture.commands.request import DEFAULT_METHOD, Request, Work, planned, run_folder, use_device
from suture.commands.running import STDOUT, check_json_target, write_results
from suture.commands.stopping import Halt, Stopper
from suture.commands.telling import Teller, telling
from suture.config.layers import load_config
from suture.config.space import parse_space
from suture.config.toml import written
from suture.errors import ConfigError, StorageError
from suture.report import console
from suture.report.text import NOTHING, score
from suture.runs import origin
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick
from suture.runs.plan import Plan


def start(request: Request, work: Work, trials: int, seeds: tuple[int, ...], search: Sequence[str], only: bool) -> None:
    """Search, write the protocol, and print what was found."""
    in_file = load_config(request.config) if request.config else None
    if request.methods is None and (in_file is None or in_file.methods is None):
        request = replace(request, methods=(DEFAULT_METHOD,))
    made = planned(request)
    check_json_target(work.json, work.lines)
    wish = Wish(trials, seeds, dict(map(parse_space, search)), only)
    if only and not search:
        raise ConfigError("--only searches what --search names, and there is no --search; give one, or leave --only out")
    out = run_folder(made, work, "tune")
    named = request.protocol or (in_file.protocol if in_file else None) or origin.default_protocol(made.dataset)
    with telling("tune", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        told.note(
            f"{trials} trials for each of {', '.join(made.names)}, on validation of seeds {', '.join(map(str, seeds))}; "
            f"seeds {', '.join(map(str, made.seeds))} stay for the report"
        )
        with Stopper() as stopper, told.watching() as watch:

            def shown(method: str, number: int, seed: int, tick: Tick) -> None:
                stopper.training = True
                watch(f"{method} trial {number + 1} of {trials},", seed, tick)

            options = Options(
                work.data_root, chunk=work.chunk, stop=lambda: stopper.asked, jobs=work.at_once, threads=work.threads
            )
            try:
                found = tune(made, wish, out, protocol=named, given=request.overrides, options=options, watch=shown)
            except (Interrupted, StorageError, Halt) as stopped:
                text = "stopped at once" if isinstance(stopped, Halt) else str(stopped)
                again = f"; the same command with --out {out} goes on" if not isinstance(stopped, StorageError) else ""
                kind = Interrupted if isinstance(stopped, Halt) else type(stopped)
                raise kind(f"{text}{again}") from None
        _conclude(found, made, work, told)


def _conclude(tuned: Tuned, made: Plan, work: Work, told: Teller) -> None:
    content = {
        "protocol": str(tuned.protocol),
        "metric": tuned.metric,
        "methods": {one.method: [dataclasses.asdict(trial) for trial in one.trials] for one in tuned.found},
    }
    if work.json is not None:
        write_results(content, work.json)
    if work.json != STDOUT:
        unit = " %" if tuned.in_percent else ""
        table = console.grid("method", "trials", "given up", f"before{unit}", f"after{unit}", numbers_from=1)
        for one in tuned.found:
            table.add_row(one.method, str(len(one.trials)), str(one.given_up), *_scores(one, tuned))
        said = (
            f"Validation {tuned.metric}, mean over the seeds of the search, with the protocol's values and the best found."
        )
        told.result(content, table, Text(), *(Text(_values(one)) for one in tuned.found), Text(f"{said} No test was read."))
    where = ["--data" if origin.is_folder(made.dataset) else "--dataset", made.dataset]
    again = ["suture", "compare", "--protocol", str(tuned.protocol), *where, "--methods", ",".join(made.names)]
    told.note(f"wrote {tuned.protocol}; next: {shlex.join(again)}")


def _scores(one: Found, tuned: Tuned) -> list[str]:
    both = (one.baseline.score, one.best.score)
    return [NOTHING if value is None else score(value, tuned.in_percent) for value in both]


def _values(one: Found) -> str:
    values = ", ".join(f"{key} = {written(value)}" for key, value in one.best.values.items())
    return f"{one.method}: {values or 'no other values were better than those of the protocol'}"
