"""FED-PUB: Personalized subgraph federated learning. Baek, Jeong, Jin, Yoon and Hwang, ICML 2023.

Every client i has its own model: an average of all clients' weights in which those that behave alike count more, seen
through a mask mu_i that the client learns, keeps and never sends.

    server (algorithm 2)
      1  draw one random graph G~; theta_bar_i <- the initial weights, for all i
      for t = 1..T
      2    send theta_bar_i to every sampled client i, get theta_i and h_i back
      3    S(i, j) = cos(h_i, h_j)                                                                            section 4.1
      4    theta_bar_i <- sum_j alpha_ij theta_j,   alpha_ij = exp(tau S(i, j)) / sum_k exp(tau S(i, k))              (3)

    client i (algorithm 1), mu_i = 1 at first
      5  theta_i <- theta_bar_i; E local epochs over theta_i and mu_i, the network running on theta_i * mu_i,         (2)
           min L(G_i; theta_i * mu_i) + lambda1 |mu_i|_1 / M + lambda2 ||theta_i * mu_i - theta_bar_i||^2             (4)
      6  its model from now on, in tests too, is theta_i * mu_i, zero where |mu_i| < threshold; return theta_i without
         those entries, and h_i = AVG(f(G~; model))                                                           section 4.1

What the paper leaves open (c: as in the authors' public code; v: chosen by validation accuracy on Cora):
- theta_i is sent, not theta_i * mu_i (c, v: more stable), so the server learns of a mask only where it is zero. Algorithm 1
  makes theta_i the product (line 3) and returns it: `returned = "product"`, which tells masks along with weights. An entry
  that was not returned is averaged as it was handed out. What a mask hides is not sent down either (Table 3 cannot be
  reached otherwise): there the client goes on with its own value.
- Matrices have masks, biases do not (c). Masks share the optimiser of the weights (c).
- |mu|_1 is divided by its M entries (v; `l1_norm`): as a sum, lambda1 = 0.001 outweighs the loss in most entries, and the
  0.3 to 0.9 of Table 5 leave no model at all. As a mean 0.001 is nothing at all: a mask entry's gradient, lambda1 / M, is
  below Adam's epsilon of 1e-8 from M = 100,000 on. `l1_norm = "shrink"` is the proximal step of the same norm, apart from
  Adam: every mask entry comes nearer to zero by lr lambda1 in each local epoch, whatever M is, so that an entry lasts if its
  gradients keep it. lambda1 = 0.3 to 0.9 are meant for it, as in Tables 3 and 5; how sparse models get was not measured.
- The proximal term is of the model in use, theta * mu (v): with one local epoch theta itself never differs from theta_bar
  when the gradient is taken. In further epochs it holds training back, so that it counts only where a round is one epoch
  (v; `proximal = "always"` is equation (4) to the letter).
- f is the last layer before its activation (c), in the client's own model (c): without the masks all models soon behave
  alike. So the client computes h_i, on a graph that everybody draws from the run's public seed.
- Clients not sampled keep the theta_i of their last round in all sums; one never sampled starts from the initial weights.

Privacy: h_i is D numbers that depend on the client's data through its model only. `similarity = "labels"` and
`proxy = "own-features"` exist to compare with: clients then tell their label counts, or an embedding of their own features.
Legend: K clients, P entries of a model, M of them with a mask, D entries of what clients are compared by, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.method import Clients, Cohort, Shared, Task
from suture.methods.averaging import Averaging, Kept, Trained
from suture.methods.fedpub.masks import MASK, masked_model, masks_of, pruned, shrunk, weights_of
from suture.methods.fedpub.mixing import mixed, nearest_only, row_blocks
from suture.methods.fedpub.proxy_graph import Precision, ProxySettings, proxy_graph
from suture.methods.fedpub.wire import RowLayout, SparseModel, everything, restored, support_of, thinned
from suture.methods.personal import NEWCOMER, heard, positions
from suture.settings import Cosine, Count, NonNegative, Search, Share, Whole
from suture.training.batches import Batch
from suture.training.optimisers import in_round
from suture.training.shared import taken, told

DRAWN = 500
"""With more clients than this a round's K x K matrices are not kept for pictures, which could not show them."""


@dataclass(frozen=True)
class Heard(Record):
    """Models by client: `params` [K, P]; `support`, which entries travel; `signature` [K, D], what it is compared by.

    `moments` [K, ...] of the weights, where they are averaged.
    """

    params: Tensor
    support: Rows
    signature: Tensor
    moments: Tree = field(default_factory=dict, kw_only=True)

    def message(self) -> SparseModel:
        """The models without what the clients' masks hide."""
        return SparseModel(self.ids, thinned(self.params, self.support), self.support, moments=self.moments)


@dataclass(frozen=True)
class Federation(Heard):
    """What the server last got from everybody: personal rows (`suture.methods.personal`).

    Row i of `weights` float32 [K, K] is what client i is sent of everybody's model: alpha of equation (3).
    """

    weights: Tensor

    @staticmethod
    def of(known: Heard, alpha: Tensor) -> Federation:
        """Newcomers get the initial model, and nobody else gets any of it."""
        weights = torch.nn.functional.pad(alpha.float(), (1, 0, 1, 0))
        weights[0, 0] = 1
        return Federation(known.ids, known.params, known.support, known.signature, weights, moments=known.moments)

    def personal(self, ids: Sequence[str]) -> Heard:
        """theta_bar_i of these clients; those asked for last are kept: what is tested is handed out next."""
        asked, last = tuple(ids), self._last
        if asked not in last:
            rows = positions(self, asked)
            params = mixed({"params": self.params}, self.weights, rows)["params"]
            moments = mixed(self.moments, self.weights, rows)
            last.clear()
            last[asked] = Heard(asked, params, self.support.select(rows), self.signature[rows], moments=moments)
        return last[asked]

    @cached_property
    def _last(self) -> dict[tuple[str, ...], Heard]:
        return {}

    def after(self, news: Heard) -> Heard:
        """What is known when these clients have been heard."""
        device, width = news.params.device, news.signature.shape[1]
        # The newcomers' row alone has no signature yet, and no moments.
        signature = self.signature if self.signature.shape[1] == width else self.signature.new_zeros(len(self.ids), width)
        bits = Rows(self.support.values.to(device), self.support.ptr)
        none = {name: value.new_zeros(len(self.ids), *value.shape[1:]) for name, value in news.moments.items()}
        moments = {name: self.moments.get(name, value).to(device) for name, value in none.items()}
        return heard(Heard(self.ids, self.params.to(device), bits, signature.to(device), moments=moments), news)


@dataclass(frozen=True)
class Up(SparseModel):
    """Client to server: its weights, its training loss [K], and its `signature` [K, D], what it is compared by."""

    loss: Annotated[Tensor, Kind.LOSSES]
    signature: Annotated[Tensor, Kind.SIGNATURES]


@dataclass(frozen=True)
class Personal(Kept):
    """What a client keeps: theta_i, mu_i and their moments, and `model` [K, ...], what it makes of them (line 6)."""

    model: Tree


