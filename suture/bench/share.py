"""`suture share`: a run or comparison as one file that somebody else can run again, and compare with.

share.json holds what was found (every number of every run, the SHA-256 of its metrics, of its graph and of all members);
beside it lie compare.json, config.toml, and of every run its cut, environment and metrics: what is needed to do it again and
nothing else. Models, messages and ledgers stay behind, and so does somebody's own graph, unless its owner says otherwise.
The cut says which node, by number, is whose and does what; it has neither features nor edges nor labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from suture.core.storage import disk_errors, sha256_of_file
from suture.errors import ConfigError, DataError
from suture.graph.cut import load_manifest, save_manifest
from suture.runs import origin
from suture.runs.folder import (
    COMPARISON,
    CONFIG,
    ENVIRONMENT,
    MANIFEST,
    METRICS,
    Asked,
    is_comparison,
    manifest_of,
    place_of,
    read_asked,
    read_environment,
    read_outcome,
)

FORMAT = "suture-share/1"
ABOUT, DATA = "share.json", "data"
WHEN = (1980, 1, 1, 0, 0, 0)
"""Of every member: the same run makes the same file."""
OF_RUN = (MANIFEST, ENVIRONMENT, METRICS)


@dataclass(frozen=True)
class Shared:
    """What was put into a file."""

    path: Path
    runs: int
    size: int
    own_graph: bool
    """The graph is somebody's own."""
    with_data: bool


def share(run: Path, out: Path, *, with_data: bool = False) -> Shared:
    """Write a finished run or comparison to a zip file."""
    if out.suffix != ".zip":
        raise ConfigError(f"--out {out} should be the name of a zip file, such as {out.with_suffix('.zip')}")
    if out.exists():
        raise ConfigError(f"{out} is there already; give --out another name, or delete it first")
    asked = read_asked(run)
    _check(run, asked)
    own = origin.is_folder(asked.dataset)
    if with_data and not own:
        raise ConfigError(f"{asked.dataset} is a dataset that others can have by its name; leave --with-data out")
    members: dict[str, bytes | Path] = dict(_members(run, asked))
    if own:
        members |= {name: _renamed(path) for name, path in _members(run, asked) if path.name == MANIFEST}
    if own and with_data:
        members |= dict(_data(Path(asked.dataset)))
    named = replace(asked, dataset=origin.label(asked.dataset)) if own else asked  # not where it lies on this machine
    content: dict[str, bytes | Path] = {COMPARISON: _json(dataclasses.asdict(named)), **members}
    about = _about(run, asked, own, with_data, {name: _sha256(part) for name, part in content.items()})
    with disk_errors("write", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        staged = out.with_name(f".{out.name}.part")
        try:
            with zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as file:
                for name, part in {ABOUT: _json(about), **content}.items():
                    file.writestr(zipfile.ZipInfo(name, WHEN), part if isinstance(part, bytes) else part.read_bytes(), 8)
            staged.replace(out)
        finally:
            staged.unlink(missing_ok=True)
    return Shared(out, len(asked.methods) * len(asked.seeds), out.stat().st_size, own, own and with_data)


def _check(run: Path, asked: Asked) -> None:
    """Refuse what nobody could run again."""
    if asked.dataset == origin.IN_MEMORY:
        raise DataError(
            f"the graph of {run} was given in memory, where others cannot have it; import it with `suture import`"
        )
    if asked.dataset == origin.FEDERATION or asked.engine == origin.FEDERATION:
        raise ConfigError(f"{run} was between owners, who have the pieces; only runs of one machine can be shared")
    if asked.own_module:
        raise ConfigError(f"the model of {run} was your own module in memory; only networks by name can be shared")
    for path in _places(run, asked):
        if read_outcome(path) is None:
            raise ConfigError(f"{path} is not finished; first run: suture resume {run}")


def _places(run: Path, asked: Asked) -> Iterator[Path]:
    if not is_comparison(run):
        yield run
        return
    for method in asked.methods:
        for seed in asked.seeds:
            yield place_of(run, method, seed)


def _members(run: Path, asked: Asked) -> Iterator[tuple[str, Path]]:
    yield CONFIG, run / CONFIG
    if is_comparison(run) and (given := manifest_of(run)) is not None:
        yield MANIFEST, given
    for path in _places(run, asked):
        one = read_asked(path)
        for name in OF_RUN:
            yield f"{place_of(Path(), one.methods[0], one.seeds[0])}/{name}", path / name


def _renamed(manifest: Path) -> bytes:
    """A cut that does not say where on this machine its graph lies."""
    cut = load_manifest(manifest)
    with tempfile.TemporaryDirectory() as home:
        save_manifest(replace(cut, dataset=origin.label(cut.dataset)), Path(home) / MANIFEST)
        return (Path(home) / MANIFEST).read_bytes()


def _data(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield f"{DATA}/{path.relative_to(folder).as_posix()}", path


def _about(run: Path, asked: Asked, own: bool, with_data: bool, hashes: dict[str, str]) -> dict[str, object]:
    places = list(_places(run, asked))
    manifest, name = manifest_of(places[0]), origin.label(asked.dataset) if own else asked.dataset
    outcomes = [{**outcome.as_json(), "dataset": name} for path in places if (outcome := read_outcome(path)) is not None]
    return {
        "format": FORMAT,
        "graph": {
            "name": name,
            "own": own,
            "included": own and with_data,
            "fingerprint": load_manifest(manifest).fingerprint if manifest is not None else "",
        },
        "environment": read_environment(places[0]),
        "runs": outcomes,
        "members": hashes,
    }


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _sha256(part: bytes | Path) -> str:
    return hashlib.sha256(part).hexdigest() if isinstance(part, bytes) else sha256_of_file(part)
