"""Local-GNNk: every client trains alone, without edges on nearest neighbours. A baseline of FedGLS (Fu et al., TMLR).

Fed-GNNk with the identity as its aggregation matrix: no parameter travels in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.method import Task
from suture.methods.fed_gnnk import FedGnnk


@dataclass(frozen=True)
class LocalGnnk(FedGnnk):
    """Each client on its own, on its completed graph."""

    name: ClassVar[str] = "local_gnnk"
    summary: ClassVar[str] = "every client trains alone; those without edges link nearest neighbours"
    paper: ClassVar[str] = "baseline of Fu et al., TMLR 2024"
    one_model: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ()

    def shared_names(self, task: Task) -> list[str]:
        """Nothing."""
        return []
