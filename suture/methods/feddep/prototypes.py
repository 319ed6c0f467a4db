"""Proto (FedDEP, section 3.2): clients show each other means of clusters of their nodes' embeddings, once.

Without Proto the same embeddings are what generated ones are compared with (`without_proto.py`).
Legend: K clients, M of them in all, N nodes, D width of an embedding, C clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.message import Kind, Message
from suture.core.streams import Streams
from suture.core.tree import Tree, tile
from suture.graph.batch import GraphBatch
from suture.nn.backbones import Sage
from suture.settings import TrainingSettings
from suture.training.local import train_locally
from suture.training.optimisers import fresh_moments


@dataclass(frozen=True)
class Prototypes(Message):
    """Line 1, client to server: the means of its clusters [K, C, D]."""

    centres: Annotated[Tensor, Kind.PROTOTYPES]


@dataclass(frozen=True)
class OthersPrototypes(Message):
    """Line 2, server to client: the prototypes of all other clients [K, M - 1, C, D]."""

    centres: Annotated[Tensor, Kind.PROTOTYPES]


def for_everybody_else(told: Prototypes) -> OthersPrototypes:
    """Line 2, in the order of the clients' names."""
    order = sorted(told.ids)
    others = [[j for j, name in enumerate(order) if name != own] for own in told.ids]
    index = torch.tensor(others, dtype=torch.int64, device=told.centres.device).view(len(order), len(order) - 1)
    return OthersPrototypes(told.ids, told.select(order).centres[index])


def trained_embeddings(network: Sage, initial: Tree, graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Tensor:
    """Line 1: z_v of every node [N, D], from a network that every client trains alone."""
    start = tile(initial, len(graph.ids), graph.device)
    moments = fresh_moments(start, settings)
    params, _, _ = train_locally(graph, start, moments, lambda p, batch: batch.loss(network, p), settings, rng)
    with torch.no_grad():
        return F.normalize(torch.relu(network.embed(params, graph)), dim=1)
