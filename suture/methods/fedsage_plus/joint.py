"""The classifier's part of what NeighGen learns jointly: L^c of FedSage+'s equation (5), which defines LocSage+.

    L = lambda_d L^d + lambda_f L^f + lambda_c L^c                                                                   (5)
    L^c = mean over training nodes v of cross-entropy(F(v; impaired graph with generated neighbours), y_v)

F is a GraphSAGE of the client's own. A generated node has one edge, to the node it was made for, in both directions; its
features carry the gradient, so L^c reaches fGen and the encoder. Neighbours are generated for the nodes of the batch, as
many as were hidden (`generator.py`), and L^c is over those of them that train.
Legend: K clients, N nodes that remained, B nodes of a batch, R generated rows, F features, H width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.kernels import activate, segment_product, segments_of, sparse_product
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch
from suture.graph.splits import Role
from suture.nn.backbones import Sage
from suture.nn.layers import project
from suture.settings import TrainingSettings
from suture.training.losses import nodes_loss

CLASSIFIER = "classifier."
"""What the names of F's weights begin with, among those of the generator."""


def mended_logits(network: Sage, params: Tree, graph: GraphBatch, source_R: Tensor, made_RF: Tensor) -> Tensor:
    """Class scores [N, C] of the graph's nodes, differentiable in the features of those generated for nodes `source_R`.

    Rows are in the order of clients.
    """
    count_N = torch.bincount(source_R, minlength=graph.num_nodes).to(made_RF.dtype)
    share_N1 = (count_N / (count_N + graph.degree).clamp_min(1)).unsqueeze(1)
    part_R1 = (1 / count_N[source_R]).unsqueeze(1)
    segments = segments_of(graph.segments.client[source_R], len(graph.ids))
    h: Tensor | Features = graph.x
    h_new, scores = made_RF, made_RF
    for index in range(1, network.settings.layers + 1):
        own, neighbour, bias = (params[f"layer{index}.{part}"] for part in ("self", "neighbour", "bias"))
        told, told_new = project(h, neighbour, graph.segments), segment_product(h_new, neighbour, segments)
        known = sparse_product(graph.mean_operator, told)
        supposed = torch.zeros_like(known).index_add(0, source_R, part_R1 * told_new)
        out = project(h, own, graph.segments) + (1 - share_N1) * known + share_N1 * supposed
        out_new = segment_product(h_new, own, segments) + told[source_R]
        inner = index < network.settings.layers
        h = scores = activate(out, bias, graph.segments, relu=inner)
        h_new = activate(out_new, bias, segments, relu=inner)
    return network.classify(params, scores, graph.segments)


def labels_loss(
    network: Sage, params: Tree, graph: GraphBatch, nodes_B: Tensor, source_R: Tensor, made_RF: Tensor
) -> Tensor:
    """L^c over those of `nodes_B` that train, [K]."""
    trained = nodes_B[graph.role[nodes_B] == Role.TRAIN]
    logits = mended_logits(network, params, graph, source_R, made_RF)[trained]
    owner = graph.segments.client[trained]
    return nodes_loss(logits, graph.y[trained], owner, len(graph.ids), graph.target, TrainingSettings())
