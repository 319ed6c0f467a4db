"""Options and help of `suture data ...`; what these commands do is in `suture.commands.data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

data_app = typer.Typer(rich_markup_mode=None)


@command(data_app, "list", "suture data list")
def data_list(data_root: opt.DataRoot = None) -> None:
    """List every dataset and whether it is here."""
    from suture.commands import data

    data.show_list(data_root)


@command(data_app, "get", "suture data get cora citeseer")
def data_get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets")],
    data_root: opt.DataRoot = None,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fetch datasets and check them against their published hashes."""
    from suture.commands import data, request

    data.fetch(names, request.Work(data_root, quiet=quiet, lines=lines))


@command(data_app, "info", "suture data info cora", "suture data info csbm")
def data_info(name: Annotated[str, typer.Argument(metavar="NAME", help="Dataset")], data_root: opt.DataRoot = None) -> None:
    """Describe one dataset: size, source, licence, files; for a generated one its arguments."""
    from suture.commands import data

    data.show_info(name, data_root)


@command(data_app, "pieces", "suture data pieces graph --out pieces")
def data_pieces(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Graph folder of several owners, from `suture import`")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the pieces, one graph folder for each owner")],
) -> None:
    """Cut a graph folder into one folder for each owner, as each would have it.

    Edges between owners become boundary edges on both sides.
    """
    from suture.commands import data

    data.write_pieces(folder, out)
