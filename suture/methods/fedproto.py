"""FedProto: Federated prototype learning across heterogeneous clients. Tan et al., AAAI 2022.

Every client keeps its own model; only the mean embedding of each class, its prototype, travels.

    for t = 1..T
      1  server samples a share of the clients and sends them the global prototypes c_j of the classes j seen so far
      2  client k: E local epochs on cross-entropy + proto_weight * sum_j ||c_kj - c_j||^2 / H over the classes j of its
           batch, where c_kj is the mean embedding, in R^H, of its training nodes of class j
      3  client k sends c_kj and n_kj, how many training nodes it has of class j (here: 1, if it has enough of them)
      4  c_j <- sum_k (n_kj / n_j) c_kj over the clients that have class j

An embedding is the output of the last layer before head and activation. As in the authors' code the distance is the mean
square of the H coordinates, so that its weight does not depend on H. They average prototypes over clients, not nodes, as
we do where only classes are told (`told = "classes"`).
The paper predicts the class of the nearest global prototype; `predict_by` offers this beside the client's own classifier.

Link prediction has two classes, linked pairs and pairs that are not, so there are two prototypes. The embedding of a pair is
the product of its ends' embeddings, coordinate by coordinate: the score of a pair is the sum of these. A client's examples
are its training edges and as many pairs drawn afresh. Only the client's own network predicts links: distances to prototypes
are no inner product of the ends' outputs, by which pairs are scored.

Models may differ from client to client as long as their embeddings have one width: on a client without edges the backbone
is a perceptron (tests/methods/test_graphless.py), which is how FedGLS (Fu et al., TMLR) compares with FedProto.

Privacy: the server learns of which classes a client has at least `smallest` training nodes (or training edges), and their
mean embedding. As published (`told = "counts"`, `smallest = 1`) it learns how many these are, and where that is one, its
embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing
from suture.core.tree import Tree, split, tile
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Task
from suture.methods.averaging import SERVER, Averaging, Kept, Server, Trained, Up
from suture.settings import Count, NonNegative, Search
from suture.training.batches import Batch, batches

PROTOTYPES, COUNTS = "prototypes", "counts"
"""What takes the place of parameters in messages: [K, C, H], and what each weighs, float [K, C]; 0: there is none."""
MEANS = {PROTOTYPES: Kind.PROTOTYPES, COUNTS: Kind.COUNTS}


@dataclass(frozen=True)
class Prototypes(Model):
    """Server to client: the global prototypes, the same for everybody."""

    params: Annotated[Tree, MEANS]


@dataclass(frozen=True)
class OwnPrototypes(Up):
    """Client to server: its prototypes in the place of parameters."""

    params: Annotated[Tree, MEANS]


@dataclass(frozen=True)
class FedProto(Averaging[Server, Kept, Prototypes, OwnPrototypes]):
    """Local models whose class means are pulled together."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "local models whose mean embeddings of each class are pulled together"
    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    edges_by_layers: ClassVar[bool] = True
    one_model: ClassVar[bool] = False
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})

    proto_weight: Annotated[NonNegative, Search(0.01, 10.0)] = 1.0
    """Lambda, the weight of the distance between local and global prototypes; 0 is Local."""
    told: Literal["classes", "counts"] = "classes"
    """classes: only whether a class is there, so that clients weigh alike; counts: how many training nodes, as published."""
    smallest: Count = 2
    """Fewest training nodes of a class that is told: a mean of one is that node's embedding."""
    predict_by: Literal["classifier", "prototype"] = "classifier"
    """classifier: the client's own network; prototype: the class of the nearest global prototype."""

    def frozen_names(self, task: Task) -> frozenset[str]:
        """A client's model includes the prototypes it last received."""
        return super().frozen_names(task) | {PROTOTYPES, COUNTS}

    def init_server(self, task: Task) -> Server:
        """No class has been seen."""
        width = task.classes if task.module else self.backbone(task).widths()[-1]
        classes = class_count(task)
        return Server(SERVER, {PROTOTYPES: torch.zeros(1, classes, width), COUNTS: torch.zeros(1, classes)})

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """The initial model, and no prototypes."""
        if clients.task.link and self.predict_by == "prototype":
            raise ConfigError("fedproto.predict_by prototype is for nodes; link prediction needs predict_by=classifier")
        kept = self.fresh(clients)
        nothing = tile(self.init_server(clients.task).params, len(clients.ids), clients.graph.device)
        return replace(kept, params=kept.params | nothing)

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        """Line 2: cross-entropy, and the distance of the batch's prototypes from the received ones."""
        terms = super().loss_terms(params, batch, received, clients)
        if self.proto_weight == 0 or PROTOTYPES not in received:
            return terms
        embedding = self.backbone(clients.task).embed(params, batch.graph, batch.rng, batch.view)
        local = prototypes(embedding, batch, class_count(clients.task))
        both = (local[COUNTS] > 0) & (received[COUNTS] > 0)
        distance = (local[PROTOTYPES] - received[PROTOTYPES]).square().mean(2)
        return terms | {"prototypes": self.proto_weight * (distance * both).sum(1)}

    def combine(self, server: Server, handed: Prototypes, up: OwnPrototypes, cohort: Cohort) -> Server:
        """Line 4; a class nobody has in this round keeps its prototype."""
        cohort.report(loss=float(up.loss.mean()))
        weight_KC1 = up.params[COUNTS].unsqueeze(2)
        total_1C = up.params[COUNTS].sum(0, keepdim=True)
        mean_1CH = (up.params[PROTOTYPES] * weight_KC1).sum(0, keepdim=True) / total_1C.clamp_min(1).unsqueeze(2)
        old = {name: value.to(total_1C.device) for name, value in server.params.items()}
        seen = total_1C > 0
        return Server(
            SERVER,
            {
                PROTOTYPES: torch.where(seen.unsqueeze(2), mean_1CH, old[PROTOTYPES]),
                COUNTS: torch.where(seen, total_1C, old[COUNTS]),
            },
        )

    def received(self, clients: Clients[Kept], down: Prototypes) -> Tree:
        """Line 1: the client's own model, with the global prototypes."""
        return clients.state.params | down.params

    def conclude(self, clients: Clients[Kept], down: Prototypes, trained: Trained) -> tuple[Kept, OwnPrototypes]:
        """Line 3."""
        everything = replace(self.training, batch_size=0, fanouts=())
        (batch,) = batches(clients.graph, everything, clients.rng.fork("prototypes"))
        with torch.no_grad():
            embedding = self.backbone(clients.task).embed(trained.params, clients.graph, view=batch.view)
        own = self.tellable(prototypes(embedding, batch, class_count(clients.task)))
        kept = replace(clients.state, params=trained.params, moments=trained.moments)
        return kept, OwnPrototypes(clients.ids, own, self.weight(clients), trained.loss)

    def tellable(self, own: Tree) -> Tree:
        """Line 3: what of these leaves a client; of classes with too few nodes nothing does."""
        enough_KC = own[COUNTS] >= self.smallest
        weight_KC = enough_KC.to(own[COUNTS].dtype) if self.told == "classes" else own[COUNTS] * enough_KC
        return {PROTOTYPES: own[PROTOTYPES] * enough_KC.unsqueeze(2), COUNTS: weight_KC}

    def weight(self, clients: Clients[Kept]) -> Tensor:
        """Nobody's models are averaged, so that nobody need say how large it is."""
        return super().weight(clients) if self.told == "counts" else torch.ones(len(clients.ids))

    def hand_out(self, server: Server, ids: Sequence[str]) -> Prototypes:
        """The global prototypes for everybody."""
        return Prototypes(tuple(ids), tile(server.params, len(ids)))

    def assemble(self, clients: Clients[Kept], deployed: Message) -> Model:
        """The client's network, with the prototypes only if they are what it predicts by."""
        params = clients.state.params | (deployed.params if isinstance(deployed, Prototypes) else {})
        names = () if self.predict_by == "prototype" else (PROTOTYPES, COUNTS)
        return Model(clients.ids, split(params, names)[1])

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C]; by prototype, minus the squared distance to each class's."""
        if self.predict_by == "classifier":
            return super().predict(graph, model, task)
        embedding = self.backbone(task).embed(model.params, graph)
        owner = graph.segments.client
        scores = [-(embedding - c_KH[owner]).square().sum(1) for c_KH in model.params[PROTOTYPES].unbind(1)]
        # A class without a prototype must lose against any other, but leave the loss finite.
        return torch.stack(scores, 1).where(model.params[COUNTS][owner] > 0, -1e9)


def class_count(task: Task) -> int:
    """How many prototypes there are."""
    return 2 if task.link else task.classes


def prototypes(embedding_BH: Tensor, batch: Batch, classes: int) -> Tree:
    """Each client's mean embedding of each class over a batch's nodes or pairs, and how many these are."""
    clients, link = len(batch.graph.ids), batch.links
    if link is None:
        owner, label = batch.view.segments.client, batch.graph.y[batch.view.nodes]
    else:
        owner, label = link.client, link.label.long()
        embedding_BH = embedding_BH[link.left] * embedding_BH[link.right]
    cell = owner * classes + label
    counts = torch.bincount(cell, minlength=clients * classes).to(embedding_BH.dtype)
    sums = embedding_BH.new_zeros(clients * classes, embedding_BH.shape[1]).index_add(0, cell, embedding_BH)
    means = sums / counts.clamp_min(1).unsqueeze(1)
    return {PROTOTYPES: means.view(clients, classes, -1), COUNTS: counts.view(clients, classes)}
