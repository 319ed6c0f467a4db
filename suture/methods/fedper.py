"""FedPer: Federated learning with personalization layers. Arivazhagan et al., 2019.

FedAvg on the base layers only: the last layers are trained with them but never leave the client, nor are they replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from suture.method import Task
from suture.methods.fedavg import FedAvg
from suture.settings import Search, Whole


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg with a personal classifier."""

    name: ClassVar[str] = "fedper"
    summary: ClassVar[str] = "FedAvg on the body, the last layers stay personal"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
    one_model: ClassVar[bool] = False

    personal_layers: Annotated[Whole, Search(1, 2, log=False)] = 1
    """How many of the last layers are personal (the head counts as one); 0 is FedAvg."""

    def shared_names(self, task: Task) -> list[str]:
        """Everything below the personal layers."""
        personal = set(self.backbone(task).personal_names(self.personal_layers))
        return [name for name in super().shared_names(task) if name not in personal]
