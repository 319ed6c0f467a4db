"""`suture protocols`; needs no torch, and so answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_type_hints

from rich.text import Text

from suture.config.layers import Layer, load_protocol, protocol_names
from suture.report import console
from suture.report.docs import field_docs
from suture.runs.handed import let_in_named
from suture.settings import Protocol


def show_protocols(name: str | None) -> None:
    """All protocols in a table, or one of them with every value it sets."""
    screen = console.results()
    if name is None:
        table = console.grid("protocol", "what it is")
        for known in protocol_names():
            table.add_row(known, str(load_protocol(known).base.values.get("description", "")))
        screen.print(table)
        screen.print("\nEvery value of one of them: suture protocols NAME")
        return
    let_in_named(protocol=name)
    raw = load_protocol(name)
    screen.print(Text(str(raw.base.values["name"]), style="bold"))
    screen.print(str(raw.base.values.get("description", "")))
    screen.print()
    table = console.grid("setting", "value", "meaning")
    kinds = get_type_hints(Protocol)
    section = ""
    for setting, value in _flat(raw.base.values):
        first, _, key = setting.rpartition(".")
        if first != section:
            table.add_row(Text(f"[{first}]", style="bold"))
            section = first
        docs = field_docs(kinds.get(first, Protocol))
        table.add_row(key, value, docs.get(key, ""))
    screen.print(table)
    _print_exceptions(raw.base, raw.datasets)


def _print_exceptions(base: Layer, datasets: Mapping[str, Layer]) -> None:
    rows = [("every", *pair) for pair in _flat({"methods": base.methods})]
    for dataset, layer in datasets.items():
        rows += [(dataset, *pair) for pair in _flat({**layer.values, "methods": layer.methods})]
    if not rows:
        return
    table = console.grid("dataset", "setting", "value")
    for row in rows:
        table.add_row(*row)
    screen = console.results()
    screen.print()
    screen.print(console.titled("Other values for some methods or datasets", table))


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Settings by their dotted names, without the name and description every protocol has."""
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        elif prefix or key not in ("name", "description"):
            pairs.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs
