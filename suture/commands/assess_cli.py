"""Options and help of `suture assess`; what it does is in `suture.commands.assessing`."""

from __future__ import annotations

from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

Minutes = Annotated[float, typer.Option(metavar="M", help="Time there is; what is tried is made to fit")]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B", help="Try these beside local and fedavg  [default: what fits the graph]")
]
Seeds = Annotated[str | None, typer.Option(metavar="0,1,2", help="Seeds, one run each  [default: as many as time allows]")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(
        app,
        "assess",
        "suture assess --data graph",
        "suture assess --data graph --minutes 15 --json gain.json",
        "suture assess --dataset twitch",
        "suture assess --data graph --methods fedpub,gcfl --set rounds=50",
    )(assess)


def assess(
    data: opt.GraphFolder = None,
    dataset: opt.Dataset = None,
    minutes: Minutes = 5.0,
    methods: Methods = None,
    protocol: opt.ProtocolName = None,
    clients: opt.Clients = None,
    seeds: Seeds = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    device: opt.Device = "cpu",
    threads: opt.Threads = None,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Say in a few minutes what federation would bring.

    Looks at the graph, tries training alone, FedAvg and what fits, several times, and recommends: federate or not, with
    what, who gains, how sure that is, and what would leave each owner.
    """
    from suture.commands import assessing, request

    asked = request.Request(
        protocol=protocol,
        dataset=dataset,
        data=data,
        clients=clients,
        methods=None if methods is None else opt.words(methods),
        seeds=None if seeds is None else request.numbers(seeds, "--seeds"),
        overrides=tuple(overrides or ()),
        config=config,
    )
    assessing.carry_out(asked, request.Work(data_root, out, json, device, 0, threads, quiet, lines=lines), minutes)
