"""FedSage: Subgraph federated learning with missing neighbor generation, section 3. Zhang et al., NeurIPS 2021.

FedAvg over GraphSAGE classifiers (equation 1, mean aggregator) trained on mini-batches with sampled neighbours: the paper
prints 2 layers, fan-out 5 in each, batch 64. It uses these whatever model and batches the protocol prescribes, but keeps
the protocol's width, optimiser and rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic

from suture.methods.averaging import VS, Kept, ModelAveraging, S, Server
from suture.methods.fedavg import FedAvg
from suture.settings import Count, Whole


@dataclass(frozen=True)
class Sampled(ModelAveraging[VS, S], Generic[VS, S]):
    """Averaging of GraphSAGE classifiers that are trained on sampled neighbourhoods, whatever else a method keeps."""

    batch_size: Whole = 64
    """Training nodes in a mini-batch; 0 trains full batch."""
    fanout: Count = 5
    """Neighbours sampled in each layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fanouts = (self.fanout,) * self.model.layers if self.batch_size else ()
        object.__setattr__(self, "model", replace(self.model, kind="sage"))
        object.__setattr__(self, "training", replace(self.training, batch_size=self.batch_size, fanouts=fanouts))


@dataclass(frozen=True)
class FedSage(Sampled[Server, Kept], FedAvg):
    """FedAvg with sampled GraphSAGE."""

    name: ClassVar[str] = "fedsage"
    summary: ClassVar[str] = "FedAvg with GraphSAGE on sampled neighbourhoods"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    edges_by_layers: ClassVar[bool] = False
