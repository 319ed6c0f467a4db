"""GlobSage: one sampled GraphSAGE on the uncut graph. The upper bound in FedSage (Zhang et al., NeurIPS 2021, section 5).

`global` with GraphSAGE on sampled mini-batches, whatever model and batches the protocol prescribes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.methods.fedsage import FedSage


@dataclass(frozen=True)
class GlobSage(FedSage):
    """Central training of a sampled GraphSAGE."""

    name: ClassVar[str] = "globsage"
    summary: ClassVar[str] = "GraphSAGE on sampled neighbourhoods of the uncut graph: the upper bound of FedSage"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    sees_uncut_graph: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ()
