"""`suture methods`."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from suture.config.space import Spaces, spaces_of
from suture.config.strict import in_words
from suture.method import Method
from suture.methods import DOOR, own_fields
from suture.report import console
from suture.report.docs import field_docs
from suture.runs.handed import let_in_named


def show_methods(name: str | None) -> None:
    """All methods in a table, or one of them with its hyper-parameters."""
    screen = console.results()
    if name is None:
        table = console.grid("method", "what it does", "without edges", "paper")
        found, complaints = DOOR.survey()
        for complaint in complaints:
            console.notes().print(Text(f"warning: {complaint}"), soft_wrap=True)
        for method in found.values():
            table.add_row(method.name, method.summary, _graphless(method), _paper(method) or "baseline")
        screen.print(table)
        screen.print("\nWithout edges: whether clients that have features only can take part.")
        screen.print("Hyper-parameters of one of them, or of one of your own: suture methods NAME or FILE.py:CLASS")
        return
    let_in_named(methods=[name])
    method = DOOR.find(name)
    screen.print(Text(f"{method.name}: {method.summary}", style="bold"))
    if _paper(method):
        screen.print(_paper(method))
    personal = "one model serves everybody" if method.one_model else "every client ends with its own model"
    edges = {
        "yes": "clients without edges can take part",
        "no": "clients without edges cannot take part",
        "shown them": "it is shown the edges that were hidden from clients",
    }
    screen.print(f"{personal}; {edges[_graphless(method)]}.".capitalize())
    screen.print()
    own, docs = own_fields(method), field_docs(method)
    fields = [field for field in dataclasses.fields(method) if field.name in own]
    spaces = spaces_of(method, own)
    if not fields:
        screen.print("It has no hyper-parameters of its own; the protocol sets its model and training.")
        _print_spaces(spaces)
        return
    table, kinds = console.grid("hyper-parameter", "may be", "default", "meaning"), in_words(method)
    for field in fields:
        table.add_row(field.name, kinds[field.name], str(field.default), docs.get(field.name, ""))
    screen.print(table)
    screen.print(f"\nSet one with: --set {method.name}.{fields[0].name}={fields[0].default}")
    _print_spaces(spaces)


def _print_spaces(spaces: Spaces) -> None:
    """Where `suture tune` looks."""
    screen = console.results()
    table = console.grid("searched by suture tune", "in")
    for key, space in spaces.items():
        table.add_row(key, str(space))
    screen.print()
    screen.print(table)


def _graphless(method: type[Method[Any, Any]]) -> str:
    """Whether graphless clients can take part, in a word."""
    if method.sees_hidden_edges or method.sees_uncut_graph:
        return "shown them"
    return "yes" if method.accepts_graphless else "no"


def _paper(method: type[Method[Any, Any]]) -> str:
    """Its own paper, not that of a method it builds upon."""
    return str(vars(method).get("paper", ""))
