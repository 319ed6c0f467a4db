"""`suture compare --commands FILE`: the runs of a comparison as commands, for whatever carries out lists of commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from suture.commands.planning import fitting_methods
from suture.commands.request import Request, Work
from suture.core.storage import write_atomically
from suture.methods import DOOR
from suture.report import console
from suture.report.text import count
from suture.runs.folder import place_of, refuse_used
from suture.runs.plan import Plan


def write_commands(request: Request, made: Plan, out: Path, work: Work, file: Path) -> None:
    """Write one `suture run` a line; each has a folder of its own in `out`, and `suture merge` makes one of them."""
    refuse_used(out)
    made, left_out = fitting_methods(made, work.data_root)
    lines = list(_lines(request, made, out, work))
    write_atomically(file, "".join(f"{line}\n" for line in lines).encode())
    notes = console.notes()
    for text in left_out:
        notes.print(text, soft_wrap=True)
    joined = shlex.join(["suture", "merge", str(out), "--out", f"{out}-merged"])
    notes.print(f"wrote {count(len(lines), 'command')} to {file}; when all are done: {joined}", soft_wrap=True)


def _lines(request: Request, made: Plan, out: Path, work: Work) -> Iterator[str]:
    spelled = {source.name: source.spelling for source in made.sources if source.kind == DOOR.what and source.spelling}
    always = list(_options(request, made, work))
    for seed in made.seeds:
        for name in made.names:
            method = name if name in DOOR.names() else spelled.get(name, name)
            place = str(place_of(out.resolve(), name, seed))
            yield shlex.join(["suture", "run", "--method", method, "--seed", str(seed), *always, "--out", place])


def _options(request: Request, made: Plan, work: Work) -> Iterator[str]:
    """What was typed, in the words of `suture run`; folders and files by whole paths, as a job may begin elsewhere."""
    named = {
        "--protocol": _path_if_file(request.protocol),
        "--dataset": None if request.data is not None else made.dataset,
        "--data": request.data and request.data.resolve(),
        "--clients": request.clients,
        "--config": request.config and request.config.resolve(),
        "--manifest": request.manifest and request.manifest.resolve(),
        "--data-root": work.data_root and work.data_root.resolve(),
        "--device": work.device if work.device != "cpu" else None,
        "--chunk": work.chunk or None,
        "--threads": work.threads,
        "--engine": work.engine,
    }
    for option, value in named.items():
        if value is not None:
            yield from (option, str(value))
    for text in request.overrides:
        yield from ("--set", text)
    for tracker in work.track:
        yield from ("--track", tracker)
    if work.record:
        yield "--record"


def _path_if_file(protocol: str | None) -> str | None:
    return str(Path(protocol).resolve()) if protocol is not None and protocol.endswith(".toml") else protocol
