"""Options and help of `suture merge`; what it does is in `suture.commands.merging`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

Pieces = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Folders of runs or comparisons, or folders that hold some of either")
]
NewFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the comparison they become")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    command(
        app,
        "merge",
        "suture merge runs/seeds-0-4 runs/seeds-5-9 --out runs/all",
        "suture merge runs/array --out runs/all",
    )(merge)


def merge(runs: Pieces, out: NewFolder, json: opt.Json = None) -> None:
    """Make one comparison of runs that were computed in pieces.

    Pieces may be other seeds, other methods, or come from other machines. What does not fit together is refused: another
    graph, another cut, other values, the same run with other numbers. What is missing, `suture resume` computes.
    """
    from suture.commands.merging import merge_runs

    merge_runs(runs, out, json)
