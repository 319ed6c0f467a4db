"""FedGGR: Subgraph federated learning with global graph reconstruction. Liu et al., 2023.

The server learns a graph over everybody's nodes from compressed features and sends each client embeddings of its nodes.

    Pre-training
      1  client i trains a graph auto-encoder on its features (equations 1 and 2) and sends the codes E_i of its nodes
    for t = 1..T
      2  server: A = kNN(MLP(E)), A* = processor(A), Z = GCN(E, A*)                                (equations 6, 7 and 8)
      3  server sends w and Z_i to client i, which makes Q local epochs on the loss of
           softmax(MLP([GNN(X_i, A_i) || Z_i]))                                                     (equations 3, 4 and 5)
      4  client i sends w_i and the gradient of its loss in Z_i
      5  server: gradient of its own weights = backward(Z, gradients of Z), one optimiser step
      6  w <- sum_i |V_i| / |V| w_i

What the paper leaves open, and what we do (figures in docs/fedggr.md):
- The auto-encoder's activation, width and training: none, its decoder is its encoder transposed, and its optimum is found by
  power iterations (`encoder = "linear"`). Codes are then principal directions of smoothed features and keep who is near
  whom; those of an auto-encoder with ReLU trained by Adam lose it (`relu`).
- Each client's auto-encoder has its own space, but kNN compares codes of all clients. `alignment`: average the auto-encoders
  after every round of pretraining (default), start them alike, or neither.
- Codes are centred and divided by their standard deviation on the server.
- Neighbours: k others by cosine similarity, which is also the weight of the edge, and the node itself. Gradients reach the
  generator through these weights. They are searched anew every `refresh` rounds; weights follow the generator every round.
- MLP-D starts as the identity and has no activation: a ReLU would cut half of every code away.
- Equation (7) divides by degrees of A, which is not symmetric, and leaves negative weights; we cut negative similarities
  off and divide by the degrees of the symmetric matrix that is normalised, as SLAPS does.
- F_l and F_g are 64 to 256 in the paper. Unless they are set (`local_width`, `global_width`), an embedding has one number
  for each class, and the classifier of equation (4) starts as the sum of the two.
- That classifier is linear in [local || global]; `activation` may put a ReLU before it. While training, a node has only one
  of the two (`branch_dropout`): otherwise the local network has learned the training nodes before the server's has begun.
- Dropout in equation (8): that of the local network between the layers, and `code_dropout` of what the first one reads.
- A* has self-loops already, so the GCN of equation (8) adds none and normalises nothing again.
- Q > 1: Algorithm 1 overwrites the gradient of Z_i in each epoch, so the last one's is sent; `returned` has others.
- Algorithm 1 adds up clients' gradients of Z; we weight them by |V_i| / |V|, as in the objective (9).
- The server's optimiser is that of the clients, with moments of its own.
- Softmax belongs to the loss and is not taken twice.

Privacy: the server sees E_i, P numbers for every node, from which features can be guessed, and how many nodes a client has.
A power iteration sends sums over all of a client's nodes; of a client with fewer than P nodes they span its features.
Legend: K clients, N nodes of all clients, B nodes of a batch, P code width, L and G widths of local and global embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, get_args, get_type_hints

import torch
from torch import Tensor

from suture.core.kernels import Segments, activate, client_mean, segment_product
from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, mean, tile
from suture.errors import ConfigError, unknown
from suture.graph.batch import GraphBatch
from suture.method import Clients, Cohort, Method, Phase, Task, step
from suture.methods.averaging import SERVER
from suture.methods.fedggr.autoencoder import GraphAutoencoder, LinearAutoencoder, orthonormal
from suture.nn.backbones import Backbone, make_backbone
from suture.nn.graph_learner import Between, Edges, Generator, GraphLearner, LearnedGraph
from suture.nn.layers import dropout, linear_init
from suture.nn.module import ModuleBackbone
from suture.nn.topk import Index, Links, Similarity
from suture.settings import TrainingSettings
from suture.training.local import Batch, Moments, fresh_moments, optimise, train_locally

HEAD = "fusion"
"""The classifier of [local || global] embeddings."""
GLOBAL = "global embedding"
"""In a client's model: Z_i, padded to the size of the largest client, [K, longest, G]."""


