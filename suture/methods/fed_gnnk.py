"""Fed-GNNk: FedAvg where graphless clients link nearest neighbours. A baseline of FedGLS (Fu et al., TMLR, section 5.1.2).

    before training, client k without edges links each node with its `neighbours` nearest by raw features (kNN)
    then FedAvg; clients with edges use their own, and tests use the same graphs

The paper states neither the number of neighbours nor the metric. Here: cosine of the raw features, links in both
directions, and as many neighbours as FedGLS, so that the two differ in learning the graph alone. On Cora 5 would validate
better than these 10 (docs/fedgls.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from suture.core.message import Model
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.method import Clients, Task
from suture.methods.averaging import Kept
from suture.methods.fedavg import FedAvg
from suture.nn.knn_graph import with_nearest_neighbours


@dataclass(frozen=True)
class FedGnnk(FedAvg):
    """FedAvg over true graphs and nearest-neighbour graphs."""

    name: ClassVar[str] = "fed_gnnk"
    summary: ClassVar[str] = "FedAvg; clients without edges link nearest neighbours by raw features"
    paper: ClassVar[str] = "baseline of Fu et al., TMLR 2024"

    neighbours: int = 10
    """Nodes that each node of a graphless client chooses to be linked with."""

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ConfigError(f"{self.name}.neighbours must be >= 1, got {self.neighbours}")

    def seen(self, clients: Clients[Kept], training: bool) -> GraphBatch:
        """The completed graphs."""
        return self.completed(clients.graph)

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C] on the completed graphs."""
        return super().predict(self.completed(graph), model, task)

    def completed(self, graph: GraphBatch) -> GraphBatch:
        """The graphs with edges for everybody."""
        return with_nearest_neighbours(graph, self.neighbours)
