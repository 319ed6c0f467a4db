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
`form = "paper"` is the paper without these choices, as far as it says how (`PAPERS_FORM`): each client trains a GCN
auto-encoder of its own and sends codes that nobody aligns, centres or scales, the processor has the plain ELU of equation
(7), neighbours are searched in every round, and the server adds clients' gradients of Z up (algorithm 1). Degrees of (7)
are of |A*|, for those that are printed can be negative. What it says nothing about stays as above.

Privacy: the server sees E_i, and how many nodes a client has. As published (`codes = "nodes"`) E_i are P numbers for every
node, and the server holds the map from features to them, whose transpose turns them back; power iterations, sums over all
nodes, span the features of a client with few of them. With `codes = "groups"` a client groups its nodes once, at least
`smallest` that are alike (grouped.py): codes, Z and its gradients are of groups, and so is what power iterations see. With
`codes = "anchors"` the server has no code of nodes or groups, and needs sums over everybody's nodes alone: lines 2, 4
and 5 are replaced (anchors.py), and secure aggregation hides all that is a single client's.
Legend: K clients, N nodes of all clients, P code width, G width of global embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Message, Model, Nothing, Rows
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, map_tree, mean, tile
from suture.graph.batch import GraphBatch
from suture.graph.grouping import Groups
from suture.method import Clients, Cohort, Mends, Phase, Supposed, Task, check_links, step_if
from suture.methods.averaging import SERVER, weighted_loss
from suture.methods.fedggr.anchored import AnchoredRounds
from suture.methods.fedggr.autoencoder import LinearAutoencoder, orthonormal
from suture.methods.fedggr.fusion import one_of
from suture.methods.fedggr.grouped import code_groups, coded
from suture.methods.fedggr.kept import Embedded, GraphServer
from suture.methods.fedggr.messages import Codes, Down, Encoder, GroupCodes, Up
from suture.methods.fedggr.server_graph import everybodys, known_codes, pieces_of, whole_gradient
from suture.training.batches import Batch
from suture.training.local import train_locally
from suture.training.optimisers import Moments, fresh_moments, in_round, leaves_of, stepped

GLOBAL = "global embedding"
"""In a client's model: Z_i, padded to the size of the largest client, [K, longest, G]."""


