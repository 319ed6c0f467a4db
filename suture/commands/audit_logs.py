"""`suture owner audit`, `suture coordinator audit`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from suture.commands.kits import engine
from suture.core.storage import Json
from suture.errors import ConfigError
from suture.federation.audit import AUDIT, read_audit, verify_audit
from suture.federation.flare.places import HOME
from suture.report import console
from suture.report.text import count


def show(path: Path, role: str, verify: bool) -> None:
    """Print a party's audit log, or whether it is whole."""
    kit = engine().kits.Kit.read(path, role)
    home = kit.path / HOME
    if not (home / AUDIT).exists():
        raise ConfigError(f"{kit.name} has no audit log yet ({home / AUDIT}); it begins when the party is started")
    if not verify:
        console.results().print(events(read_audit(home / AUDIT)))
        return
    head, aside = verify_audit(home)
    console.results().print(
        f"{count(head.lines, 'line')}, none changed since it was written; the last one's hash: {head.chain}"
    )
    for line in aside:
        console.results().print(f"not vouched for: {line}", soft_wrap=True)


def events(lines: list[dict[str, Json]]) -> Table:
    """Lines of an audit log as a table."""
    table = console.grid("time", "event", "details")
    for line in lines:
        details = ", ".join(f"{key} {value}" for key, value in line.items() if key not in ("time", "party", "event"))
        table.add_row(*(console.shortened(text) for text in (str(line.get("time")), str(line.get("event")), details)))
    return table
