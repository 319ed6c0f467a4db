"""What several experts say together, and how much each of them has to say at an owner.

Legend: K clients, E experts, N nodes, C outputs, M validation examples: nodes, known labels of nodes, or pairs.

    class    p(y) = sum_e a_e p_e(y)          labels   the same of each yes or no
    value    y = sum_e a_e y_e                link     score(u, v) = sum_e a_e <z_e(u), z_e(v)>

The weights a_k of client k are the most likely ones given its M_k validation examples and a Dirichlet prior with the mean
a_bar and the weight of `doubt` examples; EM finds them, as the likelihood is concave in a:

    r_ve = a_ke q_ve / sum_f a_kf q_vf        q_ve: how likely expert e thinks the truth of example v to be
    a_ke <- (sum_v r_ve + doubt a_bar_e) / (M_k + doubt)

For `value` q is Gaussian, with the mean squared error of the client's best expert as variance. A client without validation
examples has a_k = a_bar.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import client_mean
from suture.graph.batch import GraphBatch
from suture.training.losses import standardised

VALIDATION = 2
"""The role of nodes and pairs by which weights are found."""
STEPS = 20
"""Of EM: it begins at a_bar, and what is left after so many moves no decision."""
TINY = 1e-12


@dataclass(frozen=True)
class Judged:
    """How likely experts think the truth to be: `likely` float64 [M, E], up to a factor each; `client` int64 [M].

    `top` [M, 1] is the logarithm of that factor.
    """

    likely: Tensor
    client: Tensor
    clients: int
    top: Tensor | None = None

    @staticmethod
    def of(graph: GraphBatch, out_ENC: Tensor) -> Judged:
        """By the clients' own validation examples."""
        log_ME, client = _pairs_judged(graph, out_ENC) if graph.pairs is not None else _nodes_judged(graph, out_ENC)
        log_ME = log_ME.double()
        top = log_ME.max(1, keepdim=True).values if log_ME.numel() else log_ME[:, :1]
        return Judged((log_ME - top).exp(), client, len(graph.ids), top)

    def explained(self, weights_KE: Tensor) -> Tensor:
        """sum_v r_ve: how many examples each expert stands for, float64 [K, E]."""
        shared = weights_KE.double()[self.client] * self.likely
        shared = shared / shared.sum(1, keepdim=True).clamp_min(TINY)
        return torch.zeros_like(weights_KE, dtype=torch.float64).index_add_(0, self.client, shared)

    @property
    def counts(self) -> Tensor:
        """M_k, float64 [K, 1]."""
        return torch.bincount(self.client, minlength=self.clients).double().unsqueeze(1)

    def validated(self) -> Tensor:
        """Mean log-likelihood of a client's examples by each expert, and 1; zeros for a client without any, [K, E + 1]."""
        log_ME = self.likely.clamp_min(TINY).log() + (0 if self.top is None else self.top)
        each = torch.cat([log_ME, torch.ones_like(log_ME[:, :1])], 1)
        total = each.new_zeros(self.clients, each.shape[1]).index_add_(0, self.client, each)
        return total / self.counts.clamp_min(1)

    def shares(self, prior_KE: Tensor) -> Tensor:
        """One step of EM for everybody's a_bar: the share of a client's examples that each expert stands for, [K, E].

        Of a client without any, a_bar itself.
        """
        return torch.where(self.counts > 0, self.explained(prior_KE) / self.counts.clamp_min(1), prior_KE.double())

    def weights(self, prior_KE: Tensor, doubt: float) -> Tensor:
        """a_k, float64 [K, E]."""
        prior, total = prior_KE.double(), self.counts + doubt
        weights = prior
        for _ in range(STEPS):
            weights = torch.where(total > 0, (self.explained(weights) + doubt * prior) / total.clamp_min(TINY), prior)
        return weights


def _nodes_judged(graph: GraphBatch, out_ENC: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of likelihoods [M, E], and whose they are [M]."""
    nodes, target = graph.nodes_in(VALIDATION), graph.target
    out, y, owner = out_ENC[:, nodes], graph.y[nodes], graph.segments.client[nodes]
    if target.kind == "class":
        return out.log_softmax(2)[:, torch.arange(nodes.numel(), device=y.device), y].T, owner
    y_MC = y.reshape(out.shape[1:])
    known, each = ~y_MC.isnan(), owner.unsqueeze(1).expand(y_MC.shape)
    truth = torch.where(known, y_MC, 0).to(out.dtype)
    if target.kind == "labels":
        return _binary(out, truth)[:, known].T, each[known]
    error_ME, owner = (standardised(truth, target) - out).square()[:, known].T, each[known]
    mean_KE = torch.stack([client_mean(error, owner, len(graph.ids)) for error in error_ME.unbind(1)], 1)
    variance_K = mean_KE.min(1).values.clamp_min(TINY)
    spread_M1 = variance_K[owner].unsqueeze(1)
    return -error_ME / (2 * spread_M1) - spread_M1.log() / 2, owner


def _pairs_judged(graph: GraphBatch, out_ENC: Tensor) -> tuple[Tensor, Tensor]:
    """The same of pairs."""
    assert graph.pairs is not None
    held = graph.pairs.role == VALIDATION
    left, right = graph.pairs.nodes[:, held]
    score_EM = (out_ENC[:, left] * out_ENC[:, right]).sum(2)
    return _binary(score_EM, graph.pairs.label[held].to(score_EM.dtype)).T, graph.segments.client[left]


def _binary(score: Tensor, truth: Tensor) -> Tensor:
    """The logarithm of p of each yes or no."""
    return torch.nn.functional.logsigmoid(torch.where(truth > 0.5, score, -score))


def pooled(graph: GraphBatch, out_ENC: Tensor, weights_KE: Tensor, link: bool) -> Tensor:
    """What the experts say together, as a network's output: log p(y), the logit of each label, numbers [N, C].

    For links embeddings [N, E C], whose inner products are the weighted sums of the experts'.
    """
    weights_EN1 = weights_KE[graph.segments.client].T.unsqueeze(2).to(out_ENC.dtype)
    if link:
        return (weights_EN1.sqrt() * out_ENC).transpose(0, 1).flatten(1)
    if out_ENC.shape[0] == 1:
        return out_ENC[0]
    if graph.target.kind == "value":
        return (weights_EN1 * out_ENC).sum(0)
    log_weight = weights_EN1.clamp_min(TINY).log()
    if graph.target.kind == "class":
        return torch.logsumexp(out_ENC.log_softmax(2) + log_weight, 0)
    yes, no = (torch.logsumexp(torch.nn.functional.logsigmoid(sign * out_ENC) + log_weight, 0) for sign in (1, -1))
    return yes - no
