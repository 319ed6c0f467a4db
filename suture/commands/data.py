"""`suture data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from suture.commands.request import Work
from suture.commands.telling import telling
from suture.errors import DataError
from suture.graph import datasets
from suture.report import console
from suture.report.text import byte_size
from suture.runs.handed import let_in_named


def show_list(root: Path | None) -> None:
    """Every graph that can be asked for by name."""
    root = datasets.data_root(root)
    table = console.grid("dataset", "nodes", "edges", "features", "classes", numbers_from=1)
    table.add_column("here")
    for info in datasets.catalogue():
        here = "generated" if not info.raw else "yes" if info.present(root) else "no"
        sizes = (info.nodes, info.edges // 2, info.features, info.classes)
        table.add_row(info.name, *(f"{size:,}" for size in sizes), here)
    for name in datasets.DOOR.names():
        if name not in datasets.GENERATORS:
            table.add_row(name, "-", "-", "-", "-", "of a package")
    screen = console.results()
    screen.print(table)
    screen.print(Text(f"\nHere means under {root}. Edges are undirected. More: suture data info NAME"))


def fetch(names: Sequence[str], work: Work) -> None:
    """Fetch what is not here yet."""
    for name in names:
        let_in_named(name)
        datasets.about(name)
    with telling("data get", work.quiet, work.lines) as told:
        found: list[dict[str, object]] = []
        for name in names:
            with told.watching():
                obtained = datasets.get(name, work.data_root)
            found.append({"name": obtained.name, "source": obtained.source, "files": len(obtained.files)})
            where = f": {len(obtained.files)} files in {obtained.folder}, hashes checked" if obtained.folder else ""
            if told.events is None:
                console.results().print(Text(f"{obtained.name}: {obtained.source}{where}"), soft_wrap=True)
        told.result(found)


def show_info(name: str, root: Path | None) -> None:
    """All that is known about one graph without loading it."""
    let_in_named(name)
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
    if info.splits:
        rows["splits"] = f"{info.splits} given ones: --set split.scope=given, by seed or --set split.number=0"
    for number, raw in enumerate(info.raw):
        found = [root / raw.folder / file.path for file in raw.files if (root / raw.folder / file.path).is_file()]
        size = f", {byte_size(sum(file.stat().st_size for file in found))}" if found else ""
        rows["or" if number else "files"] = f"{raw.folder}: {len(found)} of {len(raw.files)} under {root}{size}"
    if not info.raw:
        arguments = _arguments(info.name)
        rows["arguments"] = ", ".join(arguments) or "none"
        rows["example"] = f"--dataset {info.name}{f':{arguments[0]}' if arguments else ''}"
    for key, value in rows.items():
        table.add_row(key, value)
    console.results().print(table)


def write_pieces(folder: Path, out: Path) -> None:
    """Each owner's part of a graph folder as a folder of its own."""
    from suture.tables.folder import GraphFolder  # Polars, which only folders need

    whole = GraphFolder.read(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already, and not empty; choose a new folder for the pieces")
    table = console.grid("owner", "folder", "nodes", "edges", "boundary", numbers_from=2)
    for owner, path in whole.per_owner(out).items():
        about = GraphFolder.read(path, check=False).about
        edges = about["edges"] // (1 if about["directed"] else 2)
        table.add_row(owner, str(path), *(f"{size:,}" for size in (about["nodes"], edges, about["boundary"])))
    console.results().print(table)
    names = ",".join(whole.owners)
    console.notes().print(
        f"next: suture federation create --owners {names} --server HOST:PORT --with-keys, "
        f"then for each owner: suture owner start KIT --data {out / whole.owners[0]}",
        soft_wrap=True,
    )


def _arguments(generator: str) -> list[str]:
    texts = datasets.argument_defaults(generator)
    return [f"{name}={'/'.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in texts.items()]
