"""The exchange of FedSage+: rows go to everybody, everybody returns gradients of fGen (lines 1 to 3, equation 6).

What a gradient could reveal, and why some offers are not answered: see Privacy in `method.py`.
Legend: K clients, M senders, B nodes of a client, R generated rows, E rows exchanged, Z latent, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from suture.core.kernels import Segments
from suture.core.tree import Tree, map_tree, tile
from suture.graph.batch import Features
from suture.graph.matching import shares_of_each_client
from suture.methods.fedsage_plus.generator import GeneratorBatch
from suture.methods.fedsage_plus.messages import Offer, Offers, SharedOffers
from suture.methods.fedsage_plus.neighgen import NeighGen
from suture.training.optimisers import leaves_of

ANSWERS_AT_A_TIME = 1 << 27
"""Numbers of all clients' answers that are held at once: 512 MB."""
MOST_BLOCKS = 64
"""Offers of an iteration travel in so many parts at most."""
DISTINCT = 3
"""A client answers only offers whose match amounts to at least so many different nodes, or groups of nodes, of its own."""


def offered_rows(rows_RZ: Tensor, batch: GeneratorBatch, most: int) -> tuple[Tensor, Tensor]:
    """The first `most` rows of every client (their order is random), padded [K, E, Z], and what each weighs [K, E]."""
    made, owner, place = batch.row_segments.ptr.diff(), batch.row_segments.client, batch.row_segments.place
    sent = place < most
    rows = rows_RZ.new_zeros(made.numel(), most, rows_RZ.shape[1])
    rows[owner[sent], place[sent]] = rows_RZ[sent]
    weight = rows_RZ.new_zeros(made.numel(), most)
    # 1 / |V_i^t|, scaled up from the rows that travel to all rows.
    each = made / (made.clamp(1, most) * batch.sizes.clamp_min(1))
    weight[owner[sent], place[sent]] = each[owner[sent]].to(weight.dtype)
    return rows, weight


def route(offer: Offer, ids: Sequence[str] | None = None) -> Offers:
    """These offers for these clients (None: those who made them), without copying; nobody is asked about its own."""
    return share(offer, ids).of_others()


def share(offer: Offer, ids: Sequence[str] | None = None) -> SharedOffers:
    """The same, for all of them alike."""
    receivers = offer.ids if ids is None else tuple(ids)
    one = {"rows": offer.rows, "weight": offer.weight} | offer.fgen
    everybody = tile({name: value.unsqueeze(0) for name, value in one.items()}, len(receivers))
    rows, weight = everybody.pop("rows"), everybody.pop("weight")
    return SharedOffers(receivers, everybody, rows, weight, "\n".join(offer.ids))


def blocks_of(offer: Offer) -> Iterator[Offer]:
    """Offers that travel together, so that the answers [K, M, ...] of all K clients to M of them stay within bounds.

    All at once as far as a few clients go; never in more than `MOST_BLOCKS`.
    """
    each = sum(value[0].numel() for value in offer.fgen.values())
    clients = len(offer.ids)
    most = max(1, ANSWERS_AT_A_TIME // max(1, clients * each), -(-clients // MOST_BLOCKS))
    for first in range(0, clients, most):
        yield offer.select(offer.ids[first : first + most])


def summed(given: Tree, clients: int, scale: float = 1.0) -> Tree:
    """Line 3: `scale` times the sum over `clients` clients [M, ...]; where their mean came, in one row, that many means."""
    return map_tree(lambda value: value.sum(0) * (scale * clients / value.shape[0]), given)


def foreign_gradients(
    network: NeighGen, fgen: Tree, rows_MEZ: Tensor, weight_KME: Tensor, x: Features, softness: float
) -> tuple[Tree, Tensor]:
    """The gradient of each client's L^f_i,j with respect to each sender's fGen [K, M, ...]; who is answered, int64 [K, M].

    `x` is what a client's matches are made of: its nodes, or groups of them; without any it answers nobody. All senders'
    rows are generated once; receivers take turns, because the K x M x E x F differences of all of them would not fit.
    """
    senders, each, latent = rows_MEZ.shape
    segments = Segments(torch.arange(senders + 1, device=rows_MEZ.device) * each)
    leaves = leaves_of(fgen)
    made_RF = network.neighbours(leaves, rows_MEZ.reshape(-1, latent), segments)
    out = {name: value.new_empty(weight_KME.shape[0], *value.shape) for name, value in fgen.items()}
    answered_KM = torch.zeros(weight_KME.shape[:2], dtype=torch.int64, device=rows_MEZ.device)
    for k, share_BR in enumerate(shares_of_each_client(made_RF.detach(), x, softness)):
        if share_BR.shape[0] == 0:
            for name in leaves:
                out[name][k] = 0
            continue
        answered_M = safe_to_answer(share_BR.view(-1, senders, each), weight_KME[k], network.width)
        answered_KM[k] = answered_M.long()
        weight_R = (weight_KME[k] * answered_M.unsqueeze(1)).reshape(-1, 1)
        # d/dx~ of weight x (soft) minimum of |x~ - x_u|^2
        slope = (made_RF.detach() - x.mixed(k, share_BR)).mul_(2 * weight_R)
        grads = torch.autograd.grad(made_RF, list(leaves.values()), slope, retain_graph=True)
        for name, grad in zip(leaves, grads, strict=True):
            out[name][k] = grad
    return out, answered_KM


def safe_to_answer(share_BME: Tensor, weight_ME: Tensor, width: int) -> Tensor:
    """Whether a gradient would be a sum over enough rows and enough nodes, 1 or 0 [M].

    Nodes count by what they contribute: n nodes with equal shares of the answer are n nodes, 1 / the sum of squared shares.
    """
    real_ME = (weight_ME > 0).to(share_BME.dtype)
    rows_M = real_ME.sum(1)
    share_BM = torch.einsum("bme,me->bm", share_BME, real_ME) / rows_M.clamp_min(1)
    nodes_M = 1 / share_BM.square().sum(0).clamp_min(1e-12)
    return ((rows_M > width + 1) & (nodes_M >= DISTINCT)).to(weight_ME.dtype)
