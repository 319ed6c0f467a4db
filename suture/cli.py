"""The command line: options, help and errors. What the commands do is in `suture.commands`.

Those modules are imported when a command runs, because torch takes seconds to import and `--help` should not.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from suture.commands import (
    assess_cli,
    attack_cli,
    audit_cli,
    bench_cli,
    dashboard_cli,
    demo_cli,
    importing,
    keys_cli,
    model_cli,
    report_cli,
    trust_cli,
    watch_cli,
)
from suture.commands import options as opt
from suture.commands.complaints import sentence
from suture.commands.data_cli import data_app
from suture.commands.federation_cli import coordinator_app
from suture.commands.registering import command
from suture.commands.stopping import Halt, halting
from suture.core.process import loading, prepare_process

REFUSED = 2
"""Exit code whenever the user, the disk or a signal is the reason."""
DEBUG = "SUTURE_DEBUG"
DEFAULT_METHODS = "local, fedavg, fedprox, fedper, fedsage, gcfl, fedproto, fedpub, global"
"""As in `suture.runs.plan`, which is not imported for --help alone; a test compares the two."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(data_app, name="data", help="List, fetch and describe datasets.")
app.add_typer(keys_cli.federation_app, name="federation", help="Run methods between owners on several machines.")
app.add_typer(coordinator_app, name="coordinator", help="Be the coordinator of a federation.")
app.add_typer(keys_cli.owner_app, name="owner", help="Be an owner in a federation.")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"suture {version('suture-fl')}")
        except PackageNotFoundError:
            typer.echo("suture, not installed: running from its source")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def suture(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    verbose: opt.Verbose = False,
) -> None:
    """Subgraph federated learning: one graph cut across several owners, every piece stays with its owner.

    Start with `suture compare`, which trains several methods on the same cuts of Cora and prints one table.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@command(
    app,
    "compare",
    "suture compare --dataset cora --clients 5",
    "suture compare --data graph",
    "suture compare --methods local,fedavg --seeds 0,1 --json results.json",
    "suture compare --jobs 2",
    "suture compare --protocol fedsage-louvain --dataset citeseer --set rounds=20 --dry-run",
)
def compare(
    protocol: opt.ProtocolName = None,
    dataset: opt.Dataset = None,
    data: opt.GraphFolder = None,
    clients: opt.Clients = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help=f"Methods  [default: {DEFAULT_METHODS}]"),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Seeds, one run each  [default: the protocol's]")
    ] = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    manifest: opt.Manifest = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    lines: opt.Lines = False,
    device: opt.Device = "cpu",
    chunk: opt.Chunk = 0,
    threads: opt.Threads = None,
    jobs: opt.Jobs = 1,
    on: opt.On = None,
    commands: opt.Commands = None,
    engine: opt.Engine = None,
    record: opt.Record = False,
    track: opt.Track = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Train several methods on the same cuts and print one table.

    Ctrl-C finishes the current round; `suture resume` goes on from there.
    """
    with loading():
        from suture.commands import request, running

    asked = request.Request(
        protocol=protocol,
        dataset=dataset,
        data=data,
        clients=clients,
        methods=None if methods is None else opt.words(methods),
        seeds=None if seeds is None else request.numbers(seeds, "--seeds"),
        overrides=tuple(overrides or ()),
        config=config,
        manifest=manifest,
    )
    how = (device, chunk, threads, quiet, engine, record, tuple(track or ()), lines, jobs, commands, on)
    running.start(asked, request.Work(data_root, out, json, *how), dry_run)


@command(
    app,
    "run",
    "suture run --method fedavg --dataset cora",
    "suture run --data graph --out runs/mine",
    "suture run --method fedprox --set fedprox.mu=0.1 --seed 3 --out runs/prox",
    "suture run --method fedavg --manifest cut.json --json -",
)
def run(
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method, or FILE.py:CLASS of your own  [default: fedavg]")
    ] = None,
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
    lines: opt.Lines = False,
    device: opt.Device = "cpu",
    chunk: opt.Chunk = 0,
    threads: opt.Threads = None,
    engine: opt.Engine = None,
    record: opt.Record = False,
    track: opt.Track = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Train one method once."""
    with loading():
        from suture.commands import request, running

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
    work = request.Work(data_root, out, json, device, chunk, threads, quiet, engine, record, tuple(track or ()), lines)
    running.start(asked, work, dry_run)


@command(app, "resume", "suture resume runs/20260101-120000-cora-fedpub-disjoint")
def resume(
    path: opt.RunFolder,
    json: opt.Json = None,
    lines: opt.Lines = False,
    data_root: opt.DataRoot = None,
    device: opt.Device = "cpu",
    jobs: opt.Jobs = 1,
    on: opt.On = None,
    engine: opt.Engine = None,
    track: opt.Track = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Go on with an interrupted run or comparison.

    It ends with the same numbers as if it had never stopped.
    What is finished already is only read, so this also prints the table of a finished comparison again.
    """
    with loading():
        from suture.commands import request, running

    work = request.Work(
        data_root, None, json, device, quiet=quiet, engine=engine, track=tuple(track or ()), lines=lines, jobs=jobs, on=on
    )
    running.resume(path, work)


