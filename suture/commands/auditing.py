"""`suture audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suture.attacks.auditing import Effort, audit, client_graph
from suture.commands.request import Request, Work, planned, use_device
from suture.commands.running import STDOUT, check_json_target, write_results
from suture.commands.telling import telling
from suture.core.progress import work as working
from suture.core.storage import write_json
from suture.errors import ConfigError
from suture.privacy.audited import AUDIT
from suture.report.privacy import audit_table
from suture.runs.folder import is_comparison, manifest_of, place_of, read_plan
from suture.runs.prepare import Source


@dataclass(frozen=True)
class Subject:
    """What is audited: a run, or what is asked for; and whose data."""

    run: Path | None
    asked: Request
    client: str | None


def show_audit(subject: Subject, work: Work, effort: Effort) -> bool:
    """Audit, print and keep what was found; whether every account still stands."""
    if not 0 < effort.delta < 1:
        raise ConfigError(f"--delta must be between 0 and 1, got {effort.delta}")
    check_json_target(work.json, work.lines)
    made, manifest = planned(subject.asked) if subject.run is None else read_plan(subject.run), subject.asked.manifest
    if subject.run is not None:
        if is_comparison(subject.run):
            runs = [str(place_of(subject.run, method.name, seed)) for method in made.methods for seed in made.seeds]
            raise ConfigError(f"{subject.run} is a comparison; choose one of its runs: {', '.join(runs)}")
        manifest = manifest_of(subject.run)
    method, seed = made.methods[0], made.seeds[0]
    with telling("audit", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        with told.watching():
            prepared = Source(made, manifest=manifest, data_root=work.data_root).prepared(seed)
            graph = client_graph(prepared.uncut if method.sees_uncut_graph else prepared.pieces_for(method), subject.client)
            with working("audit", f"auditing {method.name}") as going:
                audits = audit(method, graph, prepared.task, effort)
                found = [one.as_json() for one in going.through(audits)]
        if subject.run is not None:
            write_json(subject.run / AUDIT, {"audits": found})
        if work.json is not None:
            write_results(found, work.json)
        if work.json != STDOUT:
            told.result(found, audit_table(found))
    return all(one["holds"] for one in found)
