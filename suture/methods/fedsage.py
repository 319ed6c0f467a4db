"""FedSage: Subgraph federated learning with missing neighbor generation, section 3. Zhang et al., NeurIPS 2021.

FedAvg over GraphSAGE classifiers (equation 1, mean aggregator) trained on mini-batches with sampled neighbours: the paper
prints 2 layers, fan-out 5 in each, batch 64. It uses these whatever model and batches the protocol prescribes, but keeps
the protocol's width, optimiser and rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic

from suture.errors import ConfigError
from suture.methods.averaging import VS, Kept, ModelAveraging, S, Server
from suture.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Sampled(ModelAveraging[VS, S], Generic[VS, S]):
    """Averaging of GraphSAGE classifiers that are trained on sampled neighbourhoods, whatever else a method keeps."""

    batch_size: int = 64
    """Training nodes in a mini-batch; 0 trains full batch."""
    fanout: int = 5
    """Neighbours sampled in each layer."""

    def __post_init__(self) -> None:
        if self.batch_size < 0 or self.fanout < 1:
            raise ConfigError(
                f"{self.name} needs batch_size >= 0 and fanout >= 1, got batch_size={self.batch_size}, fanout={self.fanout}"
            )
        fanouts = (self.fanout,) * self.model.layers if self.batch_size else ()
        object.__setattr__(self, "model", replace(self.model, kind="sage"))
        object.__setattr__(self, "training", replace(self.training, batch_size=self.batch_size, fanouts=fanouts))


@dataclass(frozen=True)
class FedSage(Sampled[Server, Kept], FedAvg):
    """FedAvg with sampled GraphSAGE."""

    name: ClassVar[str] = "fedsage"
    summary: ClassVar[str] = "FedAvg with GraphSAGE on sampled neighbourhoods"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
