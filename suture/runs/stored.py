"""Training and predicting on graphs that stay on disk (`suture.graph.stored`), in the memory of one owner.

    graph = lay_out(folder, source, owner, names)            # or somebody's own writer
    result = train(folder, "fedsage", rounds=10)
    predict(folder, result, out)                             # prediction.npy, int32 [N], layer by layer, owner by owner

Owners train one after the other on sampled neighbourhoods, and are tested layer by layer, some rows at a time. Features are
taken as they are, and roles as they were written. There is no run folder and no test on the uncut graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suture.core.message import Model
from suture.core.storage import read_json
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.stored import ABOUT, StoredGraph
from suture.method import Method, Task
from suture.privacy.ledger import RunLedger
from suture.runs.loop import Runner
from suture.runs.origin import IN_MEMORY
from suture.runs.outcome import Line, Tick
from suture.runs.plan import plan


@dataclass(frozen=True)
class StoredResult:
    """What training left: the method, its task, the reported model, and a line for each round."""

    method: Method[Any, Any]
    task: Task
    model: Model
    history: tuple[Line, ...]


def train(
    folder: Path | str,
    method: str = "fedsage",
    *,
    overrides: Sequence[str] = (),
    seed: int = 0,
    watch: Callable[[Tick], None] = lambda tick: None,
    **values: object,
) -> StoredResult:
    """Train on a stored graph; other keywords are values of the protocol `own`: `rounds=5, lr=0.1`."""
    texts = [*overrides, *(f"{key}={value}" for key, value in values.items())]
    made = plan(IN_MEMORY, [method], protocol="own", seeds=[seed], overrides=["model.narrow_first=false", *texts])
    chosen = made.methods[0]
    if not (chosen.training.fanouts and chosen.one_model) or chosen.sees_uncut_graph:
        raise ConfigError(f"{chosen.name} needs whole graphs in memory; graphs on disk are trained by fedsage")
    graph = StoredGraph.open(folder)
    about: dict[str, Any] = read_json(Path(folder) / ABOUT, "stored graph's")
    task = Task(graph.x.width, int(about["classes"]), seed, metric="accuracy")
    cohort = EmbeddedCohort.start(chosen, graph, task, chunk_size=1)
    runner = Runner(chosen, made.protocol, task, cohort, RunLedger(), None)
    runner.carry_on(watch)
    model = runner.shared()
    if model is None:
        raise ConfigError(f"{chosen.name} has no model for everybody; graphs on disk are trained by fedsage")
    return StoredResult(chosen, task, model, tuple(runner.history))


def predict(folder: Path | str, result: StoredResult, out: Path | str) -> Path:
    """The class of every node, int32 [N] in the order of the nodes before they were laid out, as prediction.npy in `out`."""
    graph = StoredGraph.open(folder)
    path = Path(out) / "prediction.npy"
    written = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(graph.num_nodes,))
    for name in graph.ids:
        one = graph.select([name])
        with torch.no_grad():
            scores = result.method.predict(one, Model((name,), result.model.params), result.task)
        written[one.node_id.numpy()] = scores.argmax(1).int().numpy()
        one.release()
    written.flush()
    return path
