"""Options and help of `suture trust`; what it does is in `suture.commands.trusting`."""

from __future__ import annotations

from typing import Annotated

import typer

from suture.commands.registering import command


def register(app: typer.Typer) -> None:
    """Add the command of this module to the command line."""
    command(
        app,
        "trust",
        "suture trust runs/from-a-colleague",
        "suture trust fedamp.py:FedAMP",
        "suture trust --list",
        "suture trust --forget fedamp.py:FedAMP",
    )(trust)


def trust(
    what: Annotated[
        str | None, typer.Argument(metavar="[RUN|FILE]", help="Run folder, .toml file, FILE.py:NAME or MODULE:NAME")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print all that was let in")] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="FILE[:NAME]", help="Take back what was let in of a file or module")
    ] = None,
) -> None:
    """Let in the code that a run folder or file of somebody else names.

    A folder that you were handed may name a method, network, metric, partition or dataset by its file. That code is not run
    until you let it in. This prints path and SHA-256 of what would be run, and remembers them; nothing is run. A file that
    changes must be let in again. What you name yourself, as in --method mine.py:Mine, is let in by that.
    """
    from suture.commands import trusting

    trusting.trust(what, listed, forget)
