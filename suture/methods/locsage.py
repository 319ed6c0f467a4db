"""LocSage: every client trains a sampled GraphSAGE alone. A baseline of FedSage (Zhang et al., NeurIPS 2021, section 5).

`local` with GraphSAGE on sampled mini-batches, whatever model and batches the protocol prescribes. Under the protocol
fedsage-louvain the two are identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.method import Task
from suture.methods.fedsage import FedSage


@dataclass(frozen=True)
class LocSage(FedSage):
    """FedSage without sharing."""

    name: ClassVar[str] = "locsage"
    summary: ClassVar[str] = "every client trains GraphSAGE on sampled neighbourhoods alone"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    one_model: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ()

    def shared_names(self, task: Task) -> list[str]:
        """Nothing."""
        return []
