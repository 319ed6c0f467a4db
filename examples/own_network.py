"""Your own network: any `torch.nn.Module` that is called as `module(x, edge_index)` and returns one row of scores a node.

    python examples/own_network.py

Nothing in it knows of clients or rounds. Methods average, pull and compare its parameters by their names, and at the end you
get your own module back, trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv, JumpingKnowledge

import suture

GRAPH = "csbm:nodes=800,classes=4,features=200,degree=8,communities=1,topic_strength=0.5"


class JumpingGin(nn.Module):
    """Two GIN layers; the classifier reads both of them (Xu et al., ICML 2018)."""

    def __init__(self, features: int, classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
        self.second = GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
        self.join = JumpingKnowledge("cat")
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Class scores, [nodes, classes]."""
        near = self.first(x, edge_index).relu()
        far = self.second(near, edge_index).relu()
        return self.head(self.join([near, far]))


def main() -> None:
    """Train it by three methods, and take the trained module away."""
    settings = ["rounds=40", "training.weight_decay=0", "partition.kind=random"]
    print("method   client mean  each model")
    for method in ("local", "fedavg", "fedper"):
        result = suture.run(GRAPH, method, clients=4, seed=0, overrides=settings, model=JumpingGin)
        model = result.model(result.client_ids[0])
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{method:<8} {100 * result.outcome.accuracy_client_mean:11.2f}  {size} parameters")

    # `model` is a plain JumpingGin with the trained values of the first client; Suture is not needed to use it.
    model.eval()
    triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    with torch.no_grad():
        scores = model(torch.rand(3, 200), triangle)
    print(f"\n{type(model).__name__} on three new nodes: classes {scores.argmax(1).tolist()}")


if __name__ == "__main__":
    main()
