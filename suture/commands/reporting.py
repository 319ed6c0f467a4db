"""`suture report`, `suture plot` and `suture table`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from suture.core.storage import make_folder, write_atomically
from suture.errors import ConfigError, unknown
from suture.report import console, drawing, tabled
from suture.report.figures.figure import Control, Figure
from suture.report.gathering import gather
from suture.report.records import Gathered
from suture.report.report import FIGURES, figure_of, report_page
from suture.report.sheets import ENDINGS, FORMATS, Sheet
from suture.report.writing import PAGE, write_page

LIST = "list"
SAID_AS = {"method": "shown"}
"""What people call a control's field."""


def report(paths: Sequence[Path], out: Path | None, figures: Path | None, form: str | None) -> None:
    """Write the page, and the pictures and tables that were asked for."""
    drawing.vega()
    if form is not None and form not in FORMATS:
        raise unknown("format", form, FORMATS)
    target = out or paths[0] / PAGE
    gathered = gather(paths)
    made = report_page(gathered)
    write_page(made, target)
    screen = console.notes()
    for run in gathered.runs:
        for problem in run.problems:
            screen.print(f"{run.name}: {problem}", soft_wrap=True)
    if figures is not None:
        make_folder(figures)
        for figure in made.figures():
            for kind in ("svg", "png"):
                drawing.write_picture(figure, figures / f"{figure.name}.{kind}")
        screen.print(f"wrote {len(made.figures())} figures as SVG and PNG in {figures}", soft_wrap=True)
    if form is not None:
        folder = figures or target.parent
        for sheet in made.sheets():
            write_atomically(folder / f"{sheet.name}.{ENDINGS[form]}", FORMATS[form](sheet).encode())
        screen.print(f"wrote {len(made.sheets())} tables as {form} in {folder}", soft_wrap=True)
    screen.print(f"wrote {target}; open it in a browser", soft_wrap=True)
    screen.print(f"next, for a paper: suture table {paths[0]} --format latex; suture plot curves {paths[0]}", soft_wrap=True)


def plot(name: str, paths: Sequence[Path], out: Path | None, choose: Sequence[str], dark: bool, title: bool) -> None:
    """Write one figure, or tell which there are."""
    gathered = gather(paths)
    if name == LIST:
        _list(gathered)
        return
    figure = figure_of(name, gathered)
    if figure is None:
        raise ConfigError(f"these runs do not hold what {name} shows; `suture plot list {paths[0]}` tells what can be drawn")
    start = dict(_chosen(figure, text) for text in choose)
    target = out or paths[0] / f"{name}.svg"
    drawing.write_picture(figure, target, "dark" if dark else "light", start, title)
    console.notes().print(f"wrote {target}: {figure.caption}", soft_wrap=True)
    others = {_said(control): control.values for control in figure.controls if len(control.values) > 1}
    for key, values in others.items():
        shown = ", ".join(map(str, values[:12])) + (", ..." if len(values) > 12 else "")
        console.notes().print(f"to choose from: --choose {key}=..., one of {shown}", soft_wrap=True)


def _list(gathered: Gathered) -> None:
    table = console.grid("figure", "what it shows")
    for name in FIGURES:
        figure = FIGURES[name](gathered)
        table.add_row(name, figure.title if figure else "not of these runs: they do not hold what it needs")
    console.results().print(table)


def _said(control: Control) -> str:
    return next((said for said, field in SAID_AS.items() if field == control.field), control.field)


def _chosen(figure: Figure, text: str) -> tuple[str, Any]:
    """`round=5` as the field and the value that a control has for it."""
    key, equals, value = text.partition("=")
    controls = {_said(control): control for control in figure.controls}
    if not equals or key not in controls:
        keys = ", ".join(controls) or "nothing"
        raise ConfigError(f"--choose {text} is not understood; of {figure.name} can be chosen: {keys}, as in KEY=VALUE")
    values = {str(one): one for one in controls[key].values}
    if value not in values:
        raise unknown(key, value, values)
    return controls[key].field, values[value]


def table(paths: Sequence[Path], what: str, form: str, against: str | None, out: Path | None) -> None:
    """Print or write one table."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if what not in tabled.SHEETS:
        raise unknown("table", what, tabled.SHEETS)
    gathered = gather(paths)
    if against is not None and against not in gathered.methods:
        raise unknown("method", against, gathered.methods)
    make = partial(tabled.differences, against=against) if what == "differences" else tabled.SHEETS[what]
    found: Sheet | None = make(gathered)
    if found is None:
        raise ConfigError(
            f"these runs do not hold what the table {what} shows: see how far they are with suture show {paths[0]}"
        )
    text = FORMATS[form](found)
    if out is None:
        console.results().out(text, end="")
    else:
        write_atomically(out, text.encode())
        console.notes().print(f"wrote {out}", soft_wrap=True)
