"""Options and help of `suture report`, `suture plot` and `suture table`; what they do is in `suture.commands.reporting`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands.registering import command

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs or comparisons, finished or not")]
Against = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="What others are compared with, paired by seed  [default: local, else the first]"),
]
Dark = Annotated[bool, typer.Option("--dark", help="For a dark page")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    command(
        app,
        "report",
        "suture report runs/mine",
        "suture report runs/mine runs/other --out both.html",
        "suture report runs/mine --figures pictures --format latex",
    )(report)
    command(
        app,
        "plot",
        "suture plot list runs/mine",
        "suture plot curves runs/mine --out curves.svg",
        "suture plot confusion runs/mine --choose method=fedpub --out confusion.pdf",
        "suture plot similarity runs/mine/fedpub-seed0 --choose round=5",
    )(plot)
    command(
        app,
        "table",
        "suture table runs/mine",
        "suture table runs/mine --format latex --out table.tex",
        "suture table runs/mine --what differences --against fedavg --format csv",
    )(table)


def report(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Page to write  [default: report.html in the folder]")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every figure there, as SVG and PNG")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Also write every table, as md, csv, latex or text")
    ] = None,
) -> None:
    """Write one page that shows all there is to see of runs.

    Results with paired differences, learning curves, the cut graph, traffic, privacy, what went on inside the methods, and
    all that was asked and assumed. One HTML file that opens without a network; methods are switched on and off by their
    names, rounds by a slider. Tables go beside the page, or beside the figures.
    """
    from suture.commands import reporting

    reporting.report(runs, out, figures, form)


def plot(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="Its name; `list` tells what there is to draw")],
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=".svg, .png or .pdf  [default: FIGURE.svg in the folder]")
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What a page lets you choose: method=fedpub, round=5; may be repeated"),
    ] = None,
    dark: Dark = False,
    title: Annotated[bool, typer.Option("--title", help="Write the figure's title above it")] = False,
) -> None:
    """Draw one figure of runs, for a paper or a talk.

    With bands of one deviation over seeds, and every method in the colour it has everywhere.
    """
    from suture.commands import reporting

    reporting.plot(figure, runs, out, choose or [], dark, title)


def table(
    runs: Runs,
    what: Annotated[
        str, typer.Option(metavar="NAME", help="results, differences, metrics, runs, sent, privacy, attacks, settings")
    ] = "results",
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="text, md, csv or latex")] = "text",
    against: Against = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write  [default: print it]")] = None,
) -> None:
    """Print one table of runs, for a paper.

    Mean ± sample deviation over seeds, the best bold and the second best underlined; differences are paired by seed, with
    95 % intervals. CSV holds the numbers with all their digits.
    """
    from suture.commands import reporting

    reporting.table(runs, what, form, against, out)
