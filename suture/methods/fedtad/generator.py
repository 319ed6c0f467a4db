"""What FedTAD's server makes graphs with: a conditional generator of node features, linked by their likeness.

    x = W_4 tanh(W_3 tanh(W_2 tanh(W_1 [e_c || z])))        z ~ N(0, 1)^32, e_c a learnt code of class c

and every node is linked, both ways, with the `links` nodes whose features have the largest cosine with its own. No gradient
goes through the choice of links. Legend: P pseudo-nodes, F features, C classes, K clients.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, activate
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch
from suture.nn.backbones import Backbone
from suture.nn.layers import linear_init

NOISE, HIDDEN = 32, (64, 128, 256)
CODES = "codes"


def fresh_generator(features: int, classes: int, rng: torch.Generator) -> Tree:
    """Initial weights [1, ...]."""
    widths = (NOISE + classes, *HIDDEN, features)
    tree = {CODES: torch.randn(1, classes, classes, generator=rng)}
    for number, (wide, narrow) in enumerate(itertools.pairwise(widths), start=1):
        tree |= linear_init(f"generator{number}", wide, narrow, rng)
    return tree


def generated(params: Tree, noise_PZ: Tensor, label_P: Tensor) -> Tensor:
    """Features [P, F] of pseudo-nodes of these classes."""
    h = torch.cat([params[CODES][0][label_P], noise_PZ], 1)
    for number in range(1, len(HIDDEN) + 2):
        h = h @ params[f"generator{number}.weight"][0] + params[f"generator{number}.bias"][0]
        h = torch.tanh(h) if number <= len(HIDDEN) else h
    return h


def linked(x_PF: Tensor, label_P: Tensor, links: int, ids: tuple[str, ...]) -> GraphBatch:
    """The pseudo-graph, once for each of these names."""
    nodes, copies = x_PF.shape[0], len(ids)
    unit = F.normalize(x_PF.detach(), dim=1)
    alike = (unit @ unit.T).fill_diagonal_(-torch.inf)
    near = alike.topk(min(links, nodes - 1), dim=1).indices
    adjacent = torch.zeros(nodes, nodes, dtype=torch.bool, device=x_PF.device).scatter_(1, near, True)
    edges = torch.nonzero(adjacent | adjacent.T).T
    offset = torch.arange(copies, device=x_PF.device) * nodes
    everywhere = (edges.unsqueeze(1) + offset.view(1, -1, 1)).reshape(2, -1)
    segments = Segments(torch.arange(copies + 1, device=x_PF.device) * nodes)
    return GraphBatch(
        ids,
        segments,
        Features(x_PF.detach().repeat(copies, 1), segments),
        everywhere,
        label_P.repeat(copies),
        torch.zeros(nodes * copies, dtype=torch.int8, device=x_PF.device),
        torch.arange(nodes * copies, device=x_PF.device),
        public=True,
    )


def class_scores(backbone: Backbone, params: Tree, x_NF: Tensor, graph: GraphBatch) -> Tensor:
    """What K networks say of features that have a gradient, [N, C]; without dropout."""
    h, depth = x_NF, backbone.settings.layers
    for index in range(1, depth + 1):
        out = backbone.apply_layer(f"layer{index}", params, h, graph)
        h = activate(out, params[f"layer{index}.bias"], graph.segments, relu=index < depth)
    return backbone.classify(params, h, graph.segments)


def sameness(noise_PZ: Tensor, x_PF: Tensor) -> Tensor:
    """L_div: near one where features are alike although their noise is not."""
    apart_noise = torch.cdist(noise_PZ, noise_PZ).square() / noise_PZ.shape[1]
    apart_x = torch.stack([(x_PF - row).abs().mean(1) for row in x_PF])
    return torch.exp(-(apart_noise * apart_x).mean())
