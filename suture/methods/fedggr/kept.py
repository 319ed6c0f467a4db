"""What server and clients of FedGGR keep. Legend: K clients, N nodes, P code width, M links."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suture.core.message import Rows
from suture.core.tree import Tree
from suture.methods.averaging import Kept, Server
from suture.training.optimisers import Moments


@dataclass(frozen=True)
class GraphServer(Server):
    """What the server keeps: w, its own weights W_S with their moments, all [1, ...], and what it knows of the nodes.

    `codes` holds E_i under the name of client i, [1, N_i, P], N_i its nodes or groups of them; or anchors
    (`suture.methods.fedggr.anchors`). `links` [1, 2, M] says who has chosen whom in the learned graph; `longest` is the
    number of nodes of the largest client.
    """

    own: Tree
    moments: Moments
    autoencoder: Tree
    codes: Tree
    links: Tensor
    longest: int
    round: int
    seed: int


@dataclass(frozen=True)
class Embedded(Kept):
    """What a client keeps: also Z_i as last received, and its auto-encoder until E_i is sent; or, with anchors, for good.

    `anchors` are those it was told last, with a copy for each client.
    `longest` [K] is the number of nodes of the largest client, to which models are padded so that they can be stacked.
    """

    z: Rows
    longest: Tensor
    autoencoder: Tree
    autoencoder_moments: Moments
    anchors: Tree
