"""A paper's table with ours beside it: as a sheet for every format, as a line of words, as a compact page of docs."""

from __future__ import annotations

from collections.abc import Sequence

from suture.bench.published import Printed, Table
from suture.report.reproduced import PERCENT, Judged, Ranking
from suture.report.sheets import Cell, Sheet
from suture.report.text import NOTHING, count, megabytes, three_digits

HEADER = (
    "graph",
    "clients",
    "method",
    "variant",
    "paper",
    "ours",
    "seeds",
    "gap",
    "in dev.",
    "reached",
    "ranking",
    "s",
    "MB",
)
YES = {True: "yes", False: "no", None: NOTHING}


def beside(table: Table, judged: Sequence[Judged]) -> Sheet:
    """A row a published number."""
    rows = [_row(one) for one in judged]
    name = f"{table.described.printed} of {table.paper}, {table.described.title}"
    odd = dict.fromkeys(one.cell.printed.odd for one in judged if one.cell.printed.odd)
    notes = [table.described.note, *(f"! {text}." for text in odd)]
    caption = " ".join(filter(None, [f"{name}. {said(judged)}", *notes]))
    return Sheet.of(table.name, caption, HEADER, rows, numbers_from=4, numbers_to=10)


def _row(one: Judged) -> list[object]:
    printed = one.cell.printed
    row: list[object] = [printed.dataset, _clients(printed), one.cell.row, printed.variant or NOTHING]
    row.append(Cell(spread(printed.mean, printed.std, printed) + ("!" if printed.odd else ""), printed.mean))
    if not one.values:
        return [*row, one.missing, *([NOTHING] * 7)]
    gap = Cell(f"{_scaled(one.gap, printed):+.2f}", one.gap) if one.gap is not None else Cell(NOTHING)
    deviations = Cell(f"{one.deviations:+.1f}", one.deviations) if one.deviations is not None else Cell(NOTHING)
    row += [Cell(spread(one.mean, one.deviation, printed), one.mean), Cell(str(len(one.values)), len(one.values))]
    row += [gap, deviations, {"reached": "yes", "short": "no", "open": NOTHING}[one.verdict], rankings(one)]
    row.append(Cell(three_digits(one.seconds), one.seconds) if one.seconds is not None else NOTHING)
    row.append(Cell(megabytes(1e6 * one.megabytes), one.megabytes) if one.megabytes is not None else NOTHING)
    return row


def rankings(one: Judged) -> str:
    """`above fedavg by 3.20 (p 0.01), holds`, for each row it is ranked against."""
    return "; ".join(_ranked(ranking) for ranking in one.rankings) or NOTHING


def _ranked(one: Ranking) -> str:
    if one.gain is None:
        return f"{one.against}: not run"
    p = "one seed" if one.p is None else f"p {one.p:.2g}"
    verdict = {True: "holds", False: "turned", None: "not printed"}[one.holds]
    return f"{one.against} {100 * one.gain.mean:+.2f} ({p}), {verdict}"


def _clients(printed: Printed) -> str:
    return NOTHING if printed.clients is None else "uncut" if printed.clients == 1 else str(printed.clients)


def _scaled(value: float | None, printed: Printed) -> float:
    return (value or 0.0) * (1.0 if printed.metric in PERCENT else 100.0)


def spread(mean: float | None, deviation: float | None, printed: Printed) -> str:
    """Mean and deviation in percent."""
    if mean is None:
        return NOTHING
    alone = f"{_scaled(mean, printed):.2f}"
    return alone if deviation is None else f"{alone} ±{_scaled(deviation, printed):.2f}"


def said(judged: Sequence[Judged]) -> str:
    """How much of a table is reached."""
    run = [one for one in judged if one.verdict != "open"]
    reached = sum(one.verdict == "reached" for one in run)
    ranked = [ranking.holds for one in judged for ranking in one.rankings if ranking.holds is not None]
    words = [f"{count(len(run), 'cell')} of {len(judged)} run"] if len(run) < len(judged) else [f"{len(run)} cells"]
    if run:
        words.append(f"{reached} reach the published mean minus one deviation or one point")
    if ranked:
        words.append(f"{sum(ranked)} of {len(ranked)} rankings of the paper's own methods hold")
    return f"{', '.join(words)}."


