"""A finished run as the Python interface hands it out: numbers, history, plain PyG models, an annotated graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data

from suture.core.message import Model
from suture.errors import ConfigError
from suture.nn.export import to_module, to_pyg
from suture.runs.appraisal import Evaluation
from suture.runs.outcome import Finished, Line, Outcome


@dataclass(frozen=True)
class Result:
    """A finished run."""

    outcome: Outcome
    finished: Finished
    folder: Path | None

    def model(self, client: str | None = None) -> nn.Module:
        """A plain PyG module: the model all share, or that of one client (`result.client_ids`)."""
        models = self._models(client)
        task, method = self.finished.prepared.task, self.finished.method
        name = client if client in models.ids else models.ids[0]
        row = models.ids.index(name)
        if task.module is not None:
            return to_module(models.params, task.module, task.features, task.classes, row)
        return to_pyg(models.params, method.model, task.features, task.classes, row)

    def _models(self, client: str | None) -> Model:
        personal, shared = self.finished.personal, self.finished.shared
        if client is not None and client not in self.client_ids:
            raise ConfigError(f"unknown client {client!r}; clients are {', '.join(self.client_ids)}")
        if client is not None and personal is not None:
            return personal
        if shared is None:
            raise ConfigError(f"{self.outcome.method} has a model for each client; name one of {', '.join(self.client_ids)}")
        return shared

    @property
    def history(self) -> list[Line]:
        """What metrics.jsonl holds, one dictionary for each round (and iteration of any other phase)."""
        return self.finished.history

    @property
    def evaluation(self) -> Evaluation:
        """What evaluation.json holds: every metric of every client, per class, with confusion matrices."""
        return self.finished.evaluation

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.finished.prepared.clients.ids

    @property
    def data(self) -> Data:
        """The (preprocessed) graph with `client` and `prediction` per node; -1 for nodes no client owns."""
        prepared = self.finished.prepared
        data = prepared.data.clone()
        data.client = torch.full((int(data.num_nodes),), -1)
        data.prediction = torch.full((int(data.num_nodes),), -1)
        graph = prepared.clients
        predicted = self.predictions()
        # Where clients overlap, the first owner speaks: write in reverse so that it comes last.
        members = prepared.cut.partition.members
        for k in reversed(range(len(graph.ids))):
            first, last = graph.segments.bounds[k], graph.segments.bounds[k + 1]
            data.client[members[k]] = k
            data.prediction[members[k]] = predicted[first:last]
        return data

    def predictions(self) -> torch.Tensor:
        """The predicted class of every client's nodes on its own piece, flat, client after client."""
        prepared, method = self.finished.prepared, self.finished.method
        ids = prepared.clients.ids
        models = self.finished.personal
        if models is None:
            shared = self._models(None)
            expanded = {name: value.expand(len(ids), *value.shape[1:]) for name, value in shared.params.items()}
            models = Model(ids, expanded)
        with torch.no_grad():
            return method.predict(prepared.pieces_for(method), models, prepared.task).argmax(1).cpu()
