"""What nodes and pairs are trained by: the one loss that knows what the labels mean and what the settings ask for.

    class    w_y * (1 - p_y)^gamma * -log p_y, over the sum of w_y;  focal loss with gamma = focal_gamma, else gamma = 0
    labels   the same of each yes or no, where a yes of label c weighs w_c and a no 1; mean over known labels
    value    ((y - shift) / scale - output)^2; mean over known numbers
    link     as one label without weights

A client's loss is over its own nodes, whose weights are divided by their sum (as torch's `cross_entropy(weight=...)` does).
Under DP-SGD an example's gradient is taken alone, where dividing would undo its weight: there weights are taken as they are.

Legend: B nodes, C outputs of the network, K clients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import client_mean
from suture.graph.target import Target
from suture.settings import TrainingSettings


def nodes_loss(
    out_BC: Tensor, y_B: Tensor, client_B: Tensor, clients: int, target: Target, settings: TrainingSettings
) -> Tensor:
    """The mean loss of each client's nodes [K]; zero for a client without any."""
    if target.kind == "class":
        loss = F.cross_entropy(out_BC, y_B, reduction="none")
        if settings.loss == "focal":
            loss = _focal(loss, settings)
        if not target.class_weights:
            return client_mean(loss, client_B, clients)
        weight = out_BC.new_tensor(target.class_weights)[y_B]
        return _weighted_mean(loss, weight, client_B, clients, divided=settings.dp_sigma == 0)
    y_BC = y_B.reshape(out_BC.shape)
    known = ~y_BC.isnan()
    truth = torch.where(known, y_BC, 0).to(out_BC.dtype)
    if target.kind == "labels":
        loss = _binary(out_BC, truth, settings)
        if target.class_weights:
            loss = torch.where(truth > 0.5, loss * out_BC.new_tensor(target.class_weights), loss)
    else:
        loss = (standardised(truth, target) - out_BC).square()
    # A node of which some are unknown counts by the others.
    each = (loss * known).sum(1) / known.sum(1).clamp_min(1)
    return client_mean(each, client_B, clients)


def pairs_loss(score_P: Tensor, label_P: Tensor, client_P: Tensor, clients: int, settings: TrainingSettings) -> Tensor:
    """The mean loss of each client's pairs [K]; zero for a client without any."""
    return client_mean(_binary(score_P, label_P, settings), client_P, clients)


def standardised(y_BC: Tensor, target: Target) -> Tensor:
    """What the network is to predict of numbers: (y - shift) / scale."""
    if not target.scale:
        return y_BC
    return (y_BC - y_BC.new_tensor(target.shift)) / y_BC.new_tensor(target.scale)


def _binary(score: Tensor, truth: Tensor, settings: TrainingSettings) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(score, truth, reduction="none")
    return _focal(loss, settings) if settings.loss == "focal" else loss


def _focal(loss: Tensor, settings: TrainingSettings) -> Tensor:
    """(1 - p)^gamma * -log p, from -log p. Lin et al., Focal loss for dense object detection, ICCV 2017."""
    # 1 - e^-loss without losing digits; a power below 1 has no slope at 0.
    missed = -torch.expm1(-loss)
    return missed.clamp_min(1e-12) ** settings.focal_gamma * loss


def _weighted_mean(loss_B: Tensor, weight_B: Tensor, client_B: Tensor, clients: int, divided: bool) -> Tensor:
    if not divided:
        return client_mean(loss_B * weight_B, client_B, clients)
    total = loss_B.new_zeros(clients)
    over = total.index_add(0, client_B, weight_B)
    return total.index_add(0, client_B, loss_B * weight_B) / torch.where(over > 0, over, 1)
