"""Local: every client trains alone. The floor any federation must rise above.

FedAvg with the identity as its aggregation matrix: no parameter travels in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.method import Task
from suture.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Local(FedAvg):
    """Each client on its own."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "every client trains alone; nothing is shared"
    paper: ClassVar[str] = ""
    one_model: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ()

    def shared_names(self, task: Task) -> list[str]:
        """Nothing."""
        return []
