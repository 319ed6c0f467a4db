"""`suture attack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from suture import api
from suture.attacks import trials
from suture.attacks.attack import Finding
from suture.attacks.scenes import Scene
from suture.commands.request import Request, Work, planned, run_folder, use_device
from suture.commands.running import RECORDED, STDOUT, check_json_target, supervised, write_results
from suture.commands.telling import Teller, telling
from suture.core.progress import work as working
from suture.errors import ConfigError
from suture.report.attacks import attack_report
from suture.runs.folder import EMBEDDED, TAPE


@dataclass(frozen=True)
class Wish:
    """Which attacks, from where, and how long."""

    attacks: tuple[str, ...] | None = None
    views: tuple[str, ...] | None = None
    minutes: float = 10.0
    control: bool = False
    """Attack noise in the place of the messages, to see that nothing is found where nothing is."""


def on_run(path: Path, wish: Wish, work: Work) -> None:
    """Attack a recorded run."""
    trials.chosen(wish.attacks, wish.views)
    _check(wish, work)
    with telling("attack", work.quiet, work.lines) as told:
        work = use_device(work, told.note)
        _attack(path, wish, work, told)


def _attack(path: Path, wish: Wish, work: Work, told: Teller) -> None:
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
    _conclude(path, found, wish, work, told)


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
        _attack(out, wish, work, told)


def _check(wish: Wish, work: Work) -> None:
    if not wish.minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {wish.minutes}")
    check_json_target(work.json, work.lines)


def _conclude(path: Path, found: Sequence[Finding], wish: Wish, work: Work, told: Teller) -> None:
    results = [finding.as_json() for finding in found]
    if work.json is not None:
        write_results(results, work.json)
    if work.json != STDOUT:
        what = "noise in the place of messages: a control" if wish.control else "what messages tell"
        told.result({"run": str(path), "findings": results}, attack_report(found, f"{path}, {what}"))
    if not work.lines and not wish.control:
        told.note(f"kept in {path}; beside what was sent: suture privacy {path}")
