"""Commands of a federation that need its engine: be an owner, run, resume, stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from suture.commands.kits import engine, usable
from suture.commands.request import Request, Work, planned, run_folder
from suture.commands.stopping import Stopper
from suture.commands.telling import Teller, telling
from suture.config.strict import strict
from suture.errors import ConfigError, SutureError
from suture.federation.flare.places import HOME
from suture.report import console
from suture.report.suspects import suspects
from suture.report.table import comparison_report, warned
from suture.runs.card import DataCard
from suture.runs.comparison import Comparison
from suture.runs.folder import is_begun, read_card, read_outcome, read_plan
from suture.runs.loop import Interrupted
from suture.runs.outcome import Outcome, Tick
from suture.runs.plan import Plan
from suture.trackers.tracking import check_trackers, track_folder

if TYPE_CHECKING:
    from suture.federation.flare.kits import Kit
    from suture.federation.operator.operator import Operator


def start_owner(path: Path, data: Path, policy: Path | None, plugins: Sequence[str]) -> None:
    """Check the owner's files, then become the owner."""
    flare = engine()
    from suture.federation.owner.owner import Owner

    kit = usable(path, "owner")
    held = Owner.set_up(kit.name, data, policy, kit.path / HOME, plugins, kit.path).holding
    nodes, features = int(held.data.num_nodes), held.features
    whose = "".join(f" ({name} in {data})" for name in held.data.get("owners") or () if name != kit.name)
    console.notes().print(
        f"owner {kit.name}{whose} with {nodes} nodes of {features} features; log: {kit.path / 'log.txt'}; Ctrl-C ends it",
        soft_wrap=True,
    )
    flare.kits.become(kit, flare.jobs.JOBS)


def run(path: Path, request: Request, faults: Mapping[str, object], secure: bool, work: Work) -> None:
    """Submit one run and follow it to its end."""
    kit = usable(path, "operator")
    from suture.federation.operator.operator import new_run_name
    from suture.federation.wire.orders import ORDER, FaultSettings, order_of

    check_trackers(work.track)
    made = planned(request)
    order = order_of(made, new_run_name(made.methods[0].name), strict(FaultSettings, faults, "faults"), secure)
    folder = run_folder(made, work)
    if is_begun(folder) or (folder / ORDER).exists():
        raise ConfigError(f"{folder} holds a run already; continue it with `suture federation resume {folder}`")
    with telling("federation run", work.quiet, work.lines) as told:
        with _operating(kit, folder, told) as operator:
            outcomes = operator.carry_out([order], [folder])
        track_folder(work.track, folder, told.note)
        _conclude(outcomes, made, folder, told)


def resume(path: Path, work: Work) -> None:
    """Bring a run to its end with a new job."""
    engine()
    from suture.federation.operator.errand import read_order

    errand, done = read_order(path), read_outcome(path)
    with telling("federation resume", work.quiet, work.lines) as told:
        if done is None:
            with _operating(usable(errand.kit, "operator"), path, told) as operator:
                done = operator.carry_out([errand.order], [path], errand.job)[0]
        track_folder(work.track, path, told.note)
        _conclude([done], read_plan(path), path, told)


def stop(path: Path) -> None:
    """Let a run end after its current round; whoever follows it ends too."""
    engine()
    from suture.federation.operator.errand import read_order, stop_run

    errand = read_order(path)
    stop_run(errand, usable(errand.kit, "operator"))
    console.notes().print(f"stopping after this round; continue with: suture federation resume {path}", soft_wrap=True)


@contextmanager
def _operating(kit: Kit, folder: Path, told: Teller) -> Iterator[Operator]:
    """Follow with progress, obeying signals; whatever ends it, the user hears how to go on."""
    from suture.federation.operator.operator import JOB, Operator, RunLost, SessionError

    with Stopper() as stopper, told.watching() as watch:

        def watch_and_note(method: str, seed: int, tick: Tick) -> None:
            stopper.training = True
            watch(method, seed, tick)

        operator = Operator(kit, watch_and_note, lambda: stopper.asked, told.note)
        try:
            yield operator
        except (Interrupted, RunLost, SessionError) as error:
            begun = (folder / JOB).exists()
            raise _told(error, f"; continue with: suture federation resume {folder}" if begun else "") from None
        finally:
            operator.close()


def _told(error: SutureError, more: str) -> SutureError:
    return type(error)(f"{error}{more}")


def _conclude(outcomes: Sequence[Outcome], made: Plan, folder: Path, told: Teller) -> None:
    comparison = Comparison(tuple(outcomes))
    table = comparison_report(comparison.rows(), made, comparison.outcomes[0].clients)
    notes = DataCard.read(read_card(folder)).notes
    for note in notes if told.events is not None else ():
        told.note(note)
    told.result({"out": str(folder), "runs": comparison.as_json()}, table, *warned(outcomes), *suspects(outcomes))
    if told.events is None:
        for note in notes:
            told.note(f"note: {note}")
        told.note(f"kept in {folder}; look at it again with: suture show {folder}")
