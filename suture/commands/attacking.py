"""`suture attack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suture import api
from suture.attacks import trials
from suture.attacks.attack import Finding
from suture.attacks.scenes import Scene
from suture.commands.request import Request, Work, planned, run_folder, use_device
from suture.commands.running import RECORDED, STDOUT, check_json_target, supervised, write_results
from suture.errors import ConfigError
from suture.report import console
from suture.report.attacks import attack_report
from suture.report.progress import attempts
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
    pairs = trials.chosen(wish.attacks, wish.views)
    _check(wish)
    check_json_target(work.json)
    use_device(work)
    scene = Scene.read(path, work.data_root, noise=wish.control)

    with attempts(console.notes(), work.quiet) as watch:
        found = trials.in_order(trials.carry_out(scene, pairs, 60 * wish.minutes, watch))
    if not wish.control:
        trials.keep(path, found)
    _conclude(path, found, wish, work)


def on_request(request: Request, wish: Wish, work: Work) -> None:
    """Train and record a run, then attack it."""
    trials.chosen(wish.attacks, wish.views)
    _check(wish)
    made = planned(request)
    out = run_folder(made, work, f"{made.names[0]}-attacked")
    use_device(work)
    if not work.quiet:
        console.notes().print(RECORDED.format(tape=TAPE, out=out), soft_wrap=True)
    with supervised(out, made, replace(work, record=True), EMBEDDED) as options:
        api.run_plan(made, manifest=request.manifest, out=out, options=options)
    on_run(out, wish, work)


def _check(wish: Wish) -> None:
    if not wish.minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {wish.minutes}")


def _conclude(path: Path, found: Sequence[Finding], wish: Wish, work: Work) -> None:
    if work.json is not None:
        write_results([finding.as_json() for finding in found], work.json)
    if work.json != STDOUT:
        what = "noise in the place of messages: a control" if wish.control else "what messages tell"
        console.results().print(attack_report(found, f"{path}, {what}"))
    if not work.quiet and not wish.control:
        console.notes().print(f"kept in {path}; beside what was sent: suture privacy {path}", soft_wrap=True)
