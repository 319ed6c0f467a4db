"""Graphs by name: public ones from the data root, the network or the package registry; generated ones from numbers."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.data import Data

from suture.errors import ConfigError, DataError, IntegrityError, unknown
from suture.graph.data import num_classes, validate
from suture.graph.sources import cache as source_cache
from suture.graph.sources import read as source_read
from suture.graph.sources.catalogue import PUBLIC, DatasetInfo, RawSet
from suture.graph.sources.fetch import Source, fetch, hashes
from suture.graph.synthetic import block_communities, contextual_block_model

GENERATORS: dict[str, Callable[..., Data]] = {"csbm": contextual_block_model, "sbm": block_communities}

_GENERATED = (
    DatasetInfo(
        "csbm",
        "Contextual block model",
        2000,
        12000,
        500,
        5,
        "Generated: sparse homophilous graph with bags of words; size and difficulty as arguments.",
        "Deshpande et al., Contextual stochastic block models, NeurIPS 2018",
        "generated here",
    ),
    DatasetInfo(
        "sbm",
        "FED-PUB communities",
        1500,
        820000,
        16,
        3,
        "Generated: dense communities of small clients that are given with the graph; edge count is approximate.",
        "Baek et al., Personalized subgraph federated learning, ICML 2023, appendix B.3",
        "generated here",
    ),
)


@dataclass(frozen=True)
class Obtained:
    """Raw files that are there now, and who served them."""

    name: str
    folder: Path | None
    """Where the files are; None for a generated graph."""
    source: Source
    files: dict[str, str]
    """SHA-256 of each file, by its path in the folder."""


def catalogue() -> tuple[DatasetInfo, ...]:
    """Every graph that can be asked for by name; generated ones with their sizes at default arguments."""
    return PUBLIC + _GENERATED


def data_root(explicit: Path | None = None) -> Path:
    """The folder that holds raw files: the explicit one, else $SUTURE_DATA, else the user's cache folder."""
    if explicit is not None:
        return Path(explicit).expanduser()
    given = os.environ.get("SUTURE_DATA")
    return Path(given).expanduser() if given else source_cache.cache_folder()


def get(name: str, root: Path | None = None, *, allow_download: bool = True) -> Obtained:
    """Make sure that a graph's raw files are under the data root, and that they are what was published.

    Files already there are used without any network.
    """
    info = about(name)
    if not info.raw:
        return Obtained(info.name, None, "generated", {})
    raw, source, files = _obtain(info, data_root(root), allow_download)
    return Obtained(info.name, data_root(root) / raw.folder, source, files)


def load(name: str, root: Path | None = None, *, allow_download: bool = True, seed: int = 0) -> Data:
    """A checked graph by name, e.g. `cora` or `csbm:nodes=5000,homophily=0.8`; `seed` matters to generated ones only.

    The data root is only read, unless files must be fetched; what was made of the files is kept in the cache folder.
    """
    info = about(name)
    if not info.raw:
        return GENERATORS[info.name](**arguments(name), seed=seed)
    root = data_root(root)
    raw, _, files = _obtain(info, root, allow_download)
    kept = source_cache.cache_folder() / "processed" / f"{info.name}-{_cache_key(raw, files)}.safetensors"
    data = source_cache.read(kept)
    if data is None:
        data = _expected(info, validate(source_read.read(raw, root)), root / raw.folder)
        source_cache.write(kept, data)
    return data


def about(name: str) -> DatasetInfo:
    """The catalogue's entry of a graph; a misspelt name or argument is refused before anything is read."""
    base = name.partition(":")[0].lower()
    known = {info.name: info for info in catalogue()}
    if base not in known:
        raise unknown("dataset", base, known)
    if known[base].raw and ":" in name:
        raise ConfigError(f"dataset {base!r} takes no arguments, got {name!r}; only {', '.join(GENERATORS)} take them")
    if not known[base].raw:
        arguments(name)
    return known[base]


def _obtain(info: DatasetInfo, root: Path, allow_download: bool) -> tuple[RawSet, Source, dict[str, str]]:
    for raw in info.raw:
        if raw.complete(root):
            return raw, "already there", hashes(raw, root / raw.folder)
    if not allow_download:
        raw = info.raw[0]
        raise DataError(
            f"dataset {info.name!r} is not under the data root and downloading is off; put "
            f"{', '.join(file.path for file in raw.files)} into {root / raw.folder}, allow downloading, "
            "or use a generated graph with `--dataset csbm`"
        )
    raw, source = fetch(info, root)
    return raw, source, hashes(raw, root / raw.folder)


def _cache_key(raw: RawSet, files: dict[str, str]) -> str:
    content = "\n".join([source_cache.FORM, raw.reader, *(f"{path} {sha256}" for path, sha256 in sorted(files.items()))])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _expected(info: DatasetInfo, data: Data, folder: Path) -> Data:
    """Not every file's hash is known, but every graph's size is."""
    expected = (info.nodes, info.edges, info.features, info.classes)
    got = (data.y.numel(), data.edge_index.shape[1], data.x.shape[1], num_classes(data))
    if got != expected:
        raise IntegrityError(
            f"{folder} holds a graph of (nodes, edges, features, classes) {got}, but {info.title} has {expected}; "
            "delete that folder and run again to fetch it anew"
        )
    return data


def arguments(name: str) -> dict[str, int | float | tuple[int, ...]]:
    """`csbm:nodes=5000,degree=10` to keyword arguments of its generator, typed by the generator's defaults."""
    base, _, text = name.partition(":")
    base = base.lower()
    defaults = {
        argument: parameter.default
        for argument, parameter in inspect.signature(GENERATORS[base]).parameters.items()
        if argument != "seed"
    }
    given: dict[str, int | float | tuple[int, ...]] = {}
    for part in filter(None, text.split(",")):
        argument, _, value = (piece.strip() for piece in part.partition("="))
        argument = argument.replace("-", "_")
        if argument not in defaults:
            raise unknown(f"argument of {base}", argument, defaults)
        if argument in given:
            raise ConfigError(f"{base} got {argument} twice in {name!r}; give it once")
        given[argument] = _value(f"{base} {argument}", value, defaults[argument])
    return given


def _value(what: str, text: str, default: int | float | tuple[int, ...]) -> int | float | tuple[int, ...]:
    try:
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split("/"))
        return type(default)(text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", tuple: "whole numbers joined by / such as 5/5/40"}
        raise ConfigError(f"{what} must be {kinds[type(default)]}, got {text!r}") from None
