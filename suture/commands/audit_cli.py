"""Options and help of `suture audit`; what it does is in `suture.commands.auditing`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

Run = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run; its settings and its graph are audited")]
MethodName = Annotated[str | None, typer.Option(metavar="NAME", help="Audit this method, without a run  [default: fedavg]")]
Canaries = Annotated[int, typer.Option(metavar="N", min=20, help="Canaries; more of them make the bound sharper")]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, help="Rounds of DP-SGD at most, each as the run's own")]
Client = Annotated[str | None, typer.Option(metavar="NAME", help="Whose data  [default: with the most training nodes]")]
Delta = Annotated[float, typer.Option(metavar="D", help="The delta at which epsilon is stated")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(
        app,
        "audit",
        "suture audit runs/private",
        "suture audit --method fedavg --dataset cora --set training.dp_sigma=2 --set training.batch_size=32",
        "suture audit --method fedprox --set model.kind=gap --canaries 5000",
    )(audit)


def audit(
    run: Run = None,
    method: MethodName = None,
    canaries: Canaries = 1000,
    rounds: Rounds = 20,
    client: Client = None,
    delta: Delta = 1e-5,
    protocol: opt.ProtocolName = None,
    dataset: opt.Dataset = None,
    data: opt.GraphFolder = None,
    clients: opt.Clients = None,
    seed: opt.Seed = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    manifest: opt.Manifest = None,
    data_root: opt.DataRoot = None,
    json: opt.Json = None,
    threads: opt.Threads = None,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Check by canaries that a guarantee holds: a lower bound on epsilon beside the account's upper one.

    Runs the real code of every mechanism (DP-SGD, noise on sums or means, drawn neighbours or edges) on a client's data
    with canaries in it, and ends with code 1 if a lower bound lies above its upper one: it hides less than it promises.
    """
    from suture.attacks.auditing import Effort
    from suture.commands import auditing, request
    from suture.errors import ConfigError

    typed = (method, protocol, dataset, data, clients, seed, overrides, config, manifest)
    if run is not None and any(value is not None for value in typed):
        raise ConfigError(f"{run} has its settings; give either a run, or what to audit")
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
    work = request.Work(data_root=data_root, json=json, threads=threads, quiet=quiet, lines=lines)
    effort = Effort(canaries, rounds, delta, seed or 0)
    if not auditing.show_audit(auditing.Subject(run, asked, client), work, effort):
        raise typer.Exit(1)
