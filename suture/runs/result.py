"""A finished run as the Python interface hands it out: numbers, history, plain PyG models, an annotated graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data

from suture.core.message import Model
from suture.errors import ConfigError, unknown
from suture.graph.data import MASKS
from suture.nn.export import to_module, to_pyg
from suture.runs.appraisal import Evaluation
from suture.runs.outcome import Finished, Line, Outcome
from suture.runs.predicting import Predictions
from suture.runs.trained import Trained

DENSE_NUMBERS = 64_000_000
"""So many features are handed out dense, as stock layers want them; more would fill the memory."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    outcome: Outcome
    finished: Finished
    folder: Path | None

    def model(self, client: str | int | None = None) -> nn.Module:
        """A plain PyG module: the model all share, or that of one client, by its name or place in `client_ids`.

        It is called as `module(x, edge_index)`; where edges have weights that its layers hear, `edge_weight` comes third.
        """
        name = None if client is None else self._named(client)
        models = self._models(name)
        task, method = self.finished.prepared.task, self.finished.method
        name = name if name in models.ids else models.ids[0]
        row = models.ids.index(name)
        if task.module is not None:
            return to_module(models.params, task.module, task.features, task.classes, row)
        weighted = self.finished.prepared.clients.edge_weight is not None
        return to_pyg(models.params, method.model, task.features, task.classes, row, weighted=weighted)

    def _named(self, client: str | int) -> str:
        """The client somebody means: `client-3` is `client-03` too."""
        ids = self.client_ids
        if isinstance(client, int) and 0 <= client < len(ids):
            return ids[client]
        same = {_without_zeros(name): name for name in ids}
        if not isinstance(client, str) or _without_zeros(client) not in same:
            raise unknown("client", str(client), ids)
        return client if client in ids else same[_without_zeros(client)]

    def _models(self, client: str | None) -> Model:
        personal, shared = self.finished.personal, self.finished.shared
        if client is not None and personal is not None:
            return personal
        if shared is None:
            raise ConfigError(f"{self.outcome.method} has a model for each client; name one of {', '.join(self.client_ids)}")
        return shared

    @property
    def notes(self) -> tuple[str, ...]:
        """All that was dropped or assumed of the graph."""
        return self.finished.prepared.notes

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
        """The graph as it was trained on, with what the run made of every node.

        client        whose it is: a place in `client_ids`, -1 if nobody's
        prediction    the predicted class [N], labels [N, C] or numbers [N, C]; -1 or NaN if nobody's
        probability   of each class or label [N, C]; for numbers the prediction itself
        score         what the network gives [N, C]
        train_mask, val_mask, test_mask    as they were used
        """
        prepared = self.finished.prepared
        data, graph, roles = prepared.data.clone(), prepared.clients, prepared.cut.split.roles
        if data.x.layout == torch.sparse_csr and data.x.numel() <= DENSE_NUMBERS:
            data.x = data.x.to_dense()
        for role, name in enumerate(MASKS, start=1):
            data[name] = roles == role
        flat = self.scores()
        owner = torch.full((int(data.num_nodes),), -1)
        score = torch.full((int(data.num_nodes), flat.shape[1]), torch.nan)
        # Where clients overlap, the first owner speaks: write in reverse so that it comes last.
        members = prepared.cut.partition.members
        for k in reversed(range(len(graph.ids))):
            first, last = graph.segments.bounds[k : k + 2]
            owner[members[k]], score[members[k]] = k, flat[first:last]
        if graph.pairs is not None:
            data.client, data.score, data.notes = owner, score, list(prepared.notes)
            return data
        names = tuple(data.get("class_names") or ())
        return Predictions(data, graph.ids, owner, score, roles, graph.target, names, prepared.notes).to_data()

    def scores(self) -> torch.Tensor:
        """What the reported models give for every client's nodes on its own piece [N, C], flat, client after client.

        Pieces are mended, and predictions stitched, as they were for tests.
        """
        trained, prepared = Trained.of(self.finished), self.finished.prepared
        graph = prepared.pieces_for(self.finished.method)
        return trained.scores(graph, trained.can_mend(graph.ids, known=True), stitch=True)

    def predictions(self) -> torch.Tensor:
        """The predicted class (labels, numbers) of every client's nodes, flat, client after client."""
        return self.finished.prepared.clients.target.decided(self.scores())


def _without_zeros(name: str) -> str:
    head, dash, number = name.rpartition("-")
    return f"{head}{dash}{int(number)}" if number.isdecimal() else name