@dataclass(frozen=True)
class FedPub(Averaging[Federation, Personal, SparseModel, Up]):
    """Personal averages of models that behave alike, behind personal masks."""

    name: ClassVar[str] = "fedpub"
    summary: ClassVar[str] = "a model for every client: averages of models that behave alike, and learnt masks"
    paper: ClassVar[str] = "Baek et al., ICML 2023"
    edges_by_layers: ClassVar[bool] = True
    one_model: ClassVar[bool] = False
    shares: ClassVar[tuple[Shared, ...]] = ("moments",)
    spends: ClassVar[bool] = True

    tau: Annotated[NonNegative, Search(1.0, 30.0)] = 3.0
    """How much more alike models count: 0 averages all equally. The paper takes 3 without and 5 with shared nodes."""
    lambda1: Annotated[NonNegative, Search(1e-4, 0.1)] = 0.001
    """Weight of the masks' L1 norm, which empties them; see l1_norm."""
    lambda2: Annotated[NonNegative, Search(1e-4, 0.1)] = 0.001
    """Weight of the distance between a client's model and the one it was sent; see proximal."""
    proximal: Literal["one-epoch", "always"] = "one-epoch"
    """When lambda2 counts; one-epoch: where training.local_epochs is 1, for it holds others back; always: as printed."""
    threshold: NonNegative | None = None
    """Mask entries below this are zero in tests, and their weights are not sent; unset: lambda1, as in the public code."""
    mask: bool = True
    """Learn masks; without (Figure 7) models are only averaged."""
    regularise: Literal["paper", "as-published-code"] = "paper"
    """as-published-code: both penalties without a gradient, so that they do nothing, as in the authors' public code."""
    l1_norm: Literal["mean", "sum", "shrink"] = "mean"
    """mean: lambda1 times the mean mask entry, without effect at 0.001; sum: equation (4) to the letter, which leaves no
    model from 0.3 on; shrink: apart from the optimiser, masks come nearer to zero by lr lambda1 an epoch."""
    returned: Literal["weights", "product"] = "weights"
    """What a client sends: its weights, or (algorithm 1, line 3) weights times masks."""
    similarity: Literal["function", "parameters", "gradients", "labels", "none"] = "function"
    """Compare models by outputs, weights, their change in the round, or label counts, which LEAKS them; or not at all."""
    community: Cosine = -1.0
    """Average only models with a similarity above this (Table 11: 0.5); -1 averages all, 1 makes everybody train alone."""
    neighbours: Whole = 0
    """Average only so many others, the most similar ones, and the client's own; 0: all. Thousands of clients need it."""
    proxy: Literal["sbm", "erdos-renyi", "single-node", "own-features"] = "sbm"
    """The random graph models are compared on; own-features LEAKS an embedding of every client's own features."""
    proxy_blocks: Count = 5
    """Blocks of the random graph."""
    proxy_block_size: Count = 100
    """Nodes of each block."""
    proxy_p_in: Share = 0.1
    """Chance of a link inside a block."""
    proxy_p_out: Share = 0.01
    """Chance of a link between blocks; 0 in the authors' public code."""
    proxy_rank: Annotated[int, Field(ge=0)] = 0
    """Rank of the random graph's features: smaller is faster where they are wide; 0: all are drawn, as in the paper."""
    proxy_precision: Precision = "float32"
    """bfloat16: the random graph's first layer in half the time where the processor knows it; three digits remain."""

    @property
    def hides_below(self) -> float:
        """The threshold of line 6."""
        return self.lambda1 if self.threshold is None else self.threshold

    def initial_params(self, task: Task) -> Tree:
        """Weights, and masks that hide nothing."""
        weights = super().initial_params(task)
        return weights | {MASK + name: torch.ones_like(weights[name]) for name in self.masked_names(weights, task)}

    def masked_names(self, weights: Tree, task: Task) -> list[str]:
        """Every matrix that is trained."""
        frozen = self.frozen_names(task)
        return [name for name, value in weights.items() if self.mask and value.dim() > 2 and name not in frozen]

    # The server's side

    def init_server(self, task: Task) -> Federation:
        """Line 1: nobody is known yet."""
        params = self.initial_params(task)
        row = layout_of(params).join(params)
        return Federation((NEWCOMER,), row, everything(1), torch.zeros(1, 0), torch.ones(1, 1))

    def combine(self, server: Federation, handed: SparseModel, up: Up, cohort: Cohort) -> Federation:
        """Lines 3 and 4."""

        @cache
        def start_KP() -> Tensor:
            """theta_bar_i whole again; mostly nobody needs it."""
            return server.personal(up.ids).params.to(up.loss.device)

        theta_KP = restored(up, server.params.shape[1], start_KP)
        signature = self.signature(up, theta_KP, start_KP)
        known = server.after(Heard(up.ids, theta_KP, up.support, signature, moments=up.moments))
        cohort.report(loss=float(up.loss.mean()), sent_share=up.values.values.numel() / theta_KP.numel())
        known_ids, signature = known.ids[1:], known.signature[1:]
        if len(cohort.ids) > DRAWN:
            return Federation.of(known, self.weights(signature))
        similarity = self.similarities(signature)
        alpha = self.alpha(similarity)
        cohort.keep(similarity=placed(similarity, known_ids, cohort.ids), weights=placed(alpha, known_ids, cohort.ids))
        return Federation.of(known, alpha)

    def weights(self, signature_KD: Tensor) -> Tensor:
        """Lines 3 and 4: alpha, float32 [K, K], some rows at a time."""
        clients = signature_KD.shape[0]
        alpha = signature_KD.new_empty(clients, clients, dtype=torch.float32)
        for block in row_blocks(clients, clients):
            alpha[block] = self.alpha(self.similarities(signature_KD, block), block.start).float()
        return alpha

    def signature(self, up: Up, theta_KP: Tensor, start_KP: Callable[[], Tensor]) -> Tensor:
        """What clients are compared by, [K, D]: h of line 6, or a variant's."""
        if self.similarity == "parameters":
            return theta_KP
        return theta_KP - start_KP() if self.similarity == "gradients" else up.signature

    def similarities(self, signature_KD: Tensor, rows: slice = slice(None)) -> Tensor:
        """S(i, j) of line 3 for these i, float64 [R, K]."""
        if self.similarity == "labels":
            return label_similarity(signature_KD, rows)
        unit = torch.nn.functional.normalize(signature_KD.double(), dim=1)
        return (unit[rows] @ unit.T).clamp(-1, 1)

    def alpha(self, similarity_RK: Tensor, first: int = 0) -> Tensor:
        """Equation (3), over those similar enough; client `first` + r, row r's own, is similar to itself."""
        scores = self.tau * similarity_RK
        if self.community > -1:
            itself = torch.arange(scores.shape[0], device=scores.device)
            strangers = similarity_RK <= self.community
            strangers[itself, itself + first] = False
            scores = scores.masked_fill(strangers, float("-inf"))
        return torch.softmax(nearest_only(scores, first, self.neighbours), 1)

    def hand_out(self, server: Federation, ids: Sequence[str]) -> SparseModel:
        """theta_bar_i for everybody."""
        return server.personal(ids).message()

    def deploy(self, server: Federation, ids: Sequence[str]) -> Message:
        """The same; who predicts needs no moments."""
        return replace(self.hand_out(server, ids), moments={})

    # The clients' side

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Personal]) -> dict[str, Tensor]:
        """Equation (4)."""
        model, size, distance = masked_model(params, received)
        terms = super().loss_terms(model, batch, received, clients)
        if self.regularise == "as-published-code":
            size, distance = size.detach(), distance.detach()
        if self.mask and self.l1_norm != "shrink":
            entries = sum(mask[0].numel() for mask in masks_of(params).values())
            terms["sparsity"] = self.lambda1 / (entries if self.l1_norm == "mean" else 1) * size
        if self.proximal == "always" or self.training.local_epochs == 1:
            terms["proximal"] = self.lambda2 * distance
        return terms

    def train(self, clients: Clients[Personal], start: Tree) -> Trained:
        """Line 5; with `shrink` its penalty is a step of its own."""
        trained = super().train(clients, start)
        if self.l1_norm != "shrink" or self.regularise == "as-published-code":
            return trained
        by = in_round(self.training, clients.round).lr * self.lambda1 * self.training.local_epochs
        return replace(trained, params=shrunk(trained.params, by))

    def init_clients(self, clients: Clients[Nothing]) -> Personal:
        """The initial weights, and masks that hide nothing."""
        kept = self.fresh(clients)
        return Personal(**vars(kept), model=pruned(kept.params, self.hides_below)[0])

    def received(self, clients: Clients[Personal], down: SparseModel) -> Tree:
        """Line 5: theta_bar_i, where it was sent; all else is as the client has it."""
        own = clients.state.params
        layout = layout_of(own)
        return own | layout.split(restored(down, layout.entries, lambda: layout.join(own)))

    def informed(self, clients: Clients[Personal], down: SparseModel) -> Personal:
        """Received moments over kept ones; the masks' are the client's own."""
        return replace(clients.state, moments=taken(clients.state.moments, down.moments))

    def conclude(self, clients: Clients[Personal], down: SparseModel, trained: Trained) -> tuple[Personal, Up]:
        """Line 6."""
        params = trained.params
        model, visible = pruned(params, self.hides_below)
        support = everything(len(clients.ids)) if visible is None else support_of(visible)
        values = thinned(layout_of(params).join(params if self.returned == "weights" else model), support)
        personal = replace(clients.state, params=params, moments=trained.moments, model=model)
        moments = told(trained.moments, weights_of(params), self.training)
        return personal, Up(clients.ids, values, support, trained.loss, self.told(clients, model), moments=moments)

    def told(self, clients: Clients[Personal], model: Tree) -> Tensor:
        """What a client says about itself, [K, D]: h of line 6, label counts, or nothing."""
        graph, task, count = clients.graph, clients.task, len(clients.ids)
        if self.similarity == "labels":
            if graph.pairs is not None:
                raise ConfigError("fedpub.similarity labels compares classes, which link prediction has not")
            if graph.target.kind != "class":
                raise ConfigError("fedpub.similarity labels compares single classes; choose fedpub.similarity=function here")
            cell = graph.train.segments.client * task.classes + graph.y[graph.train.nodes]
            return torch.bincount(cell, minlength=count * task.classes).view(count, task.classes).float()
        if self.similarity != "function":
            return torch.zeros(count, 0, device=graph.device)
        kind, blocks, size = self.proxy, self.proxy_blocks, self.proxy_block_size
        chances = (self.proxy_p_in, self.proxy_p_out)
        settings = ProxySettings(kind, blocks, size, *chances, self.proxy_rank, self.proxy_precision)
        proxy = proxy_graph(settings, count, task.features, task.seed, graph.device)
        if self.proxy == "own-features":
            proxy = proxy.on_features_of(graph, Streams.of(task.seed, clients.ids, "proxy", device=graph.device))
        return proxy.embed(self.backbone(task), model)

    def assemble(self, clients: Clients[Personal], deployed: Message) -> Model:
        """The model of line 6: as training left it, or of received weights over kept ones."""
        if isinstance(deployed, SparseModel):
            return Model(clients.ids, pruned(self.received(clients, deployed), self.hides_below)[0])
        return Model(clients.ids, clients.state.model)


