"""Where output goes: results to stdout, everything else to stderr, so that stdout can be piped.

Names, reasons and notes come from files and from other parties. What a terminal would obey in them (escapes that move the
cursor, rename the window or write to the clipboard, and marks that turn the direction of text) is shown, not sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What terminals obey: control characters but tab and line feed, and marks of direction."""
LONGEST = 4000
"""Characters of a sentence; more is somebody else's text, and is cut."""


def cleaned(text: str) -> str:
    r"""The text with all that a terminal would obey written out: `\x1b[2J`."""
    return OBEYED.sub(lambda found: _written_out(ord(found.group())), text)


def _written_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def shortened(text: str, most: int = LONGEST) -> str:
    """A text of a length that somebody can read: what it quotes may be megabytes."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most:,} characters] {text[-(most // 2) :]}"


class CleanConsole(Console):
    """A console that sends a terminal no control characters but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that is printed, drawn or put into a table passes here, piece by piece."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text, style, control) if control else Segment(cleaned(text), style)

    def out(self, *objects: Any, **more: Any) -> None:
        """What is printed as it is, a table in CSV: into a file to the last byte, on a terminal cleaned."""
        super().out(*(cleaned(str(one)) if self.is_terminal else one for one in objects), **more)


def results() -> Console:
    """For what was asked for."""
    return CleanConsole(highlight=False, soft_wrap=False, markup=False, emoji=False)


def notes() -> Console:
    """For progress and remarks."""
    return CleanConsole(stderr=True, highlight=False, markup=False, emoji=False)


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
