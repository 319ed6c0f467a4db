"""Fed-GNN: FedAvg with the edges graphless clients do not have. The reference of FedGLS (Fu et al., TMLR, section 5.1.2).

It is shown what was hidden from everybody else, at training and test time, and so says what a graph learner could reach by
learning the true graphs. Without graphless clients it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedGnnReference(FedAvg):
    """FedAvg before any edge was hidden."""

    name: ClassVar[str] = "fed_gnn"
    summary: ClassVar[str] = "FedAvg that is shown the edges graphless clients do not have: a reference"
    paper: ClassVar[str] = "reference of Fu et al., TMLR 2024"
    sees_hidden_edges: ClassVar[bool] = True