def layout_of(params: Tree) -> RowLayout:
    """The layout of what a client keeps, whose masks say which parameters have one."""
    return RowLayout.of(weights_of(params), masks_of(params))


def label_similarity(counts_KC: Tensor, rows: slice = slice(None)) -> Tensor:
    """One minus the Jensen-Shannon distance (base 2) of label distributions, of these clients to all, float64 [R, K]."""
    share = counts_KC.double() / counts_KC.sum(1, keepdim=True).clamp_min(1)
    middle = (share[rows].unsqueeze(1) + share) / 2
    entropy, joint = (-torch.xlogy(p, p).sum(-1) / math.log(2) for p in (share, middle))
    return 1 - (joint - (entropy[rows].unsqueeze(1) + entropy) / 2).clamp_min(0).sqrt()


def placed(matrix_RR: Tensor, ids: Sequence[str], everyone: Sequence[str]) -> Tensor:
    """A matrix over `ids` as one over `everyone`, NaN where a client is not among `ids`."""
    out = matrix_RR.new_full((len(everyone), len(everyone)), float("nan"))
    row = {name: k for k, name in enumerate(ids)}
    present = [(k, row[name]) for k, name in enumerate(everyone) if name in row]
    to, origin = (torch.tensor(side, dtype=torch.int64, device=out.device) for side in zip(*present, strict=True))
    out[to.unsqueeze(1), to] = matrix_RR[origin.unsqueeze(1), origin]
    return out
