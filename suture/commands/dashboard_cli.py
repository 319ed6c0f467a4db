"""`suture dashboard`: options, help, and what is said when it starts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command
from suture.commands.stopping import Halt

MISSING = "the dashboard needs packages that are not installed ({}); install them with: pip install 'suture-fl[dashboard]'"
IN_CLEAR = (
    "anybody who can listen on the network between sees the token: use this inside a network you trust, or leave --host out "
    "and forward the port with ssh -L"
)


def register(app: typer.Typer) -> None:
    """Add the command of this module to the command line."""
    command(
        app,
        "dashboard",
        "suture dashboard",
        "suture dashboard runs --port 8700",
        "suture dashboard --data twitch",
        "suture dashboard kits/coordinator/suture",
    )(dashboard)


def dashboard(
    root: Annotated[Path, typer.Argument(metavar="[ROOT]", help="Folder that holds run folders")] = Path("runs"),
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; other machines reach it only if you say so here")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free")] = 8642,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FOLDER", help="Your own graph to offer in the form; may be repeated"),
    ] = None,
    data_root: opt.DataRoot = None,
) -> None:
    """Look at runs in a browser while they go on; start, stop, resume and compare them.

    Prints an address with a token: open it. Ctrl-C ends the dashboard; runs that were started there go on without it.
    Nothing outside ROOT is shown, and nothing is loaded from the network.
    """
    from suture.errors import ConfigError
    from suture.report import console

    try:
        import starlette
        import uvicorn
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ConfigError(MISSING.format(error.name)) from error
    del starlette, uvicorn
    from suture.dashboard.guard import is_loopback
    from suture.dashboard.serving import Place, graphs_named, serve

    screen = console.notes()

    def tell(address: str) -> None:
        if not is_loopback(host):
            screen.print(IN_CLEAR, soft_wrap=True)
        screen.print(f"runs below {root}, until Ctrl-C: open", soft_wrap=True)
        typer.echo(address)

    with contextlib.suppress(Halt):  # that is how it ends
        serve(Place(root, host, port, data_root, graphs_named(data or [])), tell)
