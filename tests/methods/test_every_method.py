"""Properties that every registered method has, present and future; and that they can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from unittest import SkipTest

import pytest
import torch
from harness import TOLERANCE, World, assert_separable, brief, run_to_end, small, small_world
from pydantic import Field
from torch import Tensor

from suture import testing
from suture.core.message import Message, Model
from suture.core.tree import Tree, map_tree
from suture.method import Clients, Cohort, Method, step
from suture.methods import METHODS
from suture.methods.averaging import Kept, Server, Trained, Up
from suture.methods.fedavg import FedAvg
from suture.testing.extremes import Extreme, extremes
from suture.testing.properties import PROPERTIES
from suture.training.batches import Batch

NODES_ONLY = {"adafgl", "fedggr", "fedgls", "fedgta", "fedtad", "fggp", "fgssl"}
"""Their losses are stated for classes of nodes; they must say so."""


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("holds", list(PROPERTIES))
def test_every_method(name: str, holds: str) -> None:
    for_nodes = holds == "links_can_be_predicted" and name in NODES_ONLY
    try:
        PROPERTIES[holds](METHODS[name], brief(METHODS[name]))
    except SkipTest as why:
        assert for_nodes or holds != "links_can_be_predicted"
        assert not for_nodes or "choose another method" in str(why)
        raise
    assert not for_nodes


@dataclass(frozen=True)
class Leaking(FedAvg):
    """FedAvg whose clients peek at each other's training loss through the shared batch."""

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        state, up = super().local_update(clients, down)
        return state, dataclasses.replace(up, params={k: v + 0.01 * up.loss.mean() for k, v in up.params.items()})


@dataclass(frozen=True)
class LeakingThroughTheGraph(FedAvg):
    """FedAvg whose clients weigh themselves by how large they are among all clients of the batch."""

    def weight(self, clients: Clients[Kept]) -> torch.Tensor:
        return super().weight(clients) / clients.graph.num_nodes + 0.1 * clients.graph.y.float().mean()


@pytest.mark.parametrize("leak", [Leaking, LeakingThroughTheGraph])
def test_separable_catches_a_leaking_step(leak: type[Method[Any, Any]], world: World) -> None:
    with pytest.raises(AssertionError):
        assert_separable(small(leak), world)


@dataclass(frozen=True)
class Taped(FedAvg):
    """FedAvg that forgets to detach what it sends."""

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        state, up = super().local_update(clients, down)
        return state, dataclasses.replace(up, loss=up.loss.clone().requires_grad_() * 2)


def test_no_autograd_tape_crosses_a_step(world: World) -> None:
    with pytest.raises(ValueError, match="autograd tape"):
        run_to_end(small(Taped), world.clients, world.task)


@dataclass(frozen=True)
class ByPosition(FedAvg):
    """FedAvg that hands the first client something else than the others."""

    def hand_out(self, server: Server, ids: Sequence[str]) -> Model:
        handed = super().hand_out(server, ids)
        return Model(handed.ids, {k: torch.cat([0.5 * v[:1], v[1:]]) for k, v in handed.params.items()})


@dataclass(frozen=True)
class NeedsEdges(FedAvg):
    """FedAvg whose clients divide by the number of their edges."""

    def weight(self, clients: Clients[Kept]) -> Tensor:
        owner = clients.graph.segments.client[clients.graph.edge_index[0]]
        edges = torch.bincount(owner, minlength=len(clients.ids))
        return clients.graph.num_train / edges


@dataclass(frozen=True)
class BreaksAtZero(FedAvg):
    """FedAvg with a value that only works above its lower end."""

    heat: Annotated[float, Field(ge=0, le=2)] = 1.0
    """What outputs are divided by."""

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        return {name: term / self.heat for name, term in super().loss_terms(params, batch, received, clients).items()}


@dataclass(frozen=True)
class FalsePromise(FedAvg):
    """FedAvg that takes the largest of the models, and says that their sum is enough."""

    sums = ("local_update",)

    def combine(self, server: Server, handed: Model, up: Up, cohort: Cohort) -> Server:
        return dataclasses.replace(server, params=map_tree(lambda value: value.max(0, keepdim=True).values, up.params))


@dataclass(frozen=True)
class Idle(FedAvg):
    """FedAvg with a term that moves nothing."""

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        return super().loss_terms(params, batch, received, clients) | {
            "idle": 0 * params["head.bias"].sum(1) + sum(value.detach().flatten(1).sum(1) for value in params.values())
        }


@dataclass(frozen=True)
class MoreUp(Up):
    """A reply that no step declares."""


@dataclass(frozen=True)
class Undeclared(FedAvg):
    """FedAvg whose replies are not what its step says."""

    def conclude(self, clients: Clients[Kept], down: Model, trained: Trained) -> tuple[Kept, Up]:
        state, up = super().conclude(clients, down, trained)
        return state, MoreUp(**vars(up))


@dataclass(frozen=True)
class Labels(Message):
    """Everybody's labels, without saying so."""

    y: Tensor


@dataclass(frozen=True)
class Telling(FedAvg):
    """FedAvg whose clients also send their labels."""

    def round(self, server: Server, cohort: Cohort) -> Server:
        cohort.ask(self.tell, self.hand_out(server, cohort.ids))
        return super().round(server, cohort)

    @step
    def tell(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Labels]:
        rows = torch.nn.utils.rnn.pad_sequence(clients.graph.y.split(clients.graph.sizes.tolist()), batch_first=True)
        padded = torch.nn.functional.pad(rows, (0, 130 - rows.shape[1]))
        return clients.state, Labels(clients.ids, padded)


@pytest.mark.parametrize(
    ("wrong", "holds"),
    [
        (Leaking, "separable"),
        (Leaking, "separable_with_partial_participation"),
        (ByPosition, "order_of_clients_does_not_matter"),
        (NeedsEdges, "graphless_clients_can_take_part"),
        (NeedsEdges, "odd_clients_can_take_part"),
        (BreaksAtZero, "extreme_hyper_parameters_are_borne"),
        (FalsePromise, "promised_sums_suffice"),
        (Idle, "every_loss_term_has_a_gradient"),
        (Undeclared, "owners_understand_every_message"),
        (Telling, "messages_are_closed"),
        (Telling, "no_message_carries_private_data"),
    ],
)
def test_a_property_can_fail(wrong: type[Method[Any, Any]], holds: str) -> None:
    with pytest.raises(AssertionError):
        PROPERTIES[holds](wrong, {})


def test_check_says_which_test_failed() -> None:
    with pytest.raises(AssertionError, match=r"BreaksAtZero fails the test `extreme .*`: .*with heat = 0\.0"):
        testing.check(BreaksAtZero)


def test_extremes_are_the_ends_of_the_types() -> None:
    assert list(extremes(BreaksAtZero)) == [Extreme("heat", 0.0, True), Extreme("heat", 2.0, True)]
    assert list(extremes(METHODS["fedprox"])) == [Extreme("mu", 0.0, True), Extreme("mu", 100.0, False)]


def test_tolerance_is_tight_enough_to_mean_something() -> None:
    assert TOLERANCE <= 2e-5
