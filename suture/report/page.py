"""One self-contained HTML file: sections of words, tables and figures, with the script that draws them.

It opens without a network. Its Content-Security-Policy lets through the scripts and the style that were put into it, by
their hashes, and loads nothing; Vega runs in its interpreter (`ast`), which needs no `eval`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from suture.report import drawing, theme
from suture.report.figures.figure import Control, Figure
from suture.report.html import Html, el, hashed, json_script, together
from suture.report.sheets import Sheet, as_html

NOTICE = (
    "Made by Suture. Figures are drawn by Vega, Vega-Lite and vega-embed, which are part of this file: copyright University "
    "of Washington Interactive Data Lab and others, BSD 3-Clause licence."
)


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    kind: str = ""
    """lead, soft or problem."""


@dataclass(frozen=True)
class Listed:
    """Sentences one below the other, behind a heading that opens them if there is one."""

    sentences: tuple[str, ...]
    folded: str = ""


@dataclass(frozen=True)
class Folded:
    """Parts behind a heading that opens them."""

    title: str
    parts: tuple[Part, ...]


Part = Words | Listed | Folded | Sheet | Figure


@dataclass(frozen=True)
class Section:
    """A part of a page, with an address of its own."""

    name: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    methods: tuple[str, ...] = ()
    """In the legend."""

    def figures(self) -> list[Figure]:
        """All of them, in order."""
        return [part for section in self.sections for part in _flat(section.parts) if isinstance(part, Figure)]

    def sheets(self) -> list[Sheet]:
        """All of them, in order."""
        return [part for section in self.sections for part in _flat(section.parts) if isinstance(part, Sheet)]


def _flat(parts: Sequence[Part]) -> list[Part]:
    return [one for part in parts for one in (_flat(part.parts) if isinstance(part, Folded) else [part])]


@cache
def asset(name: str) -> str:
    """A file of `assets/`."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def settings() -> dict[str, object]:
    """What report.js must know of the theme."""
    return {"light": theme.config("light"), "dark": theme.config("dark"), "swaps": theme.swaps()}


def written(page: Page) -> str:
    """The file."""
    scripts, style = [drawing.script(), asset("report.js")], asset("style.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(hashed(script) for script in scripts)}",
            # Vega sets sizes and colours of what it draws as style attributes; these can load nothing under this policy.
            "style-src 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", page.title),
        el("style", Html(style)),
    )
    contents = el(
        "nav",
        el("ul", *(el("li", el("a", section.title, href=f"#{section.name}")) for section in page.sections)),
        aria_label="Contents",
    )
    body = el(
        "body",
        el("a", "Skip to the results", class_="skip", href="#main"),
        el(
            "div",
            el("header", el("h1", page.title), *(el("p", text, class_="lead") for text in page.lead), contents),
            bar(page.methods),
            el("main", *(shown_section(section) for section in page.sections), id="main"),
            el("footer", el("p", NOTICE, class_="soft")),
            class_="page",
        ),
        json_script(settings(), id="settings"),
        *(el("script", Html(script)) for script in scripts),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def bar(methods: Sequence[str]) -> Html:
    """The legend of all figures, and the choice of light or dark."""
    styles = theme.styles_of(methods)
    boxes = [
        el("label", el("input", type="checkbox", checked="", data_method=method), swatch(styles[method]), el("span", method))
        for method in methods
    ]
    legend = [el("fieldset", el("legend", "Methods"), el("div", *boxes, class_="boxes"))] if methods else []
    choice = el(
        "label",
        "Theme ",
        el(
            "select",
            *(el("option", name.capitalize(), value=name) for name in ("auto", "light", "dark")),
            data_theme_choice="",
        ),
        class_="right",
    )
    return el("div", *legend, choice, class_="bar", role="region", aria_label="Legend and theme")


def swatch(style: theme.Style) -> Html:
    """A line and a point as figures draw a method."""
    dash = None if style.dash == tuple(theme.SOLID) else " ".join(map(str, style.dash))
    drawn = []
    for mode, colour in (("light", style.colour), ("dark", theme.swaps()[style.colour])):
        drawn += [
            el("line", x1=0, y1=5, x2=26, y2=5, stroke=colour, stroke_width=2.5, stroke_dasharray=dash, class_=mode),
            el("path", d=theme.OUTLINES[style.shape], fill=colour, class_=mode),
        ]
    return el("svg", *drawn, class_="swatch", viewBox="0 0 26 10", aria_hidden="true")


def shown_section(section: Section) -> Html:
    """A heading and its parts; figures that follow each other stand side by side where there is room."""
    shown: list[Html] = []
    row: list[Html] = []
    for part in (*section.parts, None):
        if isinstance(part, Figure):
            row.append(shown_figure(part))
            continue
        if row:
            shown.append(el("div", *row, class_="figures"))
            row = []
        if part is not None:
            shown.append(shown_part(part))
    return el("section", el("h2", section.title), *shown, id=section.name)


def shown_part(part: Part) -> Html:
    """Anything that a section holds."""
    if isinstance(part, Words):
        return el("p", part.text, class_=part.kind or None)
    if isinstance(part, Listed):
        sentences = el("ul", *(el("li", sentence) for sentence in part.sentences), class_="notes")
        return el("details", el("summary", part.folded), sentences) if part.folded else sentences
    if isinstance(part, Folded):
        return el("details", el("summary", part.title), *(shown_part(one) for one in part.parts))
    return as_html(part) if isinstance(part, Sheet) else shown_figure(part)


def shown_figure(figure: Figure) -> Html:
    """A figure with its title, choices, words, and the data that report.js draws."""
    label = f"{figure.name}-title"
    choices = [_choice(figure, control) for control in figure.controls if len(control.values) > 1]
    return el(
        "figure",
        el("h3", figure.title, id=label),
        *([el("div", *choices, class_="choices")] if choices else []),
        el("div", class_="stage", role="img", aria_label=f"{figure.title}. {figure.alternative}"),
        el("figcaption", figure.caption),
        json_script(figure.as_json()),
        data_figure=figure.name,
        aria_labelledby=label,
        class_="wide" if figure.wide else None,
    )


def _choice(figure: Figure, control: Control) -> Html:
    name = f"{figure.name}-{control.field}"
    if control.kind == "range":
        slider = el(
            "input",
            type="range",
            id=name,
            min=0,
            max=len(control.values) - 1,
            value=control.start,
            data_field=control.field,
        )
        return el("label", f"{control.label} ", slider, el("output", str(control.values[control.start]), for_=name))
    options = [
        el("option", str(value), value=place, selected="" if place == control.start else None)
        for place, value in enumerate(control.values)
    ]
    return el("label", f"{control.label} ", el("select", *options, id=name, data_field=control.field))


def fragments(figures: Sequence[Figure]) -> Html:
    """Figures without a page around them, for one that has report.js already."""
    return together(*(shown_figure(figure) for figure in figures))


def as_json(figure: Figure) -> str:
    """A figure as report.js takes it from a server."""
    return json.dumps(figure.as_json(), separators=(",", ":"), allow_nan=False)
