"""Where output goes: results to stdout, everything else to stderr, so that stdout can be piped."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


def results() -> Console:
    """For what was asked for."""
    return Console(highlight=False, soft_wrap=False, markup=False, emoji=False)


def notes() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def titled(title: str, content: RenderableType) -> Group:
    """A headline of its own width above a table."""
    return Group(Text(title, style="bold"), content)


def grid(*headers: str, numbers_from: int | None = None, gap: int = 2) -> Table:
    """The one kind of table Suture prints; columns from `numbers_from` on are aligned to the right."""
    table = Table(box=None, header_style="bold", padding=(0, gap, 0, 0), pad_edge=False)
    for index, header in enumerate(headers):
        is_number = numbers_from is not None and index >= numbers_from
        table.add_column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table
