"""Options and help of the research bench: `suture merge`, `tune`, `reproduce`, `share`, `rerun`; the work is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command

Pieces = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Folders of runs or comparisons, or folders that hold some of either")
]
NewFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the comparison they become")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    command(
        app,
        "merge",
        "suture merge runs/seeds-0-4 runs/seeds-5-9 --out runs/all",
        "suture merge runs/array --out runs/all",
    )(merge)
    command(
        app,
        "tune",
        "suture tune --methods fedavg,fedprox --dataset cora --trials 20 --out tuned",
        "suture tune --methods fedavg --search training.moments=own,averaged --search training.lr=0.001..0.1",
        "suture compare --protocol tuned/tuned.toml --methods fedavg,fedprox",
    )(tune)
    command(
        app,
        "reproduce",
        "suture reproduce",
        "suture reproduce fedpub-table-2 --dataset cora,citeseer --methods local,fedavg,fedpub --jobs 2",
        "suture reproduce fedsage --budget 2h",
        "suture reproduce fedpub-table-2 --show --format latex --out table.tex",
    )(reproduce)
    command(
        app,
        "share",
        "suture share runs/mine --out mine.zip",
        "suture share runs/own --out own.zip --with-data",
    )(share)
    command(
        app,
        "rerun",
        "suture rerun mine.zip",
        "suture rerun own.zip --data graph --out runs/again --jobs 2",
    )(rerun)


def merge(runs: Pieces, out: NewFolder, json: opt.Json = None, lines: opt.Lines = False, quiet: opt.Quiet = False) -> None:
    """Make one comparison of runs that were computed in pieces.

    Pieces may be other seeds, other methods, or come from other machines. What does not fit together is refused: another
    graph, another cut, other values, the same run with other numbers. What is missing, `suture resume` computes.
    """
    from suture.commands.merging import merge_runs

    merge_runs(runs, out, json, quiet, lines)


def tune(
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Methods, each searched for itself  [default: fedavg]")
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", min=2, help="For each method; the first is of the protocol's own values")
    ] = 20,
    search_seeds: Annotated[
        str, typer.Option(metavar="100,101", help="Seeds of the search; others than those that are reported")
    ] = "100,101",
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=SPACE",
            help="Also search this: training.lr=0.001..0.1, fedprox.mu=0,0.1,1; may be repeated; see: suture methods NAME",
        ),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Search nothing but what --search names")] = False,
    protocol: opt.ProtocolName = None,
    dataset: opt.Dataset = None,
    data: opt.GraphFolder = None,
    clients: opt.Clients = None,
    overrides: opt.Overrides = None,
    config: opt.Config = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    lines: opt.Lines = False,
    chunk: opt.Chunk = 0,
    threads: opt.Threads = None,
    jobs: opt.Jobs = 1,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Search for better values of methods, on validation alone, with the same budget for each.

    Writes a protocol file with what was found, in which every value says where it comes from. The test is not read: graphs
    of a search have no test nodes, and its seeds are none of those that are reported. The same command goes on with a search
    that was stopped.
    """
    from suture.commands import request, tuning

    asked = request.Request(
        protocol=protocol,
        dataset=dataset,
        data=data,
        clients=clients,
        methods=opt.words(methods) if methods is not None else None,
        overrides=tuple(overrides or ()),
        config=config,
    )
    work = request.Work(data_root, out, json, "cpu", chunk, threads, quiet, lines=lines, jobs=jobs)
    tuning.start(asked, work, trials, request.numbers(search_seeds, "--search-seeds"), tuple(search or ()), only)


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="fedpub-table-2, all of a paper (fedpub), or all; none: list them"),
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="A,B", help="Only these graphs")] = None,
    clients: Annotated[str | None, typer.Option(metavar="5,10", help="Only these numbers of clients")] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these rows, as the paper or Suture names them")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Seeds  [default: as many as the paper repeats]")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="2h", help="Begin no run that would take longer than what is left of it")
    ] = None,
    store: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results, a file a table; what is there is not run again")
    ] = Path("reproduced"),
    papers: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Tables of your own, described as those of suture/published")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="text, md, csv or latex")] = "text",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File for the tables  [default: print them]")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw them: .svg, .png or .pdf")] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show what is there")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which runs would be done, in which order")] = False,
    data_root: opt.DataRoot = None,
    lines: opt.Lines = False,
    jobs: opt.Jobs = 1,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Run the tables of the five papers again, and lay ours beside them.

    Says of each cell whether the published mean is reached, and whether the paper's ranking holds, paired by seed. The most
    informative runs come first: the paper's own methods and what they are ranked against, cells without results, cheap
    ones. The same command goes on with what was stopped; finished runs are never repeated.
    """
    from suture.bench.published import Filter
    from suture.commands import reproducing, request

    wanted = Filter(
        opt.words(dataset) if dataset is not None else None,
        request.numbers(clients, "--clients") if clients is not None else None,
        opt.words(methods) if methods is not None else None,
    )
    asked = reproducing.Asked(
        tuple(tables or ()),
        wanted,
        request.numbers(seeds, "--seeds") if seeds is not None else None,
        reproducing.seconds_of(budget) if budget is not None else None,
        store,
        papers,
        form,
        picture,
        show,
        dry_run,
    )
    reproducing.start(asked, request.Work(data_root, out, quiet=quiet, lines=lines, jobs=jobs))


def share(
    run: opt.RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.zip", help="File to write")],
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Also put your own graph into it: features, edges, labels, names")
    ] = False,
) -> None:
    """Put a run or comparison into one file that others run again.

    Configuration, cuts, versions, hashes and all numbers are in it; models and messages are not. A graph of your own is not
    in it either, unless you say so: whoever reruns it must have it already.
    """
    from suture.commands.sharing import share_run

    share_run(run, out, with_data)


def rerun(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="What `suture share` wrote")],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="The graph, if it is somebody's own and not in the file"),
    ] = None,
    data_root: opt.DataRoot = None,
    out: opt.Out = None,
    json: opt.Json = None,
    lines: opt.Lines = False,
    jobs: opt.Jobs = 1,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Compute again what somebody has shared, and say whether it comes to the same numbers.

    Uses the cuts, values, threads and chunks of the file. Exit code 0: every number is the same; 1: some differ, and by how
    much is printed.
    """
    from suture.commands import request
    from suture.commands.sharing import rerun_file

    if not rerun_file(file, data, request.Work(data_root, out, json, quiet=quiet, jobs=jobs, lines=lines)):
        raise typer.Exit(1)