@command(app, "show", "suture show runs/mine", "suture show runs/mine/fedavg-seed0")
def show(path: opt.RunFolder) -> None:
    """Look at a run or comparison, finished or not.

    Prints results, learning curves, the accuracy of every client, and what was sent.
    """
    from suture.commands import inspecting

    inspecting.show(path)


@command(app, "privacy", "suture privacy runs/mine/fedavg-seed0", "suture privacy runs/mine --json -")
def privacy(
    path: opt.RunFolder,
    delta: Annotated[float, typer.Option(metavar="D", help="The delta at which epsilon is stated")] = 1e-5,
    json: opt.Json = None,
) -> None:
    """Say what a run's privacy guarantees are worth, and what left its clients.

    Prints epsilon and delta of every client, whether they mean anything, and what kind of thing was sent to whom.
    """
    from suture.commands.privacy import show_privacy

    show_privacy(path, delta, json)


@command(
    app,
    "communities",
    "suture communities runs/mine",
    "suture communities runs/mine --round 5 --round 30 --image communities.png",
)
def communities(
    path: opt.RunFolder,
    rounds: Annotated[
        list[int] | None, typer.Option("--round", metavar="N", help="Round to look at, repeatable  [default: the last]")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture to draw, such as a .png; needs matplotlib")
    ] = None,
    data_root: opt.DataRoot = None,
) -> None:
    """Compare the similarities a run of fedpub found with its cut.

    Prints their correlation with the similarity of the clients' labels and with the edges lost between clients.
    """
    from suture.commands import communities as grouping

    grouping.communities(path, rounds or [], image, data_root)


@command(app, "methods", "suture methods", "suture methods fedprox")
def methods(name: opt.Name = None) -> None:
    """List the methods, or the hyper-parameters of one."""
    from suture.commands.methods import show_methods

    show_methods(name)


@command(app, "protocols", "suture protocols", "suture protocols fedpub-disjoint")
def protocols(name: opt.Name = None) -> None:
    """List the evaluation protocols, or every value of one."""
    from suture.commands.protocols import show_protocols

    show_protocols(name)


@command(
    app,
    "partition",
    "suture partition --dataset cora --clients 5 --out cut.json",
    "suture partition --data graph",
    "suture partition --dataset cora --kind dirichlet --set dirichlet_alpha=0.1 --seed 1",
)
def partition(
    protocol: opt.ProtocolName = None,
    dataset: opt.Dataset = None,
    data: opt.GraphFolder = None,
    clients: opt.Clients = None,
    seed: opt.Seed = None,
    kind: Annotated[
        str | None, typer.Option(metavar="NAME", help="metis, louvain, random, ...  [default: the protocol's]")
    ] = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    data_root: opt.DataRoot = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Manifest to write, for --manifest")] = None,
    shards: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each client's piece to a file, for `suture owner start`")
    ] = None,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Cut a graph and print what the cut costs.

    With --out the cut is kept, to be used in later runs.
    """
    from suture.commands import cutting, request

    asked = request.Request(
        protocol=protocol,
        dataset=dataset,
        data=data,
        clients=clients,
        methods=("local",),
        seeds=None if seed is None else (seed,),
        overrides=(*(overrides or ()), *([f"partition.kind={kind}"] if kind else [])),
        config=config,
    )
    cutting.partition(asked, out, shards, request.Work(data_root, quiet=quiet, lines=lines))


@command(app, "doctor", "suture doctor")
def doctor(data_root: opt.DataRoot = None) -> None:
    """Check this machine.

    Looks at versions, threads, datasets and the disk, and does a small run; exit code 1 if something is broken.
    """
    from suture.commands.doctor import examine

    if not examine(data_root):
        raise typer.Exit(1)


importing.register(app, data_app)
model_cli.register(app)
report_cli.register(app)
assess_cli.register(app)
demo_cli.register(app)
audit_cli.register(app)
attack_cli.register(app)
trust_cli.register(app)
dashboard_cli.register(app)
watch_cli.register(app)
bench_cli.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. SUTURE_DEBUG=1 shows where an error came from."""
    prepare_process()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets a ? and no traceback
    try:
        with halting():
            code = typer.main.get_command(app).main(arguments, prog_name="suture", standalone_mode=False)
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 0
    except (Exception, Halt) as error:
        complaint = sentence(error)
        if complaint is None or os.environ.get(DEBUG):
            raise
        from suture.report.console import cleaned, shortened

        with contextlib.suppress(OSError):
            print(f"suture: {cleaned(shortened(complaint))}", file=sys.stderr)
        return REFUSED
    return int(code or 0)


def _discard_output() -> None:
    """Nobody reads stdout any more; let the interpreter flush it into nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
