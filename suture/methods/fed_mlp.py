"""Fed-MLP: FedAvg over perceptrons, which no client needs edges for. A baseline of FedGLS (Fu et al., TMLR, section 5.1.2).

The perceptron has the depth, width, dropout and head of the model the protocol prescribes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from suture.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedMlp(FedAvg):
    """FedAvg that never looks at an edge."""

    name: ClassVar[str] = "fed_mlp"
    summary: ClassVar[str] = "FedAvg over perceptrons: nobody's edges are used"
    paper: ClassVar[str] = "baseline of Fu et al., TMLR 2024"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", replace(self.model, kind="mlp"))
