"""Where a graph comes from: the catalogue or somebody's function by its name, a folder of `suture import`, or memory.

A plan names its graph by one text. Folders are named by their absolute path, which no dataset's name is.
"""

from __future__ import annotations

from pathlib import Path

from torch_geometric.data import Data

from suture.core.progress import work
from suture.core.storage import disk_errors, real_path
from suture.core.trusted import is_spelled
from suture.errors import DataError
from suture.graph import datasets
from suture.graph.checks import checked
from suture.plugins import Source

IN_MEMORY = "in-memory"
"""In place of a dataset's name: the graph was given as an object."""
FEDERATION = "federation"
"""In place of a dataset's name: the graph is in pieces, and its owners have them."""
PAPERS, SPLITS, OWN = "fedpub-disjoint", "given-splits", "own"
"""The protocol unless one is named: for graphs of the catalogue, those with several splits, and those that have owners."""
SCHEMA = "schema.json"
"""Of a folder of `suture import`."""


def is_folder(name: str) -> bool:
    """Whether a graph's name is the path of a folder."""
    return Path(name).is_absolute() and not is_spelled(datasets.base_of(name))


def named(path: Path | str) -> str:
    """The name of the graph in a folder."""
    from suture.tables.folder import ABOUT  # Polars, which only folders need

    path = Path(path)
    if not (path / ABOUT).is_file():
        raise DataError(
            f"{path} is not a graph folder (it has no {ABOUT}); make one with: suture import {path} --nodes FILE"
        )
    return str(real_path(path))


def settled(name: str) -> str:
    """A graph's name as another process understands it, checked."""
    if name in (IN_MEMORY, FEDERATION):
        return name
    return named(name) if is_folder(name) else datasets.settled(name)


def label(name: str) -> str:
    """A short name, fit for a folder's."""
    return Path(name).name if is_folder(name) else datasets.label(name)


def is_own(name: str) -> bool:
    """Whether a graph is somebody's own: a folder, an object in memory, or made by a plug-in."""
    return name == IN_MEMORY or is_folder(name) or source_of(name) is not None


def default_protocol(name: str) -> str:
    """A paper's cut for graphs that papers cut; otherwise what the graph says of itself: its splits, its owners."""
    if name == FEDERATION or is_own(name) or datasets.about(name).owners:
        return OWN
    return SPLITS if datasets.about(name).splits else PAPERS


def source_of(name: str) -> Source | None:
    """Where the function that makes somebody else's graph is to be found again; None for other graphs."""
    return None if name in (IN_MEMORY, FEDERATION) or is_folder(name) else datasets.source_of(name)


def load(name: str, data_root: Path | None = None) -> Data:
    """A checked graph by its name."""
    with work("load", f"reading {label(name)}"):
        if is_folder(name):
            from suture.tables.folder import GraphFolder

            return GraphFolder.read(name).to_data()
        data = datasets.load(name, data_root)
        return data if source_of(name) is None else checked(data)


def schema_of(name: str) -> bytes | None:
    """The schema of the folder a graph came from; None if it came from none."""
    if not is_folder(name):
        return None
    with disk_errors("read", Path(name) / SCHEMA):
        return (Path(name) / SCHEMA).read_bytes()
