"""From tables to a graph folder: what people have, made into what Suture trains on.

    import_tables   CSV, Parquet or JSON files -> a graph folder, with one summary of everything that was decided
    GraphFolder     reads such a folder; `.to_data()` is a PyG `Data`, `.per_owner()` writes each owner's piece
    make_schema     what the owners agree on; apply_schema: the same features for new nodes
    import_graph    a graph of another library -> a graph folder
    from_any        NetworkX, SciPy, NumPy, PyG -> the same `Data`; needs no Polars

Names are looked up when they are used, because Polars is only needed by some of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suture.tables.convert import from_any
    from suture.tables.folder import GraphFolder
    from suture.tables.graphs import import_graph
    from suture.tables.importing import Tables, Wishes, apply_schema, check_schema, import_tables, make_schema
    from suture.tables.schema import Roles, Schema, read_schema

_HOMES = {
    "from_any": "convert",
    "GraphFolder": "folder",
    "Tables": "importing",
    "Wishes": "importing",
    "apply_schema": "importing",
    "check_schema": "importing",
    "import_graph": "graphs",
    "import_tables": "importing",
    "make_schema": "importing",
    "Roles": "schema",
    "Schema": "schema",
    "read_schema": "schema",
}

__all__ = [
    "GraphFolder",
    "Roles",
    "Schema",
    "Tables",
    "Wishes",
    "apply_schema",
    "check_schema",
    "from_any",
    "import_graph",
    "import_tables",
    "make_schema",
    "read_schema",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'suture.tables' has no attribute {name!r}")
    return getattr(import_module(f"suture.tables.{_HOMES[name]}"), name)