def docs(table: Table, judged: Sequence[Judged]) -> list[str]:
    """A table of docs: rows are methods, columns numbers of clients, ours beside the paper's; only what was run."""
    lines: list[str] = []
    run = [one for one in judged if one.values]
    for dataset in dict.fromkeys(one.cell.printed.dataset for one in run):
        some = [one for one in run if one.cell.printed.dataset == dataset]
        columns = list(dict.fromkeys(_column(one) for one in some))
        heads = "".join(f" {_titled(column)} | paper |" for column in columns)
        lines += [f"**{dataset}**", "", f"| method |{heads}", f"|---|{'---:|---:|' * len(columns)}"]
        for row in dict.fromkeys(_named(one) for one in some):
            cells = {_column(one): one for one in some if _named(one) == row}
            shown = "".join(f" {_ours(cells.get(column), table)} | {_theirs(cells.get(column))} |" for column in columns)
            lines.append(f"| {row} |{shown}")
        lines.append("")
    return lines


def _column(one: Judged) -> tuple[str, int | None, str]:
    printed = one.cell.printed
    return printed.setting, printed.clients, printed.metric


def _titled(column: tuple[str, int | None, str]) -> str:
    _, clients, metric = column
    size = "uncut" if clients == 1 else f"{clients} clients"
    return size if metric in ("accuracy", "roc_auc") else f"{size}, {metric.replace('_pct', ' %').replace('_', ' ')}"


def _named(one: Judged) -> str:
    printed = one.cell.printed
    return f"{printed.method}, {printed.variant}" if printed.variant else printed.method


def _ours(one: Judged | None, table: Table) -> str:
    if one is None or one.mean is None:
        return ""
    text = spread(one.mean, one.deviation, one.cell.printed).replace("±", "± ")
    short = f"**{text}**" if one.verdict == "short" and one.cell.row in table.about.own else text
    return short if len(one.values) >= len(table.seeds) else f"{short} ({count(len(one.values), 'seed')})"


def _theirs(one: Judged | None) -> str:
    return "" if one is None or one.cell.printed.mean is None else f"{_scaled(one.cell.printed.mean, one.cell.printed):.2f}"


def misprints(printed: Sequence[Printed]) -> list[str]:
    """A line for each thing that is odd in print, and the cells it is about."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in printed:
        if one.odd:
            cell = f"{one.method}, {one.dataset}, {one.clients}"
            found.setdefault((one.paper, one.table, one.odd), []).append(cell)
    lines = ["| paper | table | method, graph, clients | what is odd |", "|---|---|---|---|"]
    for (paper, table, odd), cells in found.items():
        some = "; ".join(dict.fromkeys(cells)) if len(cells) <= MOST_CELLS else f"{len(cells)} cells"
        lines.append(f"| {paper} | {table} | {some} | {odd} |")
    return lines


MOST_CELLS = 4
SUMMARY = ("method", "table", "cells", "run", "reached", "near", "rankings that hold", "of them p < 0.05", "plain t")
SURE = 0.05


def summary(headline: Sequence[tuple[str, Table, Sequence[Judged]]]) -> list[str]:
    """A line a method of a paper's own: of its cells, how many were run, are reached, and are ranked as in the paper."""
    rows = []
    for row, table, judged in headline:
        cells = [one for one in judged if one.cell.row == row]
        run = [one for one in cells if one.verdict != "open"]
        reached, near = sum(one.verdict == "reached" for one in run), sum(bool(one.is_near) for one in run)
        known = [ranking for one in cells for ranking in one.rankings if ranking.holds is not None]
        held = [ranking for ranking in known if ranking.holds]
        sure, plain = (
            sum(p is not None and p < SURE for p in ps) for ps in ([r.p for r in held], [r.plain_p for r in held])
        )
        rows.append((row, table.name, len(cells), len(run), reached, near, f"{len(held)} of {len(known)}", sure, plain))
    totals = [sum(int(str(row[place])) for row in rows) for place in range(2, 6)]
    lines = [("all", "", *totals, "", sum(int(row[7]) for row in rows), sum(int(row[8]) for row in rows))]
    written = [f"| {' | '.join(map(str, row))} |" for row in (SUMMARY, *rows, *lines)]
    return [written[0], f"|---|---|{'---:|' * (len(SUMMARY) - 2)}", *written[1:]]
