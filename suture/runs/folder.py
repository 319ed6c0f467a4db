"""The run folder: everything one run leaves behind, and all that is needed to resume or repeat it.

run.json          what was asked: dataset, method, seed, threads       config.toml   every resolved value
manifest.json     the cut, hashed                                      environment.json
privacy.json      training examples and degrees of every client
metrics.jsonl     one line a round, identical for identical seeds      ledger.jsonl  every message
checkpoint/       until the run is finished                            result.json, model.safetensors   after
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from suture.core.message import Model, Record
from suture.core.storage import LineFile, disk_errors, make_folder, read_json, write_atomically, write_json
from suture.graph.cut import Cut, installed_version, save_manifest
from suture.method import Method
from suture.runs.checkpoint import load_checkpoint, save_checkpoint, save_models

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "igraph", "pymetis", "safetensors", "pydantic", "opacus")
FACTS = "privacy.json"
# A checkpoint may take at most this share of the running time.
CHECKPOINT_SHARE = 0.05
MIN_SECONDS_BETWEEN_CHECKPOINTS = 2.0


def environment() -> dict[str, object]:
    """Where a run was computed."""
    return {
        "suture": installed_version("suture-fl"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "packages": {name: installed_version(name) for name in PACKAGES},
    }


class RunFolder:
    """An open run folder."""

    def __init__(self, path: Path, *, every_round: bool = False) -> None:
        self.path, self.every_round = path, every_round
        self.saved = load_checkpoint(self._checkpoints)
        lengths = self.saved.progress if self.saved else {}
        self.metrics = LineFile(path / "metrics.jsonl", int(str(lengths.get("metrics_bytes", 0))))
        self.ledger = LineFile(path / "ledger.jsonl", int(str(lengths.get("ledger_bytes", 0))))
        self._last = time.perf_counter()
        self._cost = 0.0

    @staticmethod
    def create(
        path: Path, asked: Mapping[str, object], config_toml: str, cut: Cut | None, *, every_round: bool = False
    ) -> RunFolder:
        """Start a new run; what was asked is on disk before the first round. No cut: owners have their own pieces."""
        make_folder(path)
        write_atomically(path / "config.toml", config_toml.encode())
        if cut is not None:
            save_manifest(cut, path / "manifest.json")
        write_json(path / "environment.json", environment())
        write_json(path / "run.json", dict(asked))
        return RunFolder(path, every_round=every_round)

    def keep_facts(self, clients: Sequence[Mapping[str, object]]) -> None:
        """What accounts of privacy need to know of the clients, so that they can be made without the graph."""
        write_json(self.path / FACTS, {"clients": list(clients)})

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoint"

    def checkpoint_due(self) -> bool:
        """Whether enough time has passed for another checkpoint to be cheap, or every round wants one."""
        if self.every_round:
            return True
        waited = time.perf_counter() - self._last
        return waited > max(MIN_SECONDS_BETWEEN_CHECKPOINTS, self._cost / CHECKPOINT_SHARE)

    def checkpoint(self, progress: Mapping[str, object], records: Mapping[str, Record]) -> None:
        """Save; the lengths of the line files go with it, so that a resume cuts off what came after."""
        started = time.perf_counter()
        lengths = {"metrics_bytes": self.metrics.length(), "ledger_bytes": self.ledger.length()}
        save_checkpoint(self._checkpoints, {**progress, **lengths}, records)
        self._last = time.perf_counter()
        self._cost = self._last - started

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store tensors of one iteration under kept/, for drawing; a resumed run writes the same file again."""
        content = safetensors.torch.save({key: tensor.contiguous().clone() for key, tensor in tensors.items()})
        write_atomically(self.path / "kept" / f"{name}.safetensors", content)

    def finish(self, result: Mapping[str, object], models: Sequence[Model], method: Method[Any, Any]) -> None:
        """Write the models and, last of all, the result: a folder with result.json is a finished run."""
        self.close()
        description = {"method": method.name, "model": dataclasses.asdict(method.model)}
        save_models(self.path / "model.safetensors", models, description)
        write_json(self.path / "result.json", dict(result))
        with disk_errors("clean", self._checkpoints):
            shutil.rmtree(self._checkpoints, ignore_errors=True)

    def close(self) -> None:
        """Flush the line files."""
        self.metrics.close()
        self.ledger.close()


def read_result(path: Path) -> dict[str, object] | None:
    """The result of a finished run, None if it is not finished."""
    file = path / "result.json"
    return read_json(file, "result") if file.exists() else None
