"""Options and help of `suture federation|coordinator|owner ...`; what they do is in `kits` and `federating`.

Those around keys are in `keys_cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

federation_app = typer.Typer(rich_markup_mode=None)
coordinator_app = typer.Typer(rich_markup_mode=None)
owner_app = typer.Typer(rich_markup_mode=None)


@command(coordinator_app, "start", "suture coordinator start kits/coordinator")
def coordinator_start(kit: opt.KitFolder, plugins: opt.Plugins = None) -> None:
    """Be the coordinator, in the foreground, until Ctrl-C."""
    from suture.commands import kits

    kits.start_coordinator(kit, plugins or ())


@command(
    owner_app,
    "start",
    "suture owner start kits/clinic-a --data clinic-a",
    "suture owner start kits/clinic-a --data graph.npz --policy policy.toml",
)
def owner_start(
    kit: opt.KitFolder,
    data: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="This owner's graph: a folder of `suture import`, .safetensors or .npz; it stays here"
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What this owner accepts, in TOML: methods, budgets, whose ids are matched  [default: every method]",
        ),
    ] = None,
    plugins: opt.Plugins = None,
) -> None:
    """Be an owner, in the foreground, until Ctrl-C.

    A folder holds one owner's graph: import it with --owner-name, or cut a folder of several with `suture data pieces`.
    """
    from suture.commands import federating

    federating.start_owner(kit, data, policy, plugins or ())


@command(
    owner_app, "predict", "suture owner predict kits/clinic-a", "suture owner predict kits/clinic-a --run RUN --out p.csv"
)
def owner_predict(
    kit: opt.KitFolder,
    run: Annotated[str | None, typer.Option(metavar="NAME", help="Which run  [default: the last finished one]")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV to write  [default: print it]")] = None,
) -> None:
    """Get the predictions for this owner's nodes.

    Model and predictions are with the owner since the run was finished; nobody is asked.
    """
    from suture.commands import kits

    kits.predict(kit, run, out)


@command(owner_app, "ledger", "suture owner ledger kits/clinic-a", "suture owner ledger kits/clinic-a --run RUN")
def owner_ledger(
    kit: opt.KitFolder,
    run: Annotated[str | None, typer.Option(metavar="NAME", help="Only this run  [default: all]")] = None,
) -> None:
    """Show what has left this owner, and what it has refused."""
    from suture.commands import kits

    kits.show_ledger(kit, run)


Verify = Annotated[
    bool, typer.Option("--verify", help="Check that no line was changed, dropped or cut off, and print the last one's hash")
]


@command(owner_app, "audit", "suture owner audit kits/clinic-a", "suture owner audit kits/clinic-a --verify")
def owner_audit(kit: opt.KitFolder, verify: Verify = False) -> None:
    """Show this owner's audit log: what was opened, refused, lost and finished.

    Every line holds a hash of all before it, and every finished run the hash of the line it ended with. A log that was
    changed or cut off is named with its line; the exit code is 2.
    """
    from suture.commands import audit_logs

    audit_logs.show(kit, "owner", verify)


@command(coordinator_app, "audit", "suture coordinator audit kits/coordinator --verify")
def coordinator_audit(kit: opt.KitFolder, verify: Verify = False) -> None:
    """Show the coordinator's audit log, or check it as `suture owner audit` does."""
    from suture.commands import audit_logs

    audit_logs.show(kit, "coordinator", verify)


@command(
    federation_app,
    "run",
    "suture federation run --kit kits/operator --method fedavg --set rounds=50",
    "suture federation run --kit kits/operator --method fedavg --secure",
    "suture federation run --kit kits/operator --dataset cora --method fedprox --on-loss continue",
)
def federation_run(
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The operator's kit")],
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method, or FILE.py:CLASS of your own  [default: fedavg]")
    ] = None,
    protocol: opt.ProtocolName = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Owners have pieces of this dataset: its protocol and values")
    ] = None,
    seed: opt.Seed = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    out: opt.Out = None,
    on_loss: Annotated[str, typer.Option(metavar="WORD", help="A lost owner: wait for it, or continue without")] = "wait",
    step_timeout: Annotated[float, typer.Option(metavar="S", help="Seconds an owner may take for one step")] = 600.0,
    patience: Annotated[float, typer.Option(metavar="S", help="Seconds a failed call is repeated")] = 10.0,
    min_owners: Annotated[int, typer.Option(metavar="N", min=1, help="continue: fewest owners in a round")] = 2,
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure aggregation: the coordinator learns sums of updates only")
    ] = False,
    track: opt.Track = None,
    quiet: opt.Quiet = False,
    lines: opt.Lines = False,
) -> None:
    """Train one method between the owners, follow it live, and get the run folder.

    The protocol is `own` unless --protocol or --dataset says otherwise: owners first share sums over their nodes, to bring
    features to one scale and to weigh classes. With --secure nobody sees a single owner's sums.

    Ctrl-C finishes the current round; `suture federation resume` goes on from there.
    """
    from suture.commands import federating, request

    asked = request.Request(
        protocol=protocol,
        dataset=dataset or "federation",
        methods=None if method is None else (method,),
        seeds=None if seed is None else (seed,),
        overrides=tuple(overrides or ()),
        config=config,
        single=True,
    )
    faults = {"on_loss": on_loss, "step_timeout": step_timeout, "patience": patience, "min_owners": min_owners}
    federating.run(kit, asked, faults, secure, request.Work(out=out, quiet=quiet, track=tuple(track or ()), lines=lines))


@command(federation_app, "resume", "suture federation resume runs/20260101-120000-federation-fedpub-disjoint")
def federation_resume(
    path: opt.RunFolder, track: opt.Track = None, quiet: opt.Quiet = False, lines: opt.Lines = False
) -> None:
    """Go on with a run from its last finished round.

    It ends with the same numbers as if nothing had happened, whoever was killed in between.
    """
    from suture.commands import federating, request

    federating.resume(path, request.Work(quiet=quiet, track=tuple(track or ()), lines=lines))


@command(federation_app, "status", "suture federation status --kit kits/operator")
def federation_status(kit: Annotated[Path, typer.Option(metavar="DIR", help="The operator's kit")]) -> None:
    """Show who is connected and what is running."""
    from suture.commands import kits

    kits.status(kit)


@command(federation_app, "stop", "suture federation stop runs/mine")
def federation_stop(path: opt.RunFolder) -> None:
    """Stop a run after its current round."""
    from suture.commands import federating

    federating.stop(path)
