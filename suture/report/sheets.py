"""Tables for people and papers: cells once, written as text, Markdown, CSV, LaTeX or HTML.

The best of a column is bold, the second best underlined, as papers do. CSV holds the numbers themselves, not their texts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from suture.report.html import Html, el

Mark = Literal["", "best", "second"]
Value = float | int | str | None


@dataclass(frozen=True)
class Cell:
    """What people read, and the value behind it."""

    text: str
    value: Value = None
    mark: Mark = ""

    @staticmethod
    def of(thing: object) -> Cell:
        """A cell without a number behind its text."""
        return thing if isinstance(thing, Cell) else Cell(str(thing), str(thing))


@dataclass(frozen=True)
class Sheet:
    """A table."""

    name: str
    """For files: lower-case letters, digits and dashes."""
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers_from: int = 1
    """Columns from here on are numbers."""
    numbers_to: int = 1000
    by_method: bool = False
    """The first column names methods, so that a page's legend hides rows."""

    @staticmethod
    def of(
        name: str,
        caption: str,
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        numbers_from: int = 1,
        numbers_to: int = 1000,
        by_method: bool = False,
    ) -> Sheet:
        """Of texts and cells."""
        cells = tuple(tuple(Cell.of(thing) for thing in row) for row in rows)
        return Sheet(name, caption, tuple(header), cells, numbers_from, numbers_to, by_method)

    def is_number(self, column: int) -> bool:
        """Whether a column is aligned to the right."""
        return self.numbers_from <= column < self.numbers_to


def ranked(values: Sequence[float | None], sign: float, leave_out: Sequence[int] = ()) -> list[Mark]:
    """Which of a column is best and which second; equal ones share a mark. Among fewer than two there is no rank."""
    known = {place: sign * value for place, value in enumerate(values) if value is not None and place not in leave_out}
    marks: list[Mark] = [""] * len(values)
    if len(known) < 2:
        return marks
    order = sorted(set(known.values()), reverse=True)
    for place, value in known.items():
        marks[place] = "best" if value == order[0] else "second" if len(order) > 1 and value == order[1] else ""
    return marks


def as_html(sheet: Sheet) -> Html:
    """A real table with a caption and headings."""
    head = [el("th", title, scope="col", class_=_class(sheet, place)) for place, title in enumerate(sheet.header)]
    body = []
    for row in sheet.rows:
        cells = [
            el("th", cell.text, scope="row") if place == 0 else el("td", cell.text, class_=_class(sheet, place, cell))
            for place, cell in enumerate(row)
        ]
        body.append(el("tr", *cells, data_method=row[0].value if sheet.by_method else None))
    table = el("table", el("caption", el("span", sheet.caption)), el("thead", el("tr", *head)), el("tbody", *body))
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=sheet.caption)


LONG = 60


def _class(sheet: Sheet, place: int, cell: Cell | None = None) -> str | None:
    names = ["number"] if sheet.is_number(place) else []
    names += [cell.mark] if cell is not None and cell.mark else []
    names += ["long"] if cell is not None and len(cell.text) > LONG else []
    return " ".join(names) or None


def as_markdown(sheet: Sheet) -> str:
    """A pipe table."""
    marks = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    lines = [_pipes(sheet.header)]
    lines.append(_pipes(["---:" if sheet.is_number(place) else "---" for place in range(len(sheet.header))]))
    lines += [_pipes([marks[cell.mark].format(_markdown(cell.text)) for cell in row]) for row in sheet.rows]
    return f"{_markdown(sheet.caption)}\n\n" + "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_csv(sheet: Sheet) -> str:
    """The numbers, with every digit there is. A text that a spreadsheet would compute is quoted by an apostrophe."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([_plain(title) for title in sheet.header])
    for row in sheet.rows:
        writer.writerow([_plain(cell.value) for cell in row])
    return target.getvalue()


def _plain(value: Value) -> Value:
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return "" if value is None else value


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
LATEX |= {"≥": r"$\geq$", "≤": r"$\leq$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "−": "$-$"}
LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def as_latex(sheet: Sheet) -> str:
    """A table for `booktabs`."""
    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
    layout = "".join("r" if sheet.is_number(place) else "l" for place in range(len(sheet.header)))
    rows = [" & ".join(marks[cell.mark].format(_latex(cell.text)) for cell in row) + r" \\" for row in sheet.rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(sheet.caption)}}}",
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            " & ".join(_latex(title) for title in sheet.header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def as_text(sheet: Sheet) -> str:
    """Columns of a terminal; the best has a star, the second best a plus."""
    marks = {"best": "*", "second": "+", "": " "}
    marked = any(cell.mark for row in sheet.rows for cell in row)
    lines = [list(sheet.header), *([cell.text + (marks[cell.mark] if marked else "") for cell in row] for row in sheet.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(sheet.header))]
    aligned = [
        "  ".join(
            text.rjust(width) if sheet.is_number(place) else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    key = ["* best, + second best"] if marked else []
    return "\n".join([sheet.caption, "", *aligned, *key]) + "\n"


FORMATS: Mapping[str, Callable[[Sheet], str]] = {"text": as_text, "md": as_markdown, "csv": as_csv, "latex": as_latex}
ENDINGS = {"text": "txt", "md": "md", "csv": "csv", "latex": "tex"}
