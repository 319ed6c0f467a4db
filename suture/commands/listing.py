"""`suture methods`, `suture protocols` and `suture data`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from rich.text import Text

from suture.config import Layer, load_protocol, protocol_names
from suture.graph import datasets
from suture.method import Method
from suture.methods import METHODS, method_class, own_fields
from suture.report import console
from suture.report.docs import field_docs
from suture.report.text import byte_size
from suture.settings import Protocol


def methods(name: str | None) -> None:
    """All methods in a table, or one of them with its hyper-parameters."""
    screen = console.results()
    if name is None:
        table = console.grid("method", "what it does", "paper")
        for method in METHODS.values():
            table.add_row(method.name, method.summary, _paper(method) or "baseline")
        screen.print(table)
        screen.print("\nHyper-parameters of one of them: suture methods NAME")
        return
    method = method_class(name)
    screen.print(Text(f"{method.name}: {method.summary}", style="bold"))
    if _paper(method):
        screen.print(_paper(method))
    personal = "one model serves everybody" if method.one_model else "every client ends with its own model"
    edges = "can take part" if method.accepts_graphless else "cannot take part"
    screen.print(f"{personal}; clients without edges {edges}.".capitalize())
    screen.print()
    own, docs = own_fields(method), field_docs(method)
    fields = [field for field in dataclasses.fields(method) if field.name in own]
    if not fields:
        screen.print("It has no hyper-parameters of its own; the protocol sets its model and training.")
        return
    table = console.grid("hyper-parameter", "type", "default", "meaning")
    for field in fields:
        kind = field.type if isinstance(field.type, str) else field.type.__name__
        table.add_row(field.name, kind, str(field.default), docs.get(field.name, ""))
    screen.print(table)
    screen.print(f"\nSet one with: --set {name}.{fields[0].name}={fields[0].default}")


def _paper(method: type[Method[Any, Any]]) -> str:
    """Its own paper, not that of a method it builds upon."""
    return str(vars(method).get("paper", ""))


def protocols(name: str | None) -> None:
    """All protocols in a table, or one of them with every value it sets."""
    screen = console.results()
    if name is None:
        table = console.grid("protocol", "what it is")
        for known in protocol_names():
            table.add_row(known, str(load_protocol(known).base.values.get("description", "")))
        screen.print(table)
        screen.print("\nEvery value of one of them: suture protocols NAME")
        return
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
    _print_exceptions(raw.datasets)


def _print_exceptions(layers: Mapping[str, Layer]) -> None:
    if not layers:
        return
    table = console.grid("dataset", "setting", "value")
    for dataset, layer in layers.items():
        for setting, value in _flat({**layer.values, "methods": layer.methods}):
            table.add_row(dataset, setting, value)
    screen = console.results()
    screen.print()
    screen.print(console.titled("Other values for some datasets", table))


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Settings by their dotted names, without the name and description every protocol has."""
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        elif prefix or key not in ("name", "description"):
            pairs.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs


def data_list(root: Path | None) -> None:
    """Every graph that can be asked for by name."""
    root = datasets.data_root(root)
    table = console.grid("dataset", "nodes", "edges", "features", "classes", numbers_from=1)
    table.add_column("here")
    for info in datasets.catalogue():
        here = "generated" if not info.raw else "yes" if info.present(root) else "no"
        sizes = (info.nodes, info.edges // 2, info.features, info.classes)
        table.add_row(info.name, *(f"{size:,}" for size in sizes), here)
    screen = console.results()
    screen.print(table)
    screen.print(Text(f"\nHere means under {root}. Edges are undirected. More: suture data info NAME"))


def data_get(names: Sequence[str], root: Path | None) -> None:
    """Fetch what is not here yet."""
    for name in names:
        datasets.about(name)
    for name in names:
        obtained = datasets.get(name, root)
        where = f": {len(obtained.files)} files in {obtained.folder}, hashes checked" if obtained.folder else ""
        console.results().print(Text(f"{obtained.name}: {obtained.source}{where}"), soft_wrap=True)


def data_info(name: str, root: Path | None) -> None:
    """All that is known about one graph without loading it."""
    info, root = datasets.about(name), datasets.data_root(root)
    table = console.grid("", "")
    table.show_header = False
    rows = {
        "name": f"{info.name}: {info.title}",
        "what": info.source,
        "size": f"{info.nodes:,} nodes, {info.edges // 2:,} undirected edges, {info.features:,} features, "
        f"{info.classes} classes",
        "cite": info.citation,
        "licence": info.licence,
    }
    for number, raw in enumerate(info.raw):
        found = [root / raw.folder / file.path for file in raw.files if (root / raw.folder / file.path).is_file()]
        size = f", {byte_size(sum(file.stat().st_size for file in found))}" if found else ""
        rows["or" if number else "files"] = f"{raw.folder}: {len(found)} of {len(raw.files)} under {root}{size}"
    if not info.raw:
        rows["arguments"] = ", ".join(_arguments(info.name))
        rows["example"] = f"--dataset {info.name}:{_arguments(info.name)[0]}"
    for key, value in rows.items():
        table.add_row(key, value)
    console.results().print(table)


def _arguments(generator: str) -> list[str]:
    signature = inspect.signature(datasets.GENERATORS[generator])
    texts = {name: p.default for name, p in signature.parameters.items() if name != "seed"}
    return [f"{name}={'/'.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in texts.items()]
