"""Global: one model trained on the uncut graph. The ceiling: what federation would reach if no edge had been lost.

The whole graph is a single client, so a FedAvg round is simply `local_epochs` epochs of central training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Global(FedAvg):
    """Central training on the uncut graph."""

    name: ClassVar[str] = "global"
    summary: ClassVar[str] = "central training on the uncut graph, for reference"
    paper: ClassVar[str] = ""
    sees_uncut_graph: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ()
