"""Options and help of `suture attack`; what it does is in `suture.commands.attacking`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

Run = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run or comparison trained with --record")]
MethodName = Annotated[str | None, typer.Option(metavar="NAME", help="Train, record and attack this method")]
Attacks = Annotated[str | None, typer.Option("--attack", metavar="A,B", help="Only these attacks  [default: all]")]
Views = Annotated[
    str | None, typer.Option("--view", metavar="V,W", help="server, owner, others (all but the victim)  [default: all]")
]
Minutes = Annotated[float, typer.Option(metavar="M", help="Time for all attacks on a run together")]
Jobs = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, help="Attacks tried side by side, each in a process of its own; 0: one per core  [default: 1]"
    ),
]
Control = Annotated[bool, typer.Option("--control", help="Put noise in the place of messages: nothing must be found")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(
        app,
        "attack",
        "suture attack runs/mine",
        "suture attack runs/mine --attack links,membership --view server",
        "suture attack --dataset cora --method fedggr --clients 5 --set rounds=20",
        "suture attack runs/mine --control --jobs 2",
    )(attack)


def attack(
    run: Run = None,
    method: MethodName = None,
    attacks: Attacks = None,
    views: Views = None,
    minutes: Minutes = 10.0,
    control: Control = False,
    protocol: opt.ProtocolName = None,
    dataset: opt.Dataset = None,
    data: opt.GraphFolder = None,
    clients: opt.Clients = None,
    seed: opt.Seed = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    manifest: opt.Manifest = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    threads: opt.Threads = None,
    jobs: Jobs = 1,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Find out what a run's messages are worth to somebody curious.

    Tries to get features, links, labels and members back from what was sent, as the server, as another owner, or as all
    others together, and compares with the best guess without messages.
    """
    from suture.commands import attacking, request
    from suture.errors import ConfigError

    typed = (method, protocol, dataset, data, clients, seed, overrides, config, manifest, out)
    if run is not None and any(value is not None for value in typed):
        raise ConfigError(f"{run} has been trained; give either a run, or what to train")
    wish = attacking.Wish(
        None if attacks is None else opt.words(attacks), None if views is None else opt.words(views), minutes, control
    )
    work = request.Work(data_root, out, json, "cpu", 0, threads, quiet, lines=lines, jobs=jobs)
    if run is not None:
        attacking.on_run(run, wish, work)
        return
    asked = request.Request(
        protocol=protocol,
        dataset=dataset,
        data=data,
        clients=clients,
        methods=None if method is None else (method,),
        seeds=None if seed is None else (seed,),
        overrides=tuple(overrides or ()),
        config=config,
        manifest=manifest,
        single=True,
    )
    attacking.on_request(asked, wish, work)
