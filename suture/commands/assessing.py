"""`suture assess`: what federation would bring, before anybody federates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from suture.assessment.assess import Pinned, assess_plan, sets_rounds
from suture.commands.request import Request, Work, planned, run_folder, use_device
from suture.commands.running import STDOUT, check_json_target, supervised, write_results
from suture.commands.telling import telling
from suture.errors import ConfigError
from suture.report.assessment import assessment_report, next_step
from suture.runs import origin
from suture.runs.folder import EMBEDDED
from suture.runs.plan import Plan


def carry_out(request: Request, work: Work, minutes: float) -> None:
    """Look, try and recommend."""
    if request.data is None and request.dataset is None and request.config is None:
        raise ConfigError("assess needs a graph: --data FOLDER of `suture import`, or --dataset NAME")

    def planner(methods: Sequence[str], more: Sequence[str], seeds: Sequence[int] | None) -> Plan:
        chosen = request.seeds if seeds is None else tuple(seeds)
        overrides = (*request.overrides, *more)
        return planned(replace(request, methods=tuple(methods), seeds=chosen, overrides=overrides))

    first = planner(("local",), (), None)
    out = run_folder(first, work, "assess")
    check_json_target(work.json, work.lines)
    pinned = Pinned(request.methods, request.seeds is not None, sets_rounds(request.overrides))
    with telling("assess", work.quiet, work.lines) as told:
        work = use_device(work, told.note)

        def say(lines: Sequence[str]) -> None:
            for line in lines:
                told.note(line)

        with supervised(out, first.single(), work, EMBEDDED, told) as options:
            found = assess_plan(planner, minutes=minutes, pinned=pinned, out=out, options=options, say=say)
        if work.json is not None:
            write_results(found.as_json(), work.json)
        if work.json != STDOUT:
            told.result({"out": str(out), **found.as_json()}, assessment_report(found))
        if not work.lines:
            told.note(f"kept in {out}; look at it again with: suture show {out}")
            told.note(next_step(found, _named(request, first)))


def _named(request: Request, made: Plan) -> str:
    """The graph as the user named it."""
    if request.data is not None:
        return f"--data {request.data}"
    return f"--dataset {made.dataset}" if not origin.is_folder(made.dataset) else f"--data {made.dataset}"
