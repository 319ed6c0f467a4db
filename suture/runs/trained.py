"""A finished run as something that predicts: its models, what its method remembers, and how its graph was prepared.

From a run folder or from memory. `Trained.scores` gives what the models say of pieces of a graph; for the nodes that were
trained on it gives what the run found at its end. Legend: K clients, N nodes, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from suture.core.message import Model, Nothing, Record
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.engines.embedded import on_device
from suture.errors import ConfigError, IntegrityError
from suture.graph.batch import GraphBatch
from suture.graph.cut import Cut, load_manifest
from suture.graph.target import Target
from suture.method import Clients, Method, Task
from suture.methods.stitching import Stitched, stitched_scores
from suture.nn.module import ModuleFactory
from suture.runs import folder as folders
from suture.runs.card import DataCard
from suture.runs.counting import target_from
from suture.runs.intake import check_module
from suture.runs.origin import FEDERATION
from suture.runs.outcome import SHARED, Finished
from suture.settings import Protocol

WHOLE = "uncut"
"""In place of an owner's name: the graph in one piece."""


@dataclass(frozen=True)
class Trained:
    """All that predicting needs of a run."""

    name: str
    """What to call it in a sentence."""
    method: Method[Any, Any]
    protocol: Protocol
    task: Task
    target: Target
    card: DataCard
    models: Mapping[str, Tree]
    """Trees [1, ...] by client, or under `SHARED` the one for everybody; both where clients kept their own as well."""
    memory: Record | None = None
    """What the method remembers of its clients."""
    stitched: Stitched | None = None
    """What clients heard of each other's predictions of the graph that was trained on."""
    cut: Cut | None = None
    """Of the graph that was trained on; None where owners have their own pieces."""
    schema: Path | None = None
    """Of the folder that was trained on, if it was one."""

    @staticmethod
    def read(path: Path, module: ModuleFactory | None = None, *, with_network: bool = True) -> Trained:
        """The run in a folder; `module` makes the user's own network, if it was one and if it is needed."""
        asked = folders.read_asked(path)
        if folders.is_comparison(path):
            runs = [str(folders.place_of(path, method, seed)) for method in asked.methods for seed in asked.seeds]
            raise ConfigError(f"{path} is a comparison; choose one of its runs: {', '.join(runs)}")
        models, _ = folders.read_models(path)
        if asked.own_module and module is None and with_network:
            raise ConfigError(f"the network of {path} was your own; in Python: suture.predict({str(path)!r}, model=...)")
        made, card = folders.read_plan(path), DataCard.read(folders.read_card(path))
        if made.protocol.task == "link":
            raise ConfigError(f"{path} was trained to tell links from non-links, and has nothing to say of single nodes")
        if asked.own_module and module is not None:
            check_module(module, card.features, card.outputs)
        method, manifest = made.methods[0], folders.manifest_of(path)
        found = card.statistics
        return Trained(
            name=str(path),
            method=method,
            protocol=made.protocol,
            task=Task(card.features, card.outputs, made.seeds[0], module, metric=card.metric),
            target=Target(card.kind) if found is None else target_from(found, made.protocol, card.kind),
            card=card,
            models=models,
            memory=folders.read_memory(path, method.memory),
            stitched=folders.read_memory(path, Stitched, folders.STITCHED),
            cut=None if manifest is None else load_manifest(manifest),
            schema=folders.schema_of(path),
        )

    @staticmethod
    def of(finished: Finished) -> Trained:
        """A run that has just ended in this process."""
        prepared = finished.prepared
        models: dict[str, Tree] = {}
        for model in (finished.shared, finished.personal):
            if model is not None:
                models |= {name: model.select([name]).params for name in model.ids}
        return Trained(
            name=finished.outcome.method,
            method=finished.method,
            protocol=finished.protocol,
            task=prepared.task,
            target=prepared.clients.target,
            card=DataCard.of(prepared),
            models=models,
            memory=finished.memory,
            stitched=finished.stitched,
            cut=prepared.cut,
        )

    @property
    def in_federation(self) -> bool:
        """Whether it was trained between owners, who keep what is theirs."""
        return self.card.dataset == FEDERATION

    def check_known(self, owners: Sequence[str]) -> None:
        """Refuse owners for whom there is no model."""
        absent = [name for name in owners if name not in self.models]
        if absent and self.in_federation and not self.models:
            raise ConfigError(f"the owners of {self.name} keep their models; at each of them: suture owner predict KIT")
        if absent and SHARED not in self.models:
            whom = "the graph as a whole" if absent == [WHOLE] else ", ".join(absent)
            raise ConfigError(
                f"{self.name} has no model for {whom}: with {self.method.name} every client has its own, "
                f"and there are those of {', '.join(self.models)}; train with a method that shares one, such as fedavg"
            )

    def can_mend(self, owners: Sequence[str], known: bool) -> tuple[str, ...]:
        """Those of the owners whose graphs can be mended; `known`: the graph is the one that was trained on."""
        if self.method.mending == "nothing" or (self.method.mending == "known" and not known):
            return ()
        if self.method.memory is Nothing:
            return tuple(name for name in owners if name in self.models)
        return tuple(name for name in owners if self.memory is not None and name in self.memory.ids)

    def scores(self, graph: GraphBatch, mended: Sequence[str] = (), stitch: bool = False) -> Tensor:
        """What the models give for every node [N, C]; the graphs of the owners in `mended` are mended first.

        `stitch`: smoothed over known links by what was heard in the run, whose nodes these are.
        """
        out = torch.full((graph.num_nodes, self.task.classes), torch.nan)
        plain = [name for name in graph.ids if name not in set(mended)]
        for ids, mend in ((plain, False), ([name for name in graph.ids if name in set(mended)], True)):
            if ids:
                place = torch.cat([torch.arange(*_bounds(graph, name)) for name in ids])
                try:
                    out[place] = self._scores(graph.select(ids), mend).cpu()
                except (RuntimeError, KeyError, IndexError, TypeError) as error:
                    if self.task.module is not None:  # somebody's own network fails in its own words
                        raise
                    raise IntegrityError(
                        f"the models of {self.name} do not fit its settings: one of its files was changed; put it back"
                    ) from error
        return self._smoothed(graph, out) if stitch and self.stitched is not None else out

    def _smoothed(self, graph: GraphBatch, out_NC: Tensor) -> Tensor:
        """Log-probabilities, as the run tested the models it reports."""
        heard = cast(Stitched, self.stitched).select(graph.ids).heard
        if heard.ptr.tolist() != graph.segments.ptr.tolist():
            raise IntegrityError(
                f"what was heard in {self.name} is of other nodes: one of its files was changed; put it back"
            )
        return stitched_scores(graph, out_NC.to(graph.device), heard, self.method.training).cpu()

    def _scores(self, graph: GraphBatch, mend: bool) -> Tensor:
        model, seen = self._models(graph), graph
        with torch.no_grad():
            if mend and self.memory is not None:
                # As whoever looks at the clients of a run from outside sees them: see `EmbeddedCohort.peek`.
                rng = Streams.of(self.task.seed, graph.ids, "peek", device=graph.device)
                memory = on_device(self.memory.select(graph.ids), graph.device)
                seen = self.method.recalled(Clients(graph, memory, rng, self.task))
            elif not mend:
                model = self.method.for_strangers(model)
            out_NC = self.method.predict(seen, model, self.task)
        if seen.num_nodes == graph.num_nodes:
            return out_NC
        return out_NC[seen.segments.place < graph.sizes[seen.segments.client]]

    def _models(self, graph: GraphBatch) -> Model:
        """One for each client of a graph."""
        chosen = [self.models.get(name, self.models.get(SHARED, {})) for name in graph.ids]
        stacked = {name: torch.cat([tree[name] for tree in chosen]).to(graph.device) for name in chosen[0]}
        return Model(graph.ids, stacked)


def _bounds(graph: GraphBatch, name: str) -> tuple[int, int]:
    k = graph.ids.index(name)
    return graph.segments.bounds[k], graph.segments.bounds[k + 1]
