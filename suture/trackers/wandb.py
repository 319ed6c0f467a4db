"""Weights & Biases, offline: nothing leaves the machine until somebody says `wandb sync`."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from suture.trackers.tracker import Tracked, Tracker, identity

PROJECT = "suture"
MAGIC = b":W&B\xe1\xbe\x00"
BLOCK, HEADER = 32768, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandB(Tracker):
    """A run that goes on is a second folder with the id of the first; `wandb sync` makes one run of them."""

    name: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def begin(self, run: Tracked) -> str:
        """Offline, without a word on the terminal, and whatever the environment says."""
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        known = None if run.known_as is None else identity(run.known_as)
        self.last = last_step(self.folder, known) if known else 0
        self.run: Any = wandb.init(
            project=PROJECT,
            dir=str(self.folder),
            id=known,
            name=run.name,
            group=run.group,
            config=dict(run.values),
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        return str(self.run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A round that is there already is the same, and left out."""
        if step > self.last:
            self.run.log(dict(values), step=step)

    def end(self, finished: bool, results: Mapping[str, float]) -> None:
        """Results are its summary."""
        for name, value in results.items():
            self.run.summary[f"result/{name}"] = value
        self.run.finish(exit_code=0 if finished else 1)


def last_step(folder: Path, name: str) -> int:
    """The last step of a run in all its offline folders."""
    return max((step for step, _ in history(folder, name)), default=0)


def history(folder: Path, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Every (step, values) that the offline folders of a run hold, in the order they were written."""
    from wandb.proto import wandb_internal_pb2

    kind: Any = vars(wandb_internal_pb2)["Record"]
    found: list[tuple[int, dict[str, Any]]] = []
    for file in sorted((folder / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"), key=os.path.getmtime):
        for data in _records(file.read_bytes()):
            record = kind()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in items}
                found.append((int(values["_step"]), values))
    return found


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, up to one that a killed process has left unfinished.

    Seven bytes say that the file is one of theirs. Blocks hold pieces: checksum, length, kind (whole, first, middle, last).
    """
    place, parts = len(MAGIC), b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        piece = content[place + HEADER : place + HEADER + length]
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or len(piece) < length:
            return
        place += HEADER + length
        parts = piece if kind in (WHOLE, FIRST) else parts + piece
        if kind in (WHOLE, LAST):
            yield parts
