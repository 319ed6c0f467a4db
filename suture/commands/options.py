"""The options that several commands share, each written down once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from suture.errors import ConfigError

AUTO, MOST_THREADS = "auto", 1024


def tell_everything(context: typer.Context, wanted: bool) -> None:
    """Let the package's log speak until the command has ended."""
    log = logging.getLogger("suture")
    if not wanted or log.isEnabledFor(logging.INFO):
        return
    handler, before = logging.StreamHandler(), log.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    def hush() -> None:
        log.removeHandler(handler)
        log.setLevel(before)

    context.call_on_close(hush)


def threads_of(text: str) -> int | None:
    """`--threads`; None is auto."""
    if text == AUTO:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise ConfigError(f"--threads must be auto or a whole number from 1 to {MOST_THREADS}, got {text!r}")
    return int(text)


ProtocolName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Protocol, or your own .toml file  [default: fedpub-disjoint; with --data: own]"),
]
Dataset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Dataset, or a graph such as csbm:nodes=5000; your own: --data  [default: cora]"),
]
GraphFolder = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", help="Your own graph: the folder that `suture import` wrote")
]
Clients = Annotated[int | None, typer.Option(metavar="M", help="Number of clients  [default: what the protocol says]")]
Seed = Annotated[int | None, typer.Option(metavar="S", min=0, help="Seed  [default: the protocol's first]")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. rounds=20 or fedprox.mu=0.1; may be repeated"),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Your own values in TOML; options win over them")]
Manifest = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Use the cut that `suture partition` wrote, for every seed")
]
DataRoot = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of raw datasets  [default: SUTURE_DATA, else the cache folder]")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for all files of it  [default: a new one in runs/]")]
Json = Annotated[str | None, typer.Option(metavar="FILE", help="Also write results as JSON; - prints them, not the table")]
Lines = Annotated[
    bool, typer.Option("--json-lines", help="For programs: progress and result as JSON, an event a line, and nothing else")
]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu or cuda")]
Chunk = Annotated[
    int, typer.Option(metavar="N", min=0, help="Clients computed together, fewer take less memory; 0: automatic")
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=threads_of,
        help="Processor threads, of each job; auto: what is fastest now  [default: auto]",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, help="Runs computed side by side, each in a process of its own; 0: one per core  [default: 1]"
    ),
]
On = Annotated[
    str | None,
    typer.Option(metavar="ray", help="Let Ray compute the runs: ray is this machine, ray://HOST:PORT a cluster"),
]
Commands = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Only write its runs to a file, a command a line, for Slurm or other machines"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print all values and the plan, do nothing")]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="embedded; sealed: the server sees sums only, where a method needs no more; "
        "debug: slow, and an error says where it is from  [default: embedded]",
    ),
]
Record = Annotated[
    bool, typer.Option("--record", help="Keep the content of every message, for `suture attack`; only for your eyes")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:DIR]", help="Also log to tensorboard, mlflow or wandb (offline), without a server; may be repeated"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress")]
Verbose = Annotated[
    bool, typer.Option("--verbose", callback=tell_everything, help="Say on stderr what is done, round by round")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or comparison")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with all details")]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE.py:CLASS", help="A method that this party has beside installed ones; repeatable"),
]
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="Folder of this party's start-up kit")]


def words(text: str) -> tuple[str, ...]:
    """`a, b` to words."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))
