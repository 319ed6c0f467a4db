"""FedGSL: Federated graph structure learning for local subgraph augmentation. Zhao, Huang and Tsai, IEEE Big Data 2022.

As FedDEP (Zhang et al., SDM 2024, section 1 and appendix C) describes it: missing neighbours are retrieved from other
clients, the structure that links them to a client's nodes is learned, and what clients share is perturbed with noise.

    for t = 1..T
      1  every `interval` rounds: client k sends h_v / |h_v| + N(0, noise^2 I) of each node v, h the input of its last layer
         structure: v is linked to the at most `neighbours` most similar rows of other clients, those with a cosine above
         `threshold`; z_v <- their mean
      2  client k: w_k <- local epochs on its augmented subgraph, z_v at the scale of its own embeddings;
         w <- sum_k (n_k / n) w_k

What we read into it
- The links are chosen anew as the embeddings are learned, which is how the structure is learned; the text gives no loss of
  its own for it.
- Noise is Gaussian on rows of length one, so that `noise` means the same in every layer and at every client. The text says
  "noise injection" and names no distribution or scale.

Privacy: only noisy rows leave a client, and their lengths do not, but the noise is small against what it would take for a
guarantee about a single row: one release of a row of length one has sensitivity 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import client_mean
from suture.core.message import Model, Nothing, Rows
from suture.method import Clients, step
from suture.methods.fedgnn import Embeddings, Expanded, ExpandingAtIntervals, Foreign
from suture.settings import NonNegative


@dataclass(frozen=True)
class Augmented(Expanded):
    """What a client keeps: also the mean length of the embeddings it last sent, [K]."""

    scale: Tensor


@dataclass(frozen=True)
class FedGsl(ExpandingAtIntervals[Augmented]):
    """FedGNN on perturbed embeddings."""

    name: ClassVar[str] = "fedgsl"
    summary: ClassVar[str] = "FedAvg on subgraphs augmented with links to other clients' perturbed embeddings"
    paper: ClassVar[str] = "Zhao et al., IEEE Big Data 2022"

    noise: NonNegative = 0.1
    """Standard deviation of the noise on every entry of a row of length one."""

    def init_clients(self, clients: Clients[Nothing]) -> Augmented:
        """The initial model, no foreign neighbours, and embeddings of length one."""
        scale = torch.ones(len(clients.ids), device=clients.graph.device)
        return Augmented(**vars(self.unexpanded(clients)), scale=scale)

    @step
    def reveal(self, clients: Clients[Augmented], down: Model) -> tuple[Augmented, Embeddings]:
        """Line 1, what a client sends."""
        h_NH, ptr = self.hidden(clients, down), clients.graph.segments.ptr
        noise_NH = self.noise * clients.rng.fork("perturb").normal(ptr, h_NH.shape[1])
        scale = client_mean(h_NH.norm(dim=1), clients.graph.segments.client, len(clients.ids))
        noisy = Embeddings(clients.ids, Rows(F.normalize(h_NH, dim=1) + noise_NH, ptr))
        return replace(clients.state, scale=scale), noisy

    @step
    def expand(self, clients: Clients[Augmented], found: Foreign) -> tuple[Augmented, Nothing]:
        """Line 2, what a client makes of the rows it is linked to."""
        own = clients.state.scale[clients.graph.segments.client].unsqueeze(1)
        mean = Rows(found.mean.values * own, found.mean.ptr)
        return replace(clients.state, mean=mean, count=found.count), Nothing(clients.ids)
