"""`suture attack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.text import Text

from suture import api
from suture.attacks import trials
from suture.attacks.attack import Finding
from suture.attacks.scenes import Scene
from suture.commands.request import Request, Work, planned, run_folder, use_device
from suture.commands.running import RECORDED, STDOUT, check_json_target, supervised, write_results
from suture.commands.telling import Teller, telling
from suture.core.progress import work as working
from suture.errors import ConfigError
from suture.privacy.disclosure import read_disclosure
from suture.report.attacks import LEGEND, attack_report, worst_in_words
from suture.report.console import grid, titled
from suture.runs.folder import EMBEDDED, TAPE, is_comparison, place_of, read_asked


@dataclass(frozen=True)
class Wish:
    """Which attacks, from where, and how long."""

    attacks: tuple[str, ...] | None = None
    views: tuple[str, ...] | None = None
    minutes: float = 10.0
    control: bool = False
    """Attack noise in the place of the messages, to see that nothing is found where nothing is."""


def on_run(path: Path, wish: Wish, work: Work) -> None:
    """Attack a recorded run, or every recorded run of a comparison."""
    trials.chosen(wish.attacks, wish.views)
    _check(wish, work)
    with telling("attack", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        if is_comparison(path):
            _attack_all(path, wish, work, told)
        else:
            _conclude(path, _attack(path, wish, work, told), wish, work, told)


def _attack_all(path: Path, wish: Wish, work: Work, told: Teller) -> None:
    """Run after run; of each the attack that tells most."""
    asked = read_asked(path)
    runs = [place_of(path, method, seed) for method in asked.methods for seed in asked.seeds]
    recorded = [run for run in runs if (run / TAPE).exists()]
    if not recorded:
        raise ConfigError(f"the messages of {path} were not recorded; train it again with --record")
    results, table = [], grid("run", "measured attack")
    for run in recorded:
        try:
            found = _attack(run, wish, work, told)
        except ConfigError as why:
            told.note(f"left out: {why}")
            continue
        results.append({"run": str(run), "findings": [finding.as_json() for finding in found]})
        table.add_row(run.name, worst_in_words(found))
    if left := [run.name for run in runs if run not in recorded]:
        told.note(f"not recorded, and so not attacked: {', '.join(left)}")
    if work.json is not None:
        write_results(results, work.json)
    if work.json != STDOUT:
        told.result({"runs": results}, titled(f"{path}, {_what(wish)}", table), Text(LEGEND))
    if not work.lines and not wish.control:
        told.note(f"kept in the runs; beside what was sent: suture privacy {path}")


def _attack(path: Path, wish: Wish, work: Work, told: Teller) -> list[Finding]:
    """What is found, in order, and kept beside the run."""
    pairs = trials.chosen(wish.attacks, wish.views)
    with told.watching():
        scene = Scene.read(path, work.data_root, noise=wish.control)
        with working("attack", f"attacking {path.name}", len(pairs), "attacks") as going:

            def watch(attack: str, view: str, done: int, planned: int, unit: str) -> None:
                going.at(f"{attack} as {view}: {done} of {planned} {unit}")

            found: list[Finding] = []

            def ended(finding: Finding) -> None:
                found.append(finding)
                going.advance()

            jobs, seconds = min(work.at_once, len(pairs)), 60 * wish.minutes
            if jobs == 1:
                for finding in trials.carry_out(scene, pairs, seconds, watch):
                    ended(finding)
            else:
                threads = work.threads or max(1, torch.get_num_threads() // jobs)
                trials.carry_out_at_once(scene, pairs, seconds, watch, jobs=jobs, threads=threads, ended=ended)
    found = trials.in_order(found)
    if not wish.control:
        trials.keep(path, found)
    return found


def on_request(request: Request, wish: Wish, work: Work) -> None:
    """Train and record a run, then attack it."""
    trials.chosen(wish.attacks, wish.views)
    _check(wish, work)
    made = planned(request)
    out = run_folder(made, work, f"{made.names[0]}-attacked")
    with telling("attack", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        told.note(RECORDED.format(tape=TAPE, out=out))
        with supervised(out, made, replace(work, record=True, jobs=1), EMBEDDED, told) as options:
            api.run_plan(made, manifest=request.manifest, out=out, options=options)
        _conclude(out, _attack(out, wish, work, told), wish, work, told)


def _check(wish: Wish, work: Work) -> None:
    if not wish.minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {wish.minutes}")
    check_json_target(work.json, work.lines)


def _conclude(path: Path, found: Sequence[Finding], wish: Wish, work: Work, told: Teller) -> None:
    results = [finding.as_json() for finding in found]
    if work.json is not None:
        write_results(results, work.json)
    if work.json != STDOUT:
        shown = attack_report(found, f"{path}, {_what(wish)}", read_disclosure(path))
        told.result({"run": str(path), "findings": results}, shown)
    if not work.lines and not wish.control:
        told.note(f"kept in {path}; beside what was sent: suture privacy {path}")


def _what(wish: Wish) -> str:
    return "noise in the place of messages: a control" if wish.control else "what messages tell"
