"""`suture import`, `suture schema` and `suture data example`: from tables to a graph folder.

Everything that needs Polars or torch is imported when a command runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from suture.commands import options as opt
from suture.commands.registering import command
from suture.errors import ConfigError, unknown

if TYPE_CHECKING:
    from suture.tables import Tables, Wishes
    from suture.tables.schema import Schema
    from suture.tables.summary import Summary

NO_TABLES = "give your tables with --nodes FILE (and --edges FILE), or a whole graph with --graph FILE"
TASKS = ("classification", "multi-label", "regression")
DUPLICATES = ("refuse", "first", "last")
UNSEEN = ("other", "zero", "error")


def _option(help_text: str, *names: str, metavar: str = "COL") -> Any:
    return typer.Option(*names, metavar=metavar, help=help_text)


_NODES = _option("Node table; {owner} in it stands for each owner's name", metavar="FILE")
Nodes = Annotated[str, _NODES]
GraphFile = Annotated[
    Path | None, _option("A whole graph in place of tables: PyG's .pt, .npz of arrays, or .graphml", metavar="FILE")
]
Edges = Annotated[str | None, _option("Edge table; an owner without one has no graph", metavar="FILE")]
Features = Annotated[str | None, _option("More features by the same ids, or JSON {id: [tokens]}", metavar="FILE")]
Id = Annotated[str | None, _option("Id of a node; several columns as bank,account")]
Label = Annotated[str | None, _option("What to predict; empty or -1 is unlabelled")]
Owner = Annotated[str | None, _option("Column that says whose node it is")]
OwnerName = Annotated[str | None, _option("Whose tables these are", metavar="NAME")]
Source = Annotated[str | None, _option("Where an edge begins")]
Target = Annotated[str | None, _option("Where it ends")]
Weight = Annotated[str | None, _option("Weight of an edge")]
Split = Annotated[str | None, _option("Column of train, val, test or empty")]
SchemaFile = Annotated[Path | None, _option("What the owners agreed on  [default: made from the tables]", metavar="FILE")]
Directed = Annotated[bool, typer.Option("--directed", help="Edges have a direction")]
Task = Annotated[str | None, _option("classification, multi-label or regression", metavar="NAME")]
Types = Annotated[
    list[str] | None,
    _option(
        "What a column is: numeric, categorical, boolean, date, text:64, tokens:3170, ignored", "--type", metavar="COL=KIND"
    ),
]
Ignore = Annotated[list[str] | None, _option("Leave a column out; may be repeated")]
Keep = Annotated[list[str] | None, _option("Keep a column that seems to identify a person or repeat the label")]
Missing = Annotated[list[str] | None, _option("Missing values: indicator, error or a number; * for all", metavar="COL=RULE")]
Unseen = Annotated[str, _option("Categories that are not in the schema: other, zero or error", metavar="RULE")]
MinCount = Annotated[int, typer.Option(metavar="N", min=1, help="Rarer categories are not named in the schema")]
Classes = Annotated[str | None, _option("Classes in order  [default: those in the tables]", metavar="A,B,C")]
Duplicates = Annotated[str, _option("Which row of a repeated id counts: refuse, first or last", metavar="RULE")]
Encoding = Annotated[
    str | None, _option("Encoding of CSV files  [default: UTF-8, or as their first bytes say]", metavar="NAME")
]


TABLES: dict[str, tuple[Any, Any]] = {
    "edges": (Edges, None), "features": (Features, None), "id": (Id, None), "label": (Label, None), "owner": (Owner, None),
    "source": (Source, None), "target": (Target, None), "weight": (Weight, None), "split": (Split, None),
    "duplicates": (Duplicates, "refuse"), "encoding": (Encoding, None),
}  # fmt: skip
"""What every command on tables takes besides --nodes: the option and its default, by name."""
COLUMNS: dict[str, tuple[Any, Any]] = {
    "directed": (Directed, False), "task": (Task, None), "types": (Types, None), "ignore": (Ignore, None),
    "keep": (Keep, None), "missing": (Missing, None), "unseen": (Unseen, "other"), "min_count": (MinCount, 5),
    "classes": (Classes, None),
}  # fmt: skip
"""What settles a schema."""

F = TypeVar("F", bound=Callable[..., None])


def _taking(options: dict[str, tuple[Any, Any]]) -> Callable[[F], F]:
    """Give a command these options in place of its `**given`; typer reads a signature, so they are written into it."""

    def taking(function: F) -> F:
        own = [one for one in inspect.signature(function, eval_str=True).parameters.values() if one.kind != one.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
        vars(function)["__signature__"] = inspect.Signature([*own, *more])
        return function

    return taking


def register(app: typer.Typer, data_app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    schema_app = typer.Typer(rich_markup_mode=None)
    app.add_typer(schema_app, name="schema", help="Agree on columns and classes before importing.")
    command(
        app,
        "import",
        "suture import graph --nodes nodes.csv --edges edges.csv --id account --label fraud --owner bank",
        "suture import graph --nodes '{owner}/nodes.csv' --edges '{owner}/edges.csv' --id account --label fraud",
        "suture import graph --graph data.pt",
        "suture import graph --add --owner-name FR --nodes fr.csv --edges fr-edges.csv",
    )(import_command)
    command(schema_app, "make", "suture schema make --nodes nodes.csv --id account --label fraud --out schema.json")(
        schema_make
    )
    command(schema_app, "check", "suture schema check schema.json --nodes nodes.csv --edges edges.csv")(schema_check)
    command(data_app, "example", "suture data example fraud --out bank-tables")(data_example)


@_taking(TABLES | COLUMNS)
def import_command(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Graph folder to write")],
    nodes: Annotated[str | None, _NODES] = None,
    graph: GraphFile = None,
    owner_name: OwnerName = None,
    schema: SchemaFile = None,
    add: Annotated[bool, typer.Option("--add", help="Add an owner to a folder that is there")] = False,
    lines: opt.Lines = False,
    quiet: opt.Quiet = False,
    **given: Any,
) -> None:
    """Make a graph folder of your tables (CSV, TSV, Parquet or JSON), or of a graph of another library.

    Prints what was read, kept, changed and left out. `--data OUT` of assess, run, compare and partition takes the folder.
    """
    wishes = _wishes(given)
    from suture.commands.telling import telling
    from suture.tables import import_graph, import_tables

    with telling("import", quiet, lines) as told:
        with told.watching():
            if graph is not None:
                _refuse_beside_graph(context)
                folder, summary = import_graph(out, graph)
            elif nodes is None:
                raise ConfigError(NO_TABLES)
            else:
                agreed = None if schema is None else _schema(schema)
                folder, summary = import_tables(out, _tables(nodes, given, owner_name), wishes, agreed, add=add)
        told.result({"out": str(out), **summary.to_json()})
    if lines:
        return
    _print(summary)
    typer.echo(f"\nwrote {out} ({len(folder.about['files'])} files); all of the above is in {out / 'summary.txt'}")
    typer.echo(f"next: suture assess --data {out}   what federation would bring")
    typer.echo(f"  or: suture run --data {out}      train right away")


@_taking(TABLES | COLUMNS)
def schema_make(
    nodes: Nodes,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Schema to write")] = Path("schema.json"),
    **given: Any,
) -> None:
    """Write down what the columns of your tables are, for other owners to import theirs alike.

    The file holds names of columns, categories and classes, but no row.
    """
    wishes = _wishes(given)
    from suture.tables import make_schema

    schema, summary = make_schema(_tables(nodes, given), wishes)
    if out.exists():
        raise ConfigError(f"{out} is there already; choose another name with --out")
    schema.write(out)
    _print(summary)
    typer.echo(
        f"\nwrote {out}: {len(schema.feature_names):,} features; it names columns, categories and classes, and no row"
    )
    typer.echo(f"next, at each owner: suture import FOLDER --schema {out} --owner-name NAME --nodes FILE --edges FILE")


@_taking(TABLES)
def schema_check(
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="Schema file")],
    nodes: Nodes,
    owner_name: OwnerName = None,
    **given: Any,
) -> None:
    """Say whether tables fit a schema; nothing is written."""
    wishes = _wishes(given)
    from suture.tables import check_schema

    _print(check_schema(_tables(nodes, given, owner_name), wishes, _schema(schema)))
    typer.echo(f"\nthe tables fit {schema}; next: suture import FOLDER --schema {schema} --nodes {nodes}")


def data_example(
    name: Annotated[str, typer.Argument(metavar="NAME", help="fraud or contacts")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the tables")],
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Another seed gives other tables")] = 0,
) -> None:
    """Write the tables of a worked example: fraud between three banks, or contacts in four hospitals."""
    from suture.tables.examples import write_example

    for line in write_example(name, out, seed):
        typer.echo(line)


def _wishes(given: dict[str, Any]) -> Wishes:
    """What the options of a command say."""
    from suture.tables import Wishes
    from suture.tables.schema import Roles

    for option, value, known in (
        ("task", given.get("task"), TASKS),
        ("rule of --duplicates", given["duplicates"], DUPLICATES),
        ("rule of --unseen", given.get("unseen", "other"), UNSEEN),
    ):
        if value is not None and value not in known:
            raise unknown(option, value, known)
    roles = Roles(
        id=_columns(given["id"]),
        label=_columns(given["label"]),
        owner=given["owner"],
        split=given["split"],
        source=_columns(given["source"]),
        target=_columns(given["target"]),
        weight=given["weight"],
    )
    kinds = _pairs(given.get("types"), "--type") | dict.fromkeys(given.get("ignore") or (), "ignored")
    return Wishes(
        roles=roles,
        task=given.get("task"),
        directed=True if given.get("directed") else None,
        kinds=kinds,
        keep=frozenset(given.get("keep") or ()),
        missing=_pairs(given.get("missing"), "--missing"),
        unseen=given.get("unseen", "other"),
        min_count=given.get("min_count", 5),
        classes=_columns(given.get("classes")),
        encoding=given["encoding"],
        duplicates=given["duplicates"],
    )


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(",") if part)


def _pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        name, sign, value = text.rpartition("=")
        if not sign or not name or not value:
            raise ConfigError(f"{option} must be COLUMN=VALUE, got {text!r}")
        pairs[name] = value
    return pairs


def _refuse_beside_graph(context: typer.Context) -> None:
    """A graph says itself what tables must be asked for."""
    for option in context.command.params:
        found = context.get_parameter_source(option.name or "")
        if option.name not in ("out", "graph", "lines", "quiet") and found is not None and found.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} is about tables, and --graph gives a whole graph; leave one of them out")


def _tables(nodes: str, given: dict[str, Any], owner: str | None = None) -> list[Tables]:
    from suture.tables import Tables
    from suture.tables.preparing import OWNER, find_owners

    edges, features = given["edges"], given["features"]
    if OWNER in nodes:
        if owner is not None:
            raise ConfigError("{owner} in --nodes names the owners; leave --owner-name away")
        return find_owners(nodes, edges, features)
    return [Tables(Path(nodes), None if edges is None else Path(edges), None if features is None else Path(features), owner)]


def _schema(path: Path) -> Schema:
    from suture.tables import read_schema

    return read_schema(path)


def _print(summary: Summary) -> None:
    from suture.report.console import cleaned

    typer.echo(cleaned(summary.text()))