@dataclass(frozen=True)
class FedGgr(AnchoredRounds):
    """A graph over all clients' nodes, learned at the server by split learning."""

    name: ClassVar[str] = "fedggr"
    summary: ClassVar[str] = "the server learns a graph over all clients' nodes and sends embeddings of them"
    paper: ClassVar[str] = "Liu et al., 2023"
    one_model: ClassVar[bool] = False
    mends: ClassVar[Mends] = "known"
    of_nodes: ClassVar[tuple[str, ...]] = (GLOBAL,)
    sums: ClassVar[tuple[str, ...]] = ("train_autoencoder", "sum_near_anchors", "train_with_anchors")

    def beyond_sums(self) -> str:
        """Split learning needs everybody's own gradients."""
        return "" if self.anchored else "needs every owner's own update unless fedggr.codes=anchors"

    # The server's side

    def plan(self) -> tuple[Phase[GraphServer], ...]:
        """The lines of the box; without the server's graph nothing is pretrained."""
        rounds = Phase("round", self.round, self.training.rounds, evaluate=True)
        if not self.gsl:
            return (rounds,)
        pretraining = Phase("pretraining", self.pretrain, self.pretrain_rounds)
        if self.anchored:
            anchors = Phase("anchors", self.place_anchors, self.anchor_rounds)
            return pretraining, anchors, replace(rounds, body=self.round_with_anchors)
        return pretraining, Phase("upload", self.collect), rounds

    def init_server(self, task: Task) -> GraphServer:
        """W_S: the generator starts as the identity; nothing is known of the nodes yet."""
        own: Tree = {}
        if self.gsl and not self.anchored:
            own = self.server_graph.init(self.model.hidden, self.widths(task)[1], generator(task.seed, "server weights"))
        return GraphServer(
            SERVER,
            params=self.initial_params(task),
            own=own,
            moments=fresh_moments(own, self.training) if own else {},
            autoencoder=self.initial_autoencoder(task) if self.gsl and self.alignment == "averaged" else {},
            codes={},
            links=torch.zeros(1, 2, 0, dtype=torch.int64),
            longest=0,
            round=0,
            seed=task.seed,
        )

    def pretrain(self, server: GraphServer, cohort: Cohort) -> GraphServer:
        """Line 1, a few epochs of it."""
        up = cohort.ask(self.train_autoencoder, Model(cohort.ids, tile(server.autoencoder, len(cohort.ids))))
        cohort.report(loss=float(up.loss.mean()))
        if not up.autoencoder:
            return server
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        average = mean(up.autoencoder, up.weight)
        return replace(server, autoencoder=orthonormal(average) if self.encoder == "linear" else average)

    def collect(self, server: GraphServer, cohort: Cohort) -> GraphServer:
        """The end of line 1: E."""
        down = Model(cohort.ids, tile(server.autoencoder, len(cohort.ids)))
        if self.codes == "nodes":
            up = cohort.ask(self.send_codes, down)
            known = known_codes(up.ids, up.codes, up.codes.ptr.diff(), scaled=self.form == "ours")
            return replace(server, **known, autoencoder={})
        grouped = cohort.ask(self.send_group_codes, down)
        return replace(server, **known_codes(grouped.ids, grouped.codes, grouped.nodes), autoencoder={})

    def round(self, server: GraphServer, cohort: Cohort) -> GraphServer:
        """Lines 2-6."""
        sampled = cohort.sample(self.training.participation)
        if self.gsl and server.round % self.refresh == 0:
            server = replace(server, links=self.search(server))
        leaves = leaves_of(server.own)
        z = self.global_embeddings(server, leaves, Streams.of(server.seed, SERVER, "server dropout", server.round))
        up = sampled.ask(self.local_update, self.down(server, z.detach(), sampled.ids))
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        cohort.report(loss=weighted_loss(up))
        own, moments = self.backward(server, leaves, z, up) if self.gsl else (server.own, server.moments)
        return replace(server, params=mean(up.params, up.weight), own=own, moments=moments, round=server.round + 1)

    def search(self, server: GraphServer) -> Tensor:
        """Line 2: who is whose neighbour, [1, 2, M]."""
        return self.server_graph.search(server.own, everybodys(server.codes), server.links)

    def global_embeddings(self, server: GraphServer, own: Tree, rng: Streams | None = None) -> Tensor:
        """Line 2: Z [N, G], clients in the order of their names; with `rng`, dropout is on."""
        if not self.gsl:
            return torch.zeros(0, 0)
        return self.server_graph.embeddings(own, everybodys(server.codes), server.links, rng)

    def down(self, server: GraphServer, z_NG: Tensor, ids: Sequence[str]) -> Down:
        """The message of line 3."""
        pieces = pieces_of(z_NG, server.codes)
        chosen = [pieces.get(name, z_NG[:0]) for name in ids]
        z = Rows(torch.cat(chosen), pointers(torch.tensor([piece.shape[0] for piece in chosen])))
        return Down(tuple(ids), tile(server.params, len(ids)), z, server.longest)

    def backward(self, server: GraphServer, leaves: Tree, z_NG: Tensor, up: Up) -> tuple[Tree, Moments]:
        """Line 5: (W_S, its moments) after one step."""
        weight = up.weight / up.weight.sum().clamp_min(1e-9)
        share = (weight if self.form == "ours" else torch.ones_like(weight)).tolist()
        heard = {name: up.z_grad.select([k]).values * share[k] for k, name in enumerate(up.ids)}
        z_grad = whole_gradient(heard, z_NG, server.codes)
        grads = torch.autograd.grad(z_NG, list(leaves.values()), z_grad, materialize_grads=True)
        settings = in_round(replace(self.training, lr=self.server_lr or self.training.lr), server.round + 1)
        return stepped(leaves, dict(zip(leaves, grads, strict=True)), server.moments, settings)

    def deploy(self, server: GraphServer, ids: Sequence[str]) -> Message:
        """The global model for everybody, and Z_i without dropout (as soon as there are codes)."""
        if self.anchored or not server.codes:
            return Model(tuple(ids), tile(server.params, len(ids)))
        with torch.no_grad():
            return self.down(server, self.global_embeddings(server, server.own), ids)

    # The clients' side

    def beyond_links(self) -> str:
        """There is no decoder of pairs."""
        return "has a classifier of nodes, and link prediction has none"

    def init_clients(self, clients: Clients[Nothing]) -> Embedded:
        """Everybody starts from the same model; auto-encoders as `alignment` says."""
        graph, count = clients.graph, len(clients.ids)
        if graph.pairs is not None:
            check_links(self)
        params = tile(self.initial_params(clients.task), count, graph.device)
        autoencoder = self.initial_autoencoders(clients) if self.gsl else {}
        by_gradient = self.gsl and self.encoder == "relu"
        nothing = Rows(torch.zeros(graph.num_nodes, self.widths(clients.task)[1], device=graph.device), graph.segments.ptr)
        return Embedded(
            clients.ids,
            params=params,
            moments=fresh_moments(params, self.training),
            z=nothing,
            longest=torch.zeros(count, dtype=torch.int64),
            autoencoder=autoencoder,
            autoencoder_moments=fresh_moments(autoencoder, self._pretraining) if by_gradient else {},
            anchors={},
        )

    @step_if(lambda self: self.gsl)
    def train_autoencoder(self, clients: Clients[Embedded], down: Model) -> tuple[Embedded, Encoder]:
        """Line 1 from the average, if there is one, else from where the client was."""
        graph, network = clients.graph, self.autoencoder(clients.task)
        params, moments = clients.state.autoencoder | down.params, clients.state.autoencoder_moments
        if isinstance(network, LinearAutoencoder):
            # Without secure aggregation the server sees a client's steps: those of groups say less of single nodes.
            params, loss = network.step(params, graph, None if self.codes == "nodes" else self.grouped(clients))
            # The server makes the average orthonormal; a client that nobody averages does so itself.
            params = params if down.params else orthonormal(params)
        else:
            params, moments, loss = network.train(params, moments, graph, self.pretrain_epochs, self._pretraining)
        kept = replace(clients.state, autoencoder=params, autoencoder_moments=moments)
        return kept, Encoder(clients.ids, {name: params[name] for name in down.params}, graph.sizes.float(), loss)

    @step_if(lambda self: self.gsl and self.codes == "nodes")
    def send_codes(self, clients: Clients[Embedded], down: Model) -> tuple[Embedded, Codes]:
        """E_i; the auto-encoder has done its work."""
        params = clients.state.autoencoder | down.params
        with torch.no_grad():
            codes_NP = self.autoencoder(clients.task).encode(params, clients.graph)
        done = replace(clients.state, autoencoder={}, autoencoder_moments={})
        return done, Codes(clients.ids, Rows(codes_NP, clients.graph.segments.ptr))

    @step_if(lambda self: self.gsl and self.codes == "groups")
    def send_group_codes(self, clients: Clients[Embedded], down: Model) -> tuple[Embedded, GroupCodes]:
        """E_i of groups of nodes: means of what would be their codes."""
        kept, nodes = self.send_codes(clients, down)
        groups = self.grouped(clients)
        codes = Rows(groups.means(nodes.codes.values), groups.segments.ptr)
        return kept, GroupCodes(clients.ids, codes, clients.graph.sizes)

    def groups(self, clients: Clients[Embedded]) -> Groups | None:
        """Which nodes have one code together; None: each has its own."""
        return self.grouped(clients) if self.gsl and self.codes == "groups" else None

    def grouped(self, clients: Clients[Embedded]) -> Groups:
        """Nodes that are alike."""
        return code_groups(clients.graph, self.smallest, clients.task.seed)

    @step_if(lambda self: not self.anchored)
    def local_update(self, clients: Clients[Embedded], down: Down) -> tuple[Embedded, Up]:
        """Lines 3 and 4."""
        graph, moments, groups = clients.graph, clients.state.moments, self.groups(clients)
        z_NG = groups.spread(down.z.values) if groups else down.z.values
        params = clients.state.params | down.params
        if not self.training.keep_optimizer:
            moments = map_tree(torch.zeros_like, moments)
        loss, z_grads = torch.zeros(len(clients.ids), device=graph.device), []
        settings = in_round(self.training, clients.round)
        frozen = self.local_network(clients.task).frozen_names()
        for epoch in range(settings.local_epochs):
            z_grads.append(torch.zeros_like(z_NG))
            objective = partial(self.loss, clients.task, z_NG, z_grads[-1])
            params, moments, loss = train_locally(
                graph, params, moments, objective, settings, clients.rng, frozen, range(epoch, epoch + 1)
            )
        longest = torch.full((len(clients.ids),), down.longest)
        z_grad = one_of(z_grads, self.returned)
        z_grad = groups.sums(z_grad) if groups else z_grad
        z = Rows(z_NG, graph.segments.ptr) if groups else down.z
        state = replace(clients.state, params=params, moments=moments, z=z, longest=longest)
        sent = {name: params[name] for name in down.params}
        return state, Up(clients.ids, sent, Rows(z_grad, down.z.ptr), graph.sizes.float(), loss)

    def loss(self, task: Task, z_NG: Tensor, z_grad_NG: Tensor, params: Tree, batch: Batch) -> Tensor:
        """Equation (5) of each client [K]; going backward adds the gradient of Z to `z_grad_NG`."""
        local_BL = batch.logits(self.local_network(task), params)
        return self.fusion.loss(params, local_BL, batch, z_NG, z_grad_NG)

    def supposed(self, clients: Clients[Embedded]) -> Supposed:
        """What the server links is a node, or a group of them; over anchors it links none, and nodes meet at them."""
        if self.anchored:
            return Supposed.of(clients.graph, meets=self.met(clients))
        return Supposed.of(clients.graph, thing=coded(clients.graph, self.groups(clients)) if self.gsl else None)

    def server_links(self, server: GraphServer) -> Tensor | None:
        """Who has chosen whom."""
        return server.links[0] if self.gsl and not self.anchored else None

    @property
    def mending(self) -> Mends:
        """What anchors tell a node follows from its features and edges; what a server's graph does, from who was in it."""
        return "known" if self.gsl and not self.anchored else "nothing"

    def assemble(self, clients: Clients[Embedded], deployed: Message) -> Model:
        """The model and Z_i, received or kept."""
        state, segments = clients.state, clients.graph.segments
        params, z, longest = state.params, state.z.values, max(int(state.longest.max()), int(clients.graph.sizes.max()))
        if isinstance(deployed, Down):
            params, z, longest = params | deployed.params, deployed.z.values, deployed.longest
            z = groups.spread(z) if (groups := self.groups(clients)) else z
        elif isinstance(deployed, Model):
            params = params | deployed.params
        if self.anchored:
            return self.model_with_anchors(clients, params)
        if not self.gsl:
            return Model(clients.ids, params)
        padded = z.new_zeros(len(clients.ids), longest, z.shape[1])
        padded[segments.client, segments.place] = z
        return Model(clients.ids, params | {GLOBAL: padded})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C]. Nodes of a graph the server does not know have no global embedding: theirs is zero."""
        segments = graph.segments
        fused = self.local_network(task).logits(model.params, graph)
        if self.anchored:
            fused = torch.cat([fused, self.embedded_by_anchors(graph, model.params, task)], 1)
        elif self.gsl:
            padded = model.params[GLOBAL]
            known = graph.ids == model.ids and padded.shape[1] > 0
            z = padded[segments.client, segments.place] if known else padded.new_zeros(segments.total, padded.shape[2])
            fused = torch.cat([fused, z], 1)
        return self.fusion.classify(model.params, fused, segments)