@dataclass(frozen=True)
class Server(Record):
    """What the server keeps: w, its own weights W_S with their moments, all [1, ...], and what it knows of the nodes.

    `codes` holds E_i under the name of client i, [1, N_i, P]; `links` [1, 2, M] who has chosen whom in the learned graph.
    """

    params: Tree
    own: Tree
    moments: Moments
    autoencoder: Tree
    codes: Tree
    links: Tensor
    round: int
    seed: int


@dataclass(frozen=True)
class Kept(Record):
    """What a client keeps: its model and moments [K, ...], Z_i as last received, and its auto-encoder until E_i is sent.

    `longest` [K] is the number of nodes of the largest client, to which models are padded so that they can be stacked.
    """

    params: Tree
    moments: Moments
    z: Rows
    longest: Tensor
    autoencoder: Tree
    autoencoder_moments: Moments


@dataclass(frozen=True)
class Trained(Message):
    """Client to server: its auto-encoder, empty where it stays at home, and its number of nodes and loss [K]."""

    autoencoder: Annotated[Tree, Kind.WEIGHTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Codes(Message):
    """Client to server: E_i of line 1."""

    codes: Annotated[Rows, Kind.EMBEDDINGS]


@dataclass(frozen=True)
class Down(Message):
    """Server to client: w, Z_i of line 3, and how many nodes the largest client has."""

    params: Annotated[Tree, Kind.WEIGHTS]
    z: Annotated[Rows, Kind.EMBEDDINGS]
    longest: Annotated[int, Kind.COUNTS]


@dataclass(frozen=True)
class Up(Message):
    """Client to server: w_i and the gradient of Z_i of line 4, the client's weight and training loss [K]."""

    params: Annotated[Tree, Kind.WEIGHTS]
    z_grad: Annotated[Rows, Kind.GRADIENTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class FedGgr(Method[Server, Kept]):
    """A graph over all clients' nodes, learned at the server by split learning."""

    name: ClassVar[str] = "fedggr"
    summary: ClassVar[str] = "the server learns a graph over all clients' nodes and sends embeddings of them"
    paper: ClassVar[str] = "Liu et al., 2023"
    one_model: ClassVar[bool] = False

    k: int = 20
    """Neighbours each node chooses in the learned graph."""
    gsl: bool = True
    """Use the server's graph; without (Figure 3) this is FedAvg with the classifier of equation (4)."""
    local_width: int = 0
    """F_l, width of local embeddings; 0: one for each class, and the classifier starts as the sum of local and global."""
    global_width: int = 0
    """F_g, width of global embeddings; 0: one for each class."""
    code_width: int = 256
    """p, numbers a node's features are compressed to."""
    encoder: Literal["linear", "relu"] = "linear"
    """The auto-encoder's GCNs: without activation, brought to the optimum by power iterations; or with, trained by Adam."""
    alignment: Literal["averaged", "shared", "none"] = "averaged"
    """Auto-encoders are averaged after every pretraining round, or only start alike, or not even that."""
    pretrain_rounds: int = 10
    """Rounds of pretraining, each one power iteration or `pretrain_epochs` epochs; without averaging they add up."""
    pretrain_epochs: int = 5
    """encoder = relu: epochs of each of these rounds."""
    pretrain_lr: float = 0.003
    """encoder = relu: learning rate."""
    pretrain_hidden: int = 128
    """encoder = relu: hidden width of encoder and decoder."""
    generator: Generator = "mlp-d"
    """What is learned about codes before they are compared."""
    between: Between = "none"
    """Activation inside the generator."""
    similarity: Similarity = "cosine"
    """How codes are compared."""
    edges: Edges = "relu"
    """P of equation (7), from similarities to weights."""
    refresh: int = 50
    """Rounds after which neighbours are searched anew."""
    index: Index = "auto"
    """How they are searched: exact, approximate (faiss), or by the number of nodes."""
    activation: Literal["none", "relu"] = "none"
    """Of [local || global] before the classifier; relu is for wide embeddings."""
    fusion_dropout: float = 0.0
    """Dropped share of [local || global] embeddings while training."""
    branch_dropout: float = 1.0
    """Share of training nodes for which one of local and global embedding is hidden, so that both learn to classify."""
    code_dropout: float = 0.0
    """Dropped share of the codes' numbers the server's GCN reads while training; neighbours are found by all of them."""
    server_lr: float = 0.0
    """Learning rate of the server; 0: that of the clients."""
    returned: Literal["last", "first", "mean"] = "last"
    """Which local epoch's gradient of Z a client sends."""

    def __post_init__(self) -> None:
        counts = ("k", "code_width", "pretrain_epochs", "pretrain_hidden", "refresh")
        for key in counts:
            if getattr(self, key) < 1:
                raise ConfigError(f"fedggr.{key} must be >= 1, got {getattr(self, key)}")
        for key in ("local_width", "global_width", "pretrain_rounds", "pretrain_lr", "server_lr"):
            if getattr(self, key) < 0:
                raise ConfigError(f"fedggr.{key} must be >= 0, got {getattr(self, key)}")
        for key in ("fusion_dropout", "code_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"fedggr.{key} must be in [0, 1), got {getattr(self, key)}")
        if not 0 <= self.branch_dropout <= 1:
            raise ConfigError(f"fedggr.branch_dropout must be in [0, 1], got {self.branch_dropout}")
        kinds = get_type_hints(FedGgr)
        choices = ("encoder", "alignment", "generator", "between", "similarity", "edges", "index", "activation", "returned")
        for key in choices:
            if getattr(self, key) not in get_args(kinds[key]):
                raise unknown(f"fedggr.{key}", getattr(self, key), get_args(kinds[key]))

    # The parts

    def widths(self, task: Task) -> tuple[int, int]:
        """(F_l, F_g)."""
        return self.local_width or task.classes, (self.global_width or task.classes) if self.gsl else 0

    def local_network(self, task: Task) -> Backbone:
        """f_theta of equation (3): its outputs are embeddings, not classes."""
        settings, width = replace(self.model, head=False), self.widths(task)[0]
        if task.module is not None:
            return ModuleBackbone(settings, task.features, width, task.module)
        return make_backbone(settings, task.features, width)

    def initial_params(self, task: Task) -> Tree:
        """The local network and the classifier of [local || global]."""
        rng = generator(task.seed, "initial weights")
        return self.local_network(task).init(rng) | self.initial_head(task, rng)

    def initial_head(self, task: Task, rng: torch.Generator) -> Tree:
        """Random; what an embedding of one number for each class says is taken as it is."""
        head = linear_init(HEAD, sum(self.widths(task)), task.classes, rng)
        parts = torch.split(head[f"{HEAD}.weight"][0], list(self.widths(task)))
        weight = torch.cat([torch.eye(task.classes) if part.shape[0] == task.classes else part for part in parts])
        return head | {f"{HEAD}.weight": weight.unsqueeze(0)}

    @property
    def learner(self) -> GraphLearner:
        """Equations (6) and (7)."""
        return GraphLearner(
            self.code_width, self.k, self.generator, self.similarity, self.edges, self.between, index=self.index
        )

    def autoencoder(self, task: Task) -> GraphAutoencoder | LinearAutoencoder:
        """Equation (1)."""
        if self.encoder == "linear":
            return LinearAutoencoder(task.features, self.code_width)
        return GraphAutoencoder(task.features, self.pretrain_hidden, self.code_width)

    # The server's side

    def plan(self) -> tuple[Phase[Server], ...]:
        """The lines of the box; without the server's graph nothing is pretrained."""
        rounds = Phase("round", self.round, self.training.rounds, evaluate=True)
        if not self.gsl:
            return (rounds,)
        return Phase("pretraining", self.pretrain, self.pretrain_rounds), Phase("upload", self.collect), rounds

    def init_server(self, task: Task) -> Server:
        """W_S: the generator starts as the identity; nothing is known of the nodes yet."""
        own = self.initial_own(task) if self.gsl else {}
        shared = self.gsl and self.alignment == "averaged"
        return Server(
            SERVER,
            params=self.initial_params(task),
            own=own,
            moments=fresh_moments(own, self.training) if own else {},
            autoencoder=self.initial_autoencoder(task) if shared else {},
            codes={},
            links=torch.zeros(1, 2, 0, dtype=torch.int64),
            round=0,
            seed=task.seed,
        )

    def initial_own(self, task: Task) -> Tree:
        """The generator of equation (6) and the GCN of equation (8), [1, ...]."""
        rng, hidden = generator(task.seed, "server weights"), self.model.hidden
        gcn = linear_init("gcn1", self.code_width, hidden, rng) | linear_init("gcn2", hidden, self.widths(task)[1], rng)
        return self.learner.init() | gcn

    def pretrain(self, server: Server, cohort: Cohort) -> Server:
        """Line 1, a few epochs of it."""
        up = cohort.ask(self.train_autoencoder, Model(cohort.ids, tile(server.autoencoder, len(cohort.ids))))
        cohort.report(loss=float(up.loss.mean()))
        if not up.autoencoder:
            return server
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        average = mean(up.autoencoder, up.weight)
        return replace(server, autoencoder=orthonormal(average) if self.encoder == "linear" else average)

    def collect(self, server: Server, cohort: Cohort) -> Server:
        """The end of line 1: E, comparable in scale whatever the auto-encoders made of it."""
        up = cohort.ask(self.send_codes, Model(cohort.ids, tile(server.autoencoder, len(cohort.ids))))
        everybody = up.select(sorted(up.ids)).codes
        centred = everybody.values - everybody.values.mean(0)
        scaled = Rows(centred / centred.std().clamp_min(1e-12), everybody.ptr)
        codes = {name: scaled.select([k]).values.unsqueeze(0) for k, name in enumerate(sorted(up.ids))}
        return replace(server, codes=codes, autoencoder={})

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Lines 2-6."""
        sampled = cohort.sample(self.training.participation)
        if self.gsl and server.round % self.refresh == 0:
            server = replace(server, links=self.search(server))
        leaves = {name: value.detach().requires_grad_() for name, value in server.own.items()}
        z = self.global_embeddings(server, leaves, Streams.of(server.seed, SERVER, "server dropout", server.round))
        up = sampled.ask(self.local_update, self.down(server, z.detach(), sampled.ids))
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        cohort.report(loss=float((up.loss * up.weight).sum() / up.weight.sum().clamp_min(1e-9)))
        own, moments = self.backward(server, leaves, z, up) if self.gsl else (server.own, server.moments)
        return replace(server, params=mean(up.params, up.weight), own=own, moments=moments, round=server.round + 1)

    def search(self, server: Server) -> Tensor:
        """The neighbours of equation (6), [1, 2, M]."""
        with torch.no_grad():
            codes_NP = everybodys(server.codes)
            segments = _one_piece(codes_NP)
            links = self.learner.links(self.learner.generate(server.own, codes_NP, segments), segments)
        return torch.stack([links.node, links.neighbour]).unsqueeze(0)

    def global_embeddings(self, server: Server, own: Tree, rng: Streams | None = None) -> Tensor:
        """Z of equations (6) to (8) [N, G], clients in the order of their names; with `rng`, dropout is on."""
        if not self.gsl:
            return torch.zeros(0, 0)
        codes_NP = everybodys(server.codes)
        segments = _one_piece(codes_NP)
        node, neighbour = server.links[0]
        r_NP = self.learner.generate(own, codes_NP, segments)
        graph = self.learner.process(r_NP, Links(node, neighbour, codes_NP.shape[0]))
        read = dropout(codes_NP, rng and rng.fork("codes"), self.code_dropout, segments)
        h = _convolved(graph, read, own["gcn1.weight"], segments) + own["gcn1.bias"]
        h = dropout(torch.relu(h), rng, self.model.dropout, segments)
        return _convolved(graph, h, own["gcn2.weight"], segments) + own["gcn2.bias"]

    def down(self, server: Server, z_NG: Tensor, ids: Sequence[str]) -> Down:
        """The message of line 3."""
        sizes = {name: codes.shape[1] for name, codes in server.codes.items()}
        pieces = dict(zip(sizes, torch.split(z_NG, list(sizes.values())), strict=True)) if sizes else {}
        chosen = [pieces.get(name, z_NG[:0]) for name in ids]
        ptr = torch.tensor([0, *(piece.shape[0] for piece in chosen)]).cumsum(0)
        return Down(tuple(ids), tile(server.params, len(ids)), Rows(torch.cat(chosen), ptr), max([0, *sizes.values()]))

    def backward(self, server: Server, leaves: Tree, z_NG: Tensor, up: Up) -> tuple[Tree, Moments]:
        """Line 5: (W_S, its moments) after one step. Nobody's gradient comes from a client that was not asked."""
        share = (up.weight / up.weight.sum().clamp_min(1e-9)).tolist()
        heard = {name: up.z_grad.select([k]).values * share[k] for k, name in enumerate(up.ids)}
        silent = {name: z_NG.new_zeros(codes.shape[1], z_NG.shape[1]) for name, codes in server.codes.items()}
        z_grad = torch.cat([heard.get(name, nothing).to(z_NG.device) for name, nothing in silent.items()])
        grads = torch.autograd.grad(z_NG, list(leaves.values()), z_grad, materialize_grads=True)
        own = {name: value.detach().clone() for name, value in leaves.items()}
        moments = {name: value.clone() for name, value in server.moments.items()}
        settings = replace(self.training, lr=self.server_lr or self.training.lr)
        optimise(own, dict(zip(leaves, grads, strict=True)), moments, torch.ones(1, dtype=torch.bool), settings)
        return own, moments

    def deploy(self, server: Server, ids: Sequence[str]) -> Message:
        """The global model for everybody, and Z_i without dropout (as soon as there are codes)."""
        if not server.codes:
            return Model(tuple(ids), tile(server.params, len(ids)))
        with torch.no_grad():
            return self.down(server, self.global_embeddings(server, server.own), ids)

    # The clients' side

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same model; auto-encoders as `alignment` says."""
        graph, count = clients.graph, len(clients.ids)
        if graph.pairs is not None:
            raise ConfigError("fedggr's classifier is one of nodes, and link prediction has none; choose another method")
        device = graph.device
        params = {n: v.to(device) for n, v in tile(self.initial_params(clients.task), count).items()}
        autoencoder: Tree = {}
        if self.gsl:
            autoencoder = {n: v.to(device) for n, v in self.initial_autoencoders(clients).items()}
        by_gradient = self.gsl and self.encoder == "relu"
        moments = fresh_moments(autoencoder, self._pretraining) if by_gradient else {}
        nothing = Rows(torch.zeros(graph.num_nodes, self.widths(clients.task)[1], device=device), graph.segments.ptr)
        return Kept(
            ids=clients.ids,
            params=params,
            moments=fresh_moments(params, self.training),
            z=nothing,
            longest=torch.zeros(count, dtype=torch.int64),
            autoencoder=autoencoder,
            autoencoder_moments=moments,
        )

    def initial_autoencoder(self, task: Task) -> Tree:
        """The one everybody starts from, [1, ...]."""
        return self.autoencoder(task).init(generator(task.seed, "initial auto-encoder"))

    def initial_autoencoders(self, clients: Clients[Nothing]) -> Tree:
        """Of each client, [K, ...]."""
        if self.alignment != "none":
            return tile(self.initial_autoencoder(clients.task), len(clients.ids))
        each = [self.autoencoder(clients.task).init(generator(clients.task.seed, "own", name)) for name in clients.ids]
        return {name: torch.cat([tree[name] for tree in each]) for name in each[0]}

    @property
    def _pretraining(self) -> TrainingSettings:
        return replace(self.training, optimizer="adam", lr=self.pretrain_lr, weight_decay=0.0)

    @step
    def train_autoencoder(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Trained]:
        """Line 1 from the average, if there is one, else from where the client was."""
        graph, network = clients.graph, self.autoencoder(clients.task)
        params, moments = clients.state.autoencoder | down.params, clients.state.autoencoder_moments
        if isinstance(network, LinearAutoencoder):
            params, loss = network.step(params, graph)
            # The server makes the average orthonormal; a client that nobody averages does so itself.
            params = params if down.params else orthonormal(params)
        else:
            params, moments, loss = self.train_by_gradient(network, params, moments, graph)
        kept = replace(clients.state, autoencoder=params, autoencoder_moments=moments)
        sent = {name: params[name] for name in down.params}
        return kept, Trained(clients.ids, sent, graph.sizes.float(), loss)

    def train_by_gradient(
        self, network: GraphAutoencoder, params: Tree, moments: Moments, graph: GraphBatch
    ) -> tuple[Tree, Moments, Tensor]:
        """(auto-encoders, moments, last loss [K]) after some epochs."""
        params = {name: value.clone() for name, value in params.items()}
        moments = {name: value.clone() for name, value in moments.items()}
        x_NF, everybody = graph.x.dense(), torch.ones(len(graph.ids), dtype=torch.bool)
        loss = torch.zeros(len(graph.ids), device=graph.device)
        for _ in range(self.pretrain_epochs):
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            loss = network.loss(leaves, graph, x_NF)
            grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            optimise(params, dict(zip(leaves, grads, strict=True)), moments, everybody, self._pretraining)
        return params, moments, loss.detach()

    @step
    def send_codes(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Codes]:
        """E_i; the auto-encoder has done its work."""
        params = clients.state.autoencoder | down.params
        with torch.no_grad():
            codes_NP = self.autoencoder(clients.task).encode(params, clients.graph)
        kept = replace(clients.state, autoencoder={}, autoencoder_moments={})
        return kept, Codes(clients.ids, Rows(codes_NP, clients.graph.segments.ptr))

    @step
    def local_update(self, clients: Clients[Kept], down: Down) -> tuple[Kept, Up]:
        """Lines 3 and 4."""
        graph, z_NG = clients.graph, down.z.values
        kept = clients.state.moments
        if not self.training.keep_optimizer:
            kept = {name: torch.zeros_like(value) for name, value in kept.items()}
        params, moments = clients.state.params | down.params, kept
        loss, z_grads = torch.zeros(len(clients.ids)), []
        for epoch in range(self.training.local_epochs):
            z_grads.append(torch.zeros_like(z_NG))
            objective = partial(self.loss, task=clients.task, z_NG=z_NG, z_grad_NG=z_grads[-1])
            frozen, this_one = self.local_network(clients.task).frozen_names(), range(epoch, epoch + 1)
            params, moments, loss = train_locally(
                graph, params, moments, objective, self.training, clients.rng, frozen, this_one
            )
        longest = torch.full((len(clients.ids),), down.longest)
        state = replace(clients.state, params=params, moments=moments, z=down.z, longest=longest)
        sent = {name: params[name] for name in down.params}
        z_grad = Rows(_returned(z_grads, self.returned), down.z.ptr)
        return state, Up(clients.ids, sent, z_grad, graph.sizes.float(), loss)

    def loss(self, params: Tree, batch: Batch, task: Task, z_NG: Tensor, z_grad_NG: Tensor | None = None) -> Tensor:
        """Equation (5) of each client [K]; going backward adds the gradient of Z to `z_grad_NG`."""
        nodes = batch.view.nodes
        local = batch.logits(self.local_network(task), params)
        fused = torch.cat([local, z_NG[nodes]], 1) if self.gsl else local
        if self.gsl and z_grad_NG is not None:
            add = partial(_add_rows, z_grad_NG, nodes, local.shape[1])
            fused.register_hook(add)  # type: ignore[no-untyped-call]
            fused = self.hide_branches(fused, local.shape[1], batch.view.segments, batch.rng.fork("branches"))
        fused = dropout(fused, batch.rng.fork("fusion"), self.fusion_dropout, batch.view.segments)
        scores = self.classify(params, fused, batch.view.segments)
        loss = torch.nn.functional.cross_entropy(scores, batch.graph.y[nodes], reduction="none")
        return client_mean(loss, batch.view.segments.client, len(batch.graph.ids))

    def hide_branches(self, fused: Tensor, width: int, segments: Segments, rng: Streams) -> Tensor:
        """Half of `branch_dropout` of the rows lose their local part, another half the global one."""
        if self.branch_dropout == 0:
            return fused
        draw = rng.uniform(segments.ptr).to(fused.dtype)
        local, shared = draw >= self.branch_dropout / 2, draw < 1 - self.branch_dropout / 2
        return torch.cat([fused[:, :width] * local, fused[:, width:] * shared], 1)

    def classify(self, params: Tree, fused: Tensor, segments: Segments) -> Tensor:
        """Equation (4) without its softmax."""
        fused = torch.relu(fused) if self.activation == "relu" else fused
        scores = segment_product(fused, params[f"{HEAD}.weight"], segments)
        return activate(scores, params[f"{HEAD}.bias"], segments, relu=False)

    def assemble(self, clients: Clients[Kept], deployed: Message) -> Model:
        """The model and Z_i, received or kept."""
        state, segments = clients.state, clients.graph.segments
        params, z, longest = state.params, state.z.values, max(int(state.longest.max()), int(clients.graph.sizes.max()))
        if isinstance(deployed, Down):
            params, z, longest = params | deployed.params, deployed.z.values, deployed.longest
        elif isinstance(deployed, Model):
            params = params | deployed.params
        if not self.gsl:
            return Model(clients.ids, params)
        padded = z.new_zeros(len(clients.ids), longest, z.shape[1])
        padded[segments.client, _place(segments)] = z
        return Model(clients.ids, params | {GLOBAL: padded})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C]. Nodes of a graph the server does not know have no global embedding: theirs is zero."""
        segments = graph.segments
        fused = self.local_network(task).logits(model.params, graph)
        if self.gsl:
            padded = model.params[GLOBAL]
            known = graph.ids == model.ids
            z = padded[segments.client, _place(segments)] if known else padded.new_zeros(segments.total, padded.shape[2])
            fused = torch.cat([fused, z], 1)
        return self.classify(model.params, fused, segments)


def everybodys(codes: Tree) -> Tensor:
    """E, clients in the order of their names, [N, P]."""
    return torch.cat([value[0] for value in codes.values()])


def _convolved(graph: LearnedGraph, h: Tensor, weight: Tensor, segments: Segments) -> Tensor:
    """A* h W; edges carry the narrower of h and h W."""
    if h.shape[1] <= weight.shape[2]:
        return segment_product(graph.times(h), weight, segments)
    return graph.times(segment_product(h, weight, segments))


def _one_piece(rows: Tensor) -> Segments:
    return Segments(torch.tensor([0, rows.shape[0]], device=rows.device))


def _place(segments: Segments) -> Tensor:
    """The position of each row inside its client, [N]."""
    return torch.arange(segments.total, device=segments.ptr.device) - segments.ptr[:-1][segments.client]


def _add_rows(z_grad_NG: Tensor, nodes: Tensor, local_width: int, fused_grad: Tensor) -> None:
    z_grad_NG.index_add_(0, nodes, fused_grad[:, local_width:])


def _returned(z_grads: Sequence[Tensor], which: str) -> Tensor:
    if which == "mean":
        return torch.stack(list(z_grads)).mean(0)
    return z_grads[0] if which == "first" else z_grads[-1]
