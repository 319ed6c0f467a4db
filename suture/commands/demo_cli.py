"""`suture demo`: the first screen, a cut where lost links hurt and every kind of method on it."""

from __future__ import annotations

from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

DATASET, PROTOCOL = "cora", "lost-links"
METHODS = ("local", "fedavg", "fedsage", "fedpub", "fedsage_plus", "feddep", "fedggr", "fedgcn", "global")
INTRODUCTION = (
    "Cora, 2,708 papers that cite each other, is dealt at random to ten owners: nine of ten links lie between owners, "
    "and are lost.",
    "local trains alone, fedavg and fedsage together, fedpub for each owner; fedsage_plus, feddep and fedggr mend what was "
    "lost. fedgcn is for owners who know the far ends of their lost links: they tell each other sums of features, mostly "
    "of one row. global has the uncut graph. (fedgls is for owners without any edges: suture compare --protocol "
    "fedgls-graphless.)",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "demo", "suture demo", "suture demo --seeds 0 --out runs/demo")(demo)


def demo(
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Seeds, one run each  [default: the protocol's three]")
    ] = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    lines: opt.Lines = False,
    threads: opt.Threads = None,
    track: opt.Track = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Show in two minutes what a cut costs, and what federation and mending give back.

    The same as `suture compare --protocol lost-links` with a choice of methods; ends with a table, what it shows in words,
    and a report.
    """
    from suture.commands import request, running

    asked = request.Request(
        protocol=PROTOCOL,
        dataset=DATASET,
        methods=METHODS,
        seeds=None if seeds is None else request.numbers(seeds, "--seeds"),
    )
    if not quiet and not lines:
        for line in INTRODUCTION:
            typer.echo(line, err=True)
    work = request.Work(data_root, out, json, threads=threads, quiet=quiet, track=tuple(track or ()), lines=lines)
    running.start(asked, work, False)
