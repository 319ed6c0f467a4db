"""Options and help of `suture watch`; what it does is in `suture.commands.watching`."""

from __future__ import annotations

from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "watch", "suture watch runs/mine", "suture watch runs/mine --once", "suture watch runs/mine --json-lines")(
        watch
    )


def watch(
    path: opt.RunFolder,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end")] = False,
    lines: opt.Lines = False,
) -> None:
    """Watch a run or comparison from another terminal, until it ends.

    Shows rounds, learning curves, traffic, the time left, and of a run between owners who is absent and why. It only reads
    the folder; the run does not notice.
    """
    from suture.commands import watching

    watching.watch(path, once, lines)
