"""A cut is a partition and a split of one graph; its manifest is the file that says exactly which.

Seeds are not enough: other versions of METIS or Louvain cut otherwise. The manifest holds every node's client and role
with a SHA-256 of its content. The hash finds damage and careless edits; whoever may rewrite the file can rewrite the
hash, so keep the value that `save_manifest` returns where it matters.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.storage import read_json, sha256_of_json, write_atomically
from suture.errors import IntegrityError
from suture.graph.data import fingerprint
from suture.graph.partition import Partition, make_partition
from suture.graph.splits import Role, Split, make_split
from suture.settings import PartitionSettings, PreprocessSettings, SplitSettings

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
T = TypeVar("T")

FORMAT = "suture-cut/1"
_KEYS = {"format", "dataset", "fingerprint", "seed", "settings", "versions", "nodes", "roles", "clients"}
_CLIENT_KEYS = {"id", "graphless", "nodes", "roles"}


@dataclass(frozen=True)
class Cut:
    """A partition, its split, and all that is needed to make them again."""

    partition: Partition
    split: Split
    settings: dict[str, dict[str, Json]]
    """The preprocess, partition and split settings used."""
    seed: int
    dataset: str
    fingerprint: str
    """Of the graph that was cut, after preprocessing."""
    versions: dict[str, str]
    """Of the libraries that decide the cut."""


def make_cut(
    data: Data,
    dataset: str,
    preprocess: PreprocessSettings,
    partition: PartitionSettings,
    split: SplitSettings,
    seed: int,
) -> Cut:
    """Cuts and splits a graph that has already been preprocessed; `preprocess` is only written down."""
    clients = make_partition(data, partition, seed)
    return Cut(
        partition=clients,
        split=make_split(data, clients, split, seed),
        settings={"preprocess": asdict(preprocess), "partition": asdict(partition), "split": asdict(split)},
        seed=seed,
        dataset=dataset,
        fingerprint=fingerprint(data),
        versions={name: installed_version(name) for name in ("suture-fl", "numpy", "igraph", "pymetis")},
    )


def save_manifest(cut: Cut, path: Path) -> str:
    """Writes the cut to one JSON file, whole or not at all, and returns the SHA-256 of its content."""
    content = _to_content(cut)
    digest = sha256_of_json(content)
    write_atomically(path, (json.dumps({"sha256": digest, **content}) + "\n").encode())
    return digest


def same_cut(one: Cut, other: Cut) -> bool:
    """Whether the same nodes of the same graph are whose, and do what, wherever and by whatever it was cut."""
    if one is other:
        return True
    ours, theirs = _to_content(one), _to_content(other)
    return all(ours[key] == theirs[key] for key in ("fingerprint", "nodes", "roles", "clients"))


def load_manifest(path: Path, data: Data | None = None) -> Cut:
    """Reads a cut back and checks it: its hash, its shape, and that it was made for `data` if given."""
    content = _verified(read_json(path, "manifest"), path)
    try:
        cut = _from_content(content)
    except (TypeError, ValueError, OverflowError) as error:
        raise IntegrityError(f"the manifest {path} is inconsistent ({error}): make the cut again") from error
    if data is not None and (found := fingerprint(data)) != cut.fingerprint:
        raise IntegrityError(
            f"the manifest {path} was made for another graph ({cut.dataset}, fingerprint {cut.fingerprint[:12]}, here "
            f"{found[:12]}): load the same dataset with the same preprocessing, or make the cut again"
        )
    return cut


def _verified(content: dict[str, object], path: Path) -> dict[str, object]:
    """The content without its hash, if that hash is true."""
    if "sha256" not in content:
        raise IntegrityError(f"{path} is not a manifest: it has no 'sha256' at its top level")
    promised = content.pop("sha256")
    if promised != sha256_of_json(content):
        raise IntegrityError(
            f"the manifest {path} does not hold what its sha256 promises: it was edited or damaged, copy it again"
        )
    if content.get("format") != FORMAT:
        raise IntegrityError(f"the manifest {path} has format {content.get('format')!r}, this version reads {FORMAT!r}")
    return content


def _to_content(cut: Cut) -> dict[str, object]:
    clients = [
        {"id": name, "graphless": graphless, "nodes": members.tolist(), "roles": _digits(roles)}
        for name, graphless, members, roles in zip(
            cut.partition.ids,
            cut.partition.graphless,
            cut.partition.members,
            cut.split.client_roles,
            strict=True,
        )
    ]
    return {
        "format": FORMAT,
        "dataset": cut.dataset,
        "fingerprint": cut.fingerprint,
        "seed": cut.seed,
        "settings": dict(cut.settings),
        "versions": dict(cut.versions),
        "nodes": len(cut.split.roles),
        "roles": _digits(cut.split.roles),
        "clients": clients,
    }


def _from_content(content: dict[str, object]) -> Cut:
    """Raises ValueError, TypeError or OverflowError where a well-hashed content is not a cut."""
    _check_keys(content, _KEYS, "it")
    nodes = _typed(content["nodes"], int, "nodes")
    roles = _roles(content["roles"], nodes)
    clients = [_typed(client, dict, "a client") for client in _typed(content["clients"], list, "clients")]
    for client in clients:
        _check_keys(client, _CLIENT_KEYS, "a client")
    ids = tuple(_typed(client["id"], str, "a client's id") for client in clients)
    if not ids or len(set(ids)) != len(ids):
        raise ValueError("client ids must be unique and at least one")
    members = tuple(_members(client["nodes"], nodes) for client in clients)
    return Cut(
        partition=Partition(ids, members, tuple(_typed(client["graphless"], bool, "graphless") for client in clients)),
        split=Split(roles, tuple(_roles(c["roles"], len(m)) for c, m in zip(clients, members, strict=True))),
        settings={name: _typed(part, dict, name) for name, part in _typed(content["settings"], dict, "settings").items()},
        seed=_typed(content["seed"], int, "seed"),
        dataset=_typed(content["dataset"], str, "dataset"),
        fingerprint=_typed(content["fingerprint"], str, "fingerprint"),
        versions={
            name: _typed(value, str, "a version") for name, value in _typed(content["versions"], dict, "versions").items()
        },
    )


def _check_keys(found: dict[str, object], expected: set[str], owner: str) -> None:
    if set(found) != expected:
        raise ValueError(f"{owner} must have the keys {', '.join(sorted(expected))}")


def _typed(value: object, kind: type[T], name: str) -> T:
    # bool is an int to isinstance, but not to a reader of the file
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def _digits(roles: Tensor) -> str:
    """One digit a node keeps 170,000 roles readable and small."""
    return bytes(roles.numpy().astype(np.uint8) + ord("0")).decode()


def _roles(digits: object, nodes: int) -> Tensor:
    text = _typed(digits, str, "roles")
    values = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int16) - ord("0")
    if len(values) != nodes or ((values < min(Role)) | (values > max(Role))).any():
        raise ValueError(f"roles must be {nodes} digits from {min(Role):d} to {max(Role):d}")
    return torch.from_numpy(values.astype(np.int8))


def _members(numbers: object, nodes: int) -> Tensor:
    listed = _typed(numbers, list, "a client's nodes")
    if not all(type(number) is int for number in listed):
        raise TypeError("a client's nodes must be whole numbers")
    members = np.array(listed, dtype=np.int64)
    if not len(members) or members[0] < 0 or members[-1] >= nodes or (np.diff(members) <= 0).any():
        raise ValueError(f"a client's nodes must be ascending numbers from 0 to {nodes - 1}, at least one")
    return torch.from_numpy(members)


def installed_version(package: str) -> str:
    """The version of an installed package, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
