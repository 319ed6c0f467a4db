"""Graphs by name: public ones from the data root, the network or the package registry; generated ones from numbers."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.data import Data

from suture import plugins
from suture.core.trusted import absolute, is_spelled
from suture.errors import ConfigError, DataError, IntegrityError, unknown
from suture.graph.checks import validate
from suture.graph.data import num_classes
from suture.graph.sources import cache as source_cache
from suture.graph.sources import read as source_read
from suture.graph.sources.catalogue import PUBLIC, DatasetInfo, RawSet
from suture.graph.sources.fetch import Source, fetch, hashes
from suture.graph.synthetic import block_communities, contextual_block_model
from suture.plugins import Door, check_function

Argument = int | float | str | bool | tuple[int, ...]
"""What a generated graph can be told."""
Maker = Callable[..., Data]
GENERATORS: dict[str, Maker] = {"csbm": contextual_block_model, "sbm": block_communities}


def _check_maker(thing: object, how: str) -> Maker:
    function = check_function(thing, how, "dataset", 0)
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument != "seed" and not isinstance(parameter.default, Argument):
            raise ConfigError(
                f"{how}: the default of {argument} must be a number, a text, true or false, or a tuple of ints"
            )
    return function


DOOR: Door[Maker] = Door("dataset", "suture.datasets", GENERATORS, _check_maker)

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
        return _made(info.name, arguments(name), seed)
    root = data_root(root)
    raw, _, files = _obtain(info, root, allow_download)
    kept = source_cache.cache_folder() / "processed" / f"{info.name}-{_cache_key(raw, files)}.safetensors"
    data = source_cache.read(kept)
    if data is None:
        data = _expected(info, validate(source_read.read(raw, root)), root / raw.folder)
        source_cache.write(kept, data)
    if info.owners:
        data.owners = list(info.owners)
    return data


def about(name: str) -> DatasetInfo:
    """What is known of a graph; a misspelt name or argument is refused before anything is read."""
    base, given = _split(name)
    known = {info.name: info for info in catalogue()}
    if base not in known and base not in DOOR.names() and not is_spelled(base):
        raise unknown("dataset", base, (*known, *DOOR.names()))
    info = known.get(base) or _foreign(base)
    if info.raw and given is not None:
        raise ConfigError(f"dataset {base!r} takes no arguments, got {name!r}; only {', '.join(GENERATORS)} take them")
    if not info.raw:
        arguments(name)
    return info


def settled(name: str) -> str:
    """The name as another process understands it, wherever it runs; checked."""
    base, given = _split(name)
    about(name)
    return name if not is_spelled(base) else absolute(base, "dataset") + (f":{given}" if given else "")


def label(name: str) -> str:
    """A short name, fit for a folder's."""
    base = _split(name)[0]
    return base if not is_spelled(base) else re.sub(r"\W+", "-", Path(base.partition(":")[0]).stem).lower()


def source_of(name: str) -> plugins.Source | None:
    """Where the function that makes somebody else's graph is to be found again; None for graphs that come with Suture."""
    base = _split(name)[0]
    return None if base in {info.name for info in catalogue()} else DOOR.source(base, DOOR.find(base))


def base_of(name: str) -> str:
    """What makes a graph, without its arguments."""
    return _split(name)[0]


def _split(name: str) -> tuple[str, str | None]:
    """What makes a graph, and its arguments: `csbm:nodes=50`, `my_data.py:load`, `my_data.py:load:nodes=50`."""
    base, _, given = name.partition(":")
    if base.lower() in {info.name for info in catalogue()} or base in DOOR.names():
        return base.lower() if base not in DOOR.names() else base, given if ":" in name else None
    spelt = re.fullmatch(r"([^:]+:[A-Za-z_]\w*)(?::(.*))?", name)
    return (spelt[1], spelt[2]) if spelt else (name if is_spelled(name) else base.lower(), None)


def _foreign(base: str) -> DatasetInfo:
    """Of somebody else's graph all that can be known before it is made is what its function says of itself."""
    said = inspect.getdoc(DOOR.find(base)) or "no description"
    return DatasetInfo(base, base, 0, 0, 0, 0, said.splitlines()[0], "not stated", "not stated")


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


def _made(base: str, given: dict[str, Argument], seed: int) -> Data:
    """A generated graph, or somebody else's."""
    function = DOOR.find(base)
    if "seed" in inspect.signature(function).parameters:
        given = {**given, "seed": seed}
    if base in GENERATORS:
        return function(**given)
    try:
        data = function(**given)
    except Exception as error:
        raise DataError(
            f"the dataset {base} cannot be made ({type(error).__name__}: {error}); repair its function"
        ) from error
    if not isinstance(data, Data):
        raise DataError(f"the dataset {base} must be a torch_geometric.data.Data, got {type(data).__name__}")
    return data


def arguments(name: str) -> dict[str, Argument]:
    """`csbm:nodes=5000,degree=10` to keyword arguments of its generator, typed by the generator's defaults."""
    base, text = _split(name)
    defaults = argument_defaults(base)
    given: dict[str, Argument] = {}
    for part in filter(None, (text or "").split(",")):
        argument, _, value = (piece.strip() for piece in part.partition("="))
        argument = argument.replace("-", "_")
        if argument not in defaults:
            raise unknown(f"argument of {base}", argument, defaults)
        if argument in given:
            raise ConfigError(f"{base} got {argument} twice in {name!r}; give it once")
        given[argument] = _value(f"{base} {argument}", value, defaults[argument])
    return given


def argument_defaults(base: str) -> dict[str, Argument]:
    """The arguments of the function that makes a graph, without its seed, and their defaults."""
    found = inspect.signature(DOOR.find(base)).parameters.items()
    return {argument: parameter.default for argument, parameter in found if argument != "seed"}


def _value(what: str, text: str, default: Argument) -> Argument:
    try:
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split("/"))
        return {"true": True, "false": False}[text] if isinstance(default, bool) else type(default)(text)
    except (ValueError, KeyError):
        kinds = {int: "a whole number", float: "a number", tuple: "whole numbers joined by / such as 5/5/40"}
        raise ConfigError(f"{what} must be {kinds.get(type(default), 'true or false')}, got {text!r}") from None
