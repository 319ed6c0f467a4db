"""Commands around start-up kits that need no torch, and so start at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.text import Text

from suture.core.storage import disk_errors, read_lines, write_atomically
from suture.errors import ConfigError
from suture.federation.flare.places import HOME
from suture.federation.wire.status import Status
from suture.report import console
from suture.report.text import byte_size

if TYPE_CHECKING:
    from suture.federation.flare.kits import Kit
    from suture.federation.flare.session import Session


def start_coordinator(path: Path, plugins: Sequence[str]) -> None:
    """Become the coordinator."""
    flare = engine()
    kit = usable(path, "coordinator")
    if plugins or (kit.path / HOME / "coordinator.json").exists():
        from suture.federation.coordinator.coordinator import let_in

        let_in(plugins, kit.path / HOME)
    console.notes().print(f"coordinator of {kit.federation}; log: {kit.path / 'log.txt'}; Ctrl-C ends it", soft_wrap=True)
    flare.kits.become(kit, flare.jobs.JOBS)


def predict(path: Path, run: str | None, out: Path | None) -> None:
    """Print or copy the predictions that a finished run left with this owner."""
    kit = engine().kits.Kit.read(path, "owner")
    runs = kit.path / HOME / "runs"
    finished = sorted(runs.glob("*/finished.json"), key=lambda file: file.stat().st_mtime)
    if run is not None:
        finished = [file for file in finished if file.parent.name == run]
    if not finished:
        raise ConfigError(f"{kit.name} has no finished run{f' {run}' if run else ''} yet; runs are kept in {runs}")
    source = finished[-1].parent / "predictions.csv"
    with disk_errors("read", source):
        content = source.read_bytes()
    if out is None:
        console.results().out(content.decode(), end="")
        return
    write_atomically(out, content)
    console.notes().print(
        f"wrote {out}; model and evaluation are {source.with_name('model.safetensors')} and evaluation.json beside it",
        soft_wrap=True,
    )


def show_ledger(path: Path, run: str | None) -> None:
    """What has left this owner, by run, step and field; then its audit log."""
    kit = engine().kits.Kit.read(path, "owner")
    from suture.commands import audit_logs
    from suture.federation.audit import AUDIT, read_audit
    from suture.federation.wire.names import CENSUS, MATCHING, run_name

    if run is not None:
        run_name(run)
    runs = kit.path / HOME / "runs"
    # What was exchanged before a run is kept beside it.
    wanted = ["*"] if run is None else [f"{run}{CENSUS}", f"{run}{MATCHING}", run]
    found = [file for name in wanted for file in runs.glob(f"{name}/ledger.jsonl")]
    files = sorted(found, key=lambda file: file.stat().st_mtime)
    if run is not None and not files:
        raise ConfigError(f"{kit.name} has no run {run}; its runs are in {runs}")
    screen = console.results()
    for file in files:
        times: Counter[tuple[str, str]] = Counter()
        sizes: Counter[str] = Counter()
        for entry in read_lines(file):
            sizes[entry["step"]] += sum(entry["bytes"])
            times.update((entry["step"], f"{name} {shape}") for name, shape in entry["fields"].items())
        table = console.grid("step", "field", "times", "bytes", numbers_from=2)
        shown: set[str] = set()
        for (step, name), count in times.items():
            table.add_row(step, name, str(count), "" if step in shown else byte_size(sizes[step]))
            shown.add(step)
        screen.print(console.titled(f"sent in {file.parent.name}", table))
        screen.print()
    noted = [line for line in read_audit(kit.path / HOME / AUDIT) if run is None or line.get("run") in wanted]
    screen.print(console.titled("audit", audit_logs.events(noted)))


def status(path: Path) -> None:
    """Who is connected, and what the jobs are doing."""
    flare = engine()
    kit = usable(path, "operator")
    session = flare.session.Session(kit)
    screen = console.results()
    try:
        connected = session.connected()
        reports = [_report(session, job, connected) for job in session.under_way()]
        table = console.grid("owner", "state")
        for owner in kit.owners:
            table.add_row(owner, "connected" if owner in connected else "not connected, or hangs")
        screen.print(table)
        for line in reports:
            screen.print(Text(line), soft_wrap=True)
    finally:
        session.close()


def _report(session: Session, job: str, connected: set[str]) -> str:
    """What a job is doing, in one line. Owners that do not answer in it are not connected."""
    told = session.command(job, {"do": "status"})
    silent = told.get("silent") if told else None
    connected.difference_update(silent if isinstance(silent, dict) else ())
    current = told.get("current") if told else None
    now = Status.read(current) if isinstance(current, dict) and current else None
    if now is None or now.tick is None:
        return f"job {job}: {'starting' if now is None else 'before its first round'}"
    lost = sorted({*now.absent, *(silent if isinstance(silent, dict) else ())})
    without = f", without {', '.join(lost)}" if lost else ""
    return f"{now.run}: {now.tick.phase} {now.tick.done}/{now.tick.total}{without}"


def usable(path: Path, role: str) -> Kit:
    """A kit that is about to be used, with what its party should know of its certificate on the screen."""
    kit: Kit = engine().kits.Kit.read(path, role)
    for remark in kit.remarks():
        console.notes().print(Text(f"note: {remark}"), soft_wrap=True)
    return kit


def engine() -> ModuleType:
    """The room that knows FLARE, with its kits, jobs and sessions, or one sentence."""
    try:
        from suture.federation import flare
        from suture.federation.flare import jobs, kits, session  # noqa: F401
    except ImportError as error:
        raise ConfigError("federations need FLARE; install it with: pip install 'suture-fl[federation]'") from error
    return flare
