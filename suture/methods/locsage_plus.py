"""LocSage+: every client mends its own subgraph and trains alone. Zhang et al., NeurIPS 2021, section 4.2.

FedSage+ without any exchange: the generator learns from the client's own hidden neighbours by equation (4) only, and the
classifier is never averaged. Neither generator nor classifier leaves its client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.errors import ConfigError
from suture.method import Task
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.settings import NonNegative


@dataclass(frozen=True)
class LocSagePlus(FedSagePlus):
    """FedSage+ without sharing."""

    name: ClassVar[str] = "locsage_plus"
    summary: ClassVar[str] = "every client mends its subgraph with generated neighbours and trains alone"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    one_model: ClassVar[bool] = False

    alpha: NonNegative = 0.0
    """Weight of the other clients' gradients: nothing is exchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha or self.shared_generator:
            raise ConfigError("locsage_plus exchanges nothing: leave alpha and shared_generator alone, or use fedsage_plus")

    def shared_names(self, task: Task) -> list[str]:
        """Nothing."""
        return []
