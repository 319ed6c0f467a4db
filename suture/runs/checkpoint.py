"""Exact checkpoints: everything a run needs to go on as if it had never stopped.

Tensors go into a safetensors file, the rest into a JSON file that names it with its SHA-256 and is replaced last and
atomically; so at any moment the JSON names a complete, verified checkpoint or there is none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from suture.core.message import AnyRecord, Model, Record
from suture.core.packing import Scalar
from suture.core.storage import (
    disk_errors,
    inside,
    read_json,
    sha256_of_file,
    sha256_of_json,
    write_atomically,
    write_json,
)
from suture.core.tree import Tree
from suture.errors import IntegrityError

POINTER = "checkpoint.json"


@dataclass(frozen=True)
class Stored:
    """A record read back, not yet knowing its type."""

    ids: tuple[str, ...]
    scalars: dict[str, Scalar]
    tensors: dict[str, Tensor]

    def as_record(self, kind: type[AnyRecord]) -> AnyRecord:
        """Rebuild it."""
        # Copied, because tensors read from a file start anywhere in memory, and some products round by alignment.
        return kind.from_tensors(self.ids, self.scalars, {path: tensor.clone() for path, tensor in self.tensors.items()})


@dataclass(frozen=True)
class Checkpoint:
    """Progress (plain JSON values) and named records."""

    progress: dict[str, object]
    records: Mapping[str, Stored]


def save_checkpoint(folder: Path, progress: Mapping[str, object], records: Mapping[str, Record]) -> None:
    """Write a new checkpoint, then forget the previous one."""
    flat = {
        f"{name}/{path}": tensor.detach().cpu().contiguous()
        for name, record in records.items()
        for path, tensor in record.tensors().items()
    }
    content = safetensors.torch.save(_without_shared_memory(flat))
    number = int(str(progress["asked"]))
    target = folder / f"checkpoint-{number}-{progress['iteration']}.safetensors"
    write_atomically(target, content)
    layout = {
        name: {
            "ids": list(r.ids),
            "scalars": {n: v for n, v in r.contents() if isinstance(v, Scalar)},
            # safetensors sorts names; the order of a tree is the order on the wire, so it is kept here.
            "tensors": list(r.tensors()),
        }
        for name, r in records.items()
    }
    pointer = {
        "file": target.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "progress": dict(progress),
        "records": layout,
    }
    write_json(folder / POINTER, {**pointer, "own_sha256": sha256_of_json(pointer)})
    with disk_errors("clean", folder):
        for old in folder.glob("checkpoint-*.safetensors"):
            if old != target:
                old.unlink()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint, or None if the run had not reached one."""
    path = folder / POINTER
    if not path.exists():
        return None
    pointer: dict[str, Any] = read_json(path, "checkpoint")
    if pointer.pop("own_sha256", None) != sha256_of_json(pointer):
        raise IntegrityError(f"the checkpoint {path} is not what its SHA-256 promises; it is damaged, start the run anew")
    file, expected, progress, layout = (pointer[key] for key in ("file", "sha256", "progress", "records"))
    file = inside(folder, file)
    if not file.exists() or sha256_of_file(file) != expected:
        raise IntegrityError(f"the checkpoint {file} is not what its SHA-256 promises; it is damaged, start the run anew")
    flat = safetensors.torch.load_file(file)
    records = {
        name: Stored(tuple(item["ids"]), dict(item["scalars"]), {path: flat[f"{name}/{path}"] for path in item["tensors"]})
        for name, item in layout.items()
    }
    return Checkpoint(progress, records)


def _without_shared_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Records may share memory (a client's model is the one it sent, or rows of the server's); the format forbids it."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if memory in seen and tensor.numel() else tensor
        seen.add(memory)
    return out


def save_models(path: Path, models: Sequence[Model], description: Mapping[str, object]) -> None:
    """Models in safetensors, entries `client/parameter` without a client axis; `shared/...` is the one for everybody."""
    flat = {
        f"{name}/{key}": tensor[k].detach().cpu().contiguous().clone()
        for model in models
        for key, tensor in model.params.items()
        for k, name in enumerate(model.ids)
    }
    write_atomically(path, safetensors.torch.save(flat, {"suture": json.dumps(dict(description))}))


def load_models(path: Path) -> tuple[dict[str, Tree], dict[str, object]]:
    """(trees [1, ...] by client id, the description they were saved with)."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {})["suture"])
            models: dict[str, Tree] = {}
            for key in file.keys():  # noqa: SIM118 - not a dictionary
                client, _, name = key.partition("/")
                models.setdefault(client, {})[name] = file.get_tensor(key).unsqueeze(0)
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not a model written by Suture, or it is damaged; train it again") from error
    return models, description


def save_record(path: Path, record: Record) -> None:
    """One record in a file of its own."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in record.tensors().items()}
    scalars = {name: value for name, value in record.contents() if isinstance(value, Scalar)}
    layout = {"ids": list(record.ids), "scalars": scalars, "tensors": list(flat)}
    write_atomically(path, safetensors.torch.save(_without_shared_memory(flat), {"suture": json.dumps(layout)}))


def load_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """What `save_record` wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            layout = json.loads((file.metadata() or {})["suture"])
            tensors = {name: file.get_tensor(name) for name in layout["tensors"]}
            return Stored(tuple(layout["ids"]), dict(layout["scalars"]), tensors).as_record(kind)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path} is not what a run wrote, or it is damaged; train it again") from error
