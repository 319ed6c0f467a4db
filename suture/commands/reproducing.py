"""`suture reproduce`: papers' tables, listed, run and laid beside ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text

from suture.bench.order import Left, left, missing_here
from suture.bench.published import FOLDER, Filter, Table, chosen, read_tables
from suture.bench.reproduce import Bench, Errand, under_way
from suture.bench.reproduced import Run, Store
from suture.bench.work import Options
from suture.commands.request import Work
from suture.commands.stopping import Halt, Stopper
from suture.commands.telling import Teller, telling
from suture.core.storage import write_atomically
from suture.errors import ConfigError, unknown
from suture.report import console, drawing
from suture.report.beside import beside
from suture.report.figures.published import side_by_side
from suture.report.reproduced import Judged, judge
from suture.report.sheets import FORMATS
from suture.report.text import count, duration
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick

LIST = "list"
STORE = Path("reproduced")
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Asked:
    """What to reproduce, and how to show it."""

    tables: tuple[str, ...]
    wanted: Filter = field(default_factory=Filter)
    seeds: tuple[int, ...] | None = None
    budget: float | None = None
    store: Path = STORE
    papers: Path | None = None
    """A folder of other tables, described in the same way."""
    form: str = "text"
    picture: Path | None = None
    show: bool = False
    """Only what is there already."""
    only_plan: bool = False


def seconds_of(text: str) -> float:
    """`2h`, `90min`, `1h30m` as seconds."""
    found = re.fullmatch(r"(?:\d+(?:\.\d+)?(?:min|[smhd]))+", text.replace(" ", ""))
    if not found:
        raise ConfigError(f"--budget must be a time such as 2h, 90min or 1h30m, got {text!r}")
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(min|[smhd])", text.replace(" ", "")))


def start(asked: Asked, work: Work) -> None:
    """List, plan, run and show."""
    known = read_tables(asked.papers or FOLDER)
    store = Store(asked.store)
    if asked.form not in FORMATS:
        raise unknown("format", asked.form, FORMATS)
    here = _here(list(known.values()), work.data_root)
    if not asked.tables or asked.tables == (LIST,):
        _list(list(known.values()), store, here)
        return
    whole = chosen(known, asked.tables)
    tables = asked.wanted.of(whole)
    for table in whole:
        if table.described.nothing:
            console.notes().print(f"{table.name}: {table.described.nothing}", soft_wrap=True)
    order = [] if asked.show else left(tables, store, asked.seeds, lambda name: name in here)
    if asked.only_plan:
        _dry(order, tables, here, asked)
        return
    with telling("reproduce", work.quiet, work.lines) as told:
        if order:
            _carry_out(order, asked, work, store, told)
        _conclude(tables, known, store, here, asked, work, told)


def _here(tables: Sequence[Table], data_root: Path | None) -> list[str]:
    """Graphs that can be read."""
    names = {cell.recipe.dataset for table in tables for cell in table.cells if cell.recipe is not None}
    return [name for name in sorted(names) if not missing_here(name, data_root)]


def _list(tables: Sequence[Table], store: Store, here: Sequence[str]) -> None:
    grid = console.grid("table", "of", "what", "cells", "runnable here", "run")
    for table in tables:
        judged = judge(table, store, here)
        runnable = sum(one.cell.recipe is not None and one.here for one in judged)
        run = sum(bool(one.values) for one in judged)
        counts = [str(len(judged)), str(runnable), str(run)] if judged else ["none", "", ""]
        grid.add_row(table.name, f"{table.paper}, {table.described.printed}", table.described.title, *counts)
    console.results().print(grid)
    console.notes().print(
        "run one with: suture reproduce TABLE, or a paper's name, or all; first what it would do: --dry-run", soft_wrap=True
    )


def _dry(order: Sequence[Left], tables: Sequence[Table], here: Sequence[str], asked: Asked) -> None:
    screen = console.results()
    grid = console.grid("order", "table", "run", "seeds", "roughly", numbers_from=4)
    spent, beyond = 0.0, 0
    for number, one in enumerate(order, 1):
        spent += one.seconds * len(one.seeds)
        beyond += asked.budget is not None and spent > asked.budget
        errand = Errand(one.table, one.recipe, 0, 0.0).name.rpartition(" seed ")[0]
        grid.add_row(str(number), one.table, errand, ",".join(map(str, one.seeds)), duration(one.seconds * len(one.seeds)))
    screen.print(grid)
    runs = sum(len(one.seeds) for one in order)
    screen.print(Text(f"Would do {count(runs, 'run')}, roughly {duration(spent)} of one processor, into {asked.store}."))
    screen.print(Text(RULE))
    if beyond:
        screen.print(Text(f"Roughly the last {count(beyond, 'cell')} would not fit the budget."))
    for why, number in _not_run(tables, here).items():
        screen.print(Text(f"{count(number, 'cell')}: {why}."))


RULE = "First the papers' own methods and what these are ranked against; then cells without results; then cheap ones."


def _not_run(tables: Sequence[Table], here: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in tables:
        for cell in table.cells:
            away = cell.recipe is not None and cell.recipe.dataset not in here
            why = f"the raw files of {cell.printed.dataset} are not here" if away else cell.why_not
            if why:
                found[why] = found.get(why, 0) + 1
    return found


def _carry_out(order: Sequence[Left], asked: Asked, work: Work, store: Store, told: Teller) -> None:
    begun = under_way(store.folder)
    runs = sum(len(one.seeds) for one in order)
    told.note(f"{count(runs, 'run')} to do{f'; {begun} of them were begun before' if begun else ''}")
    with Stopper() as stopper, told.watching(runs) as watch:

        def shown(name: str, seed: int, tick: Tick) -> None:
            stopper.training = True
            watch(name.rpartition(" seed ")[0], seed, tick)

        options = Options(work.data_root, watch=shown, stop=lambda: stopper.asked, jobs=work.at_once)
        try:
            done = Bench(store, options, asked.budget, _telling(told)).carry_out(order)
        except Halt:
            raise Interrupted("stopped at once; the same command goes on") from None
    for sentence in done.failed:
        told.note(f"failed: {sentence}")
    if stopper.asked:
        raise Interrupted(f"stopped with {count(done.left, 'run')} left; the same command goes on")
    if done.left:
        told.note(f"{count(done.left, 'run')} did not fit the budget; the same command goes on with them")


def _telling(told: Teller) -> Callable[[Errand, Run], None]:
    def ended(errand: Errand, run: Run) -> None:
        score = getattr(run, errand.recipe.column)
        told.note(f"{errand.name}: {100 * score:.2f} %, {duration(run.seconds)}")

    return ended


def _conclude(
    tables: Sequence[Table],
    known: dict[str, Table],
    store: Store,
    here: Sequence[str],
    asked: Asked,
    work: Work,
    told: Teller,
) -> None:
    judged = {table.name: judge(table, store, here, known[table.name]) for table in tables}
    text = "\n".join(FORMATS[asked.form](beside(table, judged[table.name])) for table in tables)
    if work.out is not None:
        write_atomically(work.out, text.encode())
        told.note(f"wrote {work.out}")
    if told.events is not None:
        told.result({name: [_content(one) for one in some] for name, some in judged.items()})
    elif work.out is None:
        console.results().out(text, end="")
    if asked.picture is not None:
        _draw(tables, judged, asked.picture, told)


def _draw(tables: Sequence[Table], judged: dict[str, list[Judged]], target: Path, told: Teller) -> None:
    for table in tables:
        figure = side_by_side(table, judged[table.name])
        path = target if len(tables) == 1 else target.with_stem(f"{target.stem}-{table.name}")
        if figure is None:
            told.note(f"{table.name}: nothing of it was run, so there is nothing to draw")
            continue
        drawing.write_picture(figure, path, titled=True)
        told.note(f"wrote {path}: {figure.caption}")


def _content(one: Judged) -> dict[str, object]:
    printed = one.cell.printed
    return {
        "dataset": printed.dataset,
        "clients": printed.clients,
        "method": printed.method,
        "variant": printed.variant,
        "metric": printed.metric,
        "published": printed.mean,
        "published_deviation": printed.std,
        "note": printed.note,
        "ours": one.mean,
        "deviation": one.deviation,
        "seeds": {str(run.seed): value for run, value in zip(one.runs, one.values, strict=True)},
        "gap": one.gap,
        "gap_in_deviations": one.deviations,
        "verdict": one.verdict,
        "near": one.is_near,
        "missing": one.missing,
        "command": one.command,
        "seconds": one.seconds,
        "megabytes": one.megabytes,
        "rankings": [
            {
                "against": ranking.against,
                "published": ranking.published,
                "ours": ranking.gain.mean if ranking.gain else None,
                "p": ranking.p,
                "plain_p": ranking.plain_p,
                "holds": ranking.holds,
            }
            for ranking in one.rankings
        ],
    }
