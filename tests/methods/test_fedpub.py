"""FED-PUB: reductions, a round by hand, routing by id, masks that stay at home, and what sparse sending saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import World, assert_close, assert_same, assert_separable, beginning, run_to_end, small, small_world
from scipy.spatial.distance import jensenshannon
from torch import Tensor
from torch_geometric.data import Data

from suture.core.message import Message, Model, Nothing, Rows
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError, IntegrityError
from suture.graph.batch import batch_of, uncut
from suture.graph.links import hide_links
from suture.method import Task
from suture.methods.averaging import Kept
from suture.methods.fedavg import FedAvg
from suture.methods.fedpub.masks import MASK, masked_model, masks_of, pruned, shrunk, weights_of
from suture.methods.fedpub.method import Federation, FedPub, Up, label_similarity, layout_of, placed
from suture.methods.fedpub.proxy_graph import Precision, ProxySettings, proxy_graph
from suture.methods.fedpub.wire import RowLayout, SparseModel, everything, restored, support_of, thinned
from suture.methods.local import Local
from suture.privacy.ledger import RunLedger
from suture.runs.checkpoint import load_checkpoint, save_checkpoint
from suture.settings import ModelSettings, SplitSettings, TrainingSettings
from suture.training.batches import batches

SBM = ProxySettings("sbm", 5, 100, 0.1, 0.01)
HIDING = {"lambda1": 0.9, "lambda2": 0.0}
"""With a threshold of 0.9, masks hide entries after a few of the small runs' large steps."""


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def rounds(method: FedPub, count: int) -> FedPub:
    return dataclasses.replace(method, training=dataclasses.replace(method.training, rounds=count))


# Reductions


@pytest.mark.parametrize("fields", [{"tau": 0.0}, {"similarity": "none"}])
def test_without_similarity_and_mask_it_is_uniform_fedavg(fields: dict[str, Any], world: World) -> None:
    left = run_to_end(small(FedPub, mask=False, lambda2=0.0, **fields), world.clients, world.task)
    right = run_to_end(small(FedAvg, training={"weighting": "uniform"}), world.clients, world.task)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert_close(Kept(mine.ids, mine.params, mine.moments), theirs, 2e-5)
    assert_close(left.scores, right.scores, 2e-5)


def test_with_nobody_but_itself_similar_enough_it_is_local(world: World) -> None:
    left = run_to_end(small(FedPub, community=1.0, mask=False, lambda2=0.0), world.clients, world.task)
    right = run_to_end(small(Local), world.clients, world.task)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert_close(Kept(mine.ids, mine.params, mine.moments), theirs, 0.0)


def test_without_mask_the_proximal_term_is_fedproxs(world: World) -> None:
    """lambda2 ||theta - theta_bar||^2 pulls twice as hard as mu / 2 with mu = lambda2."""
    method = small(FedPub, mask=False, lambda2=0.7, proximal="always")
    received = {name: v.expand(4, *v.shape[1:]) for name, v in method.initial_params(world.task).items()}
    params = {name: value + 0.1 for name, value in received.items()}
    batch = next(batches(world.clients, method.training, Streams.of(0, world.clients.ids, "test")))
    entries = sum(value[0].numel() for value in params.values())
    terms = method.loss_terms(params, batch, received, beginning(method, world.clients, world.task))
    assert set(terms) == {"labels", "proximal"}
    torch.testing.assert_close(terms["proximal"], torch.full((4,), 0.7 * 0.01 * entries))


def test_the_published_code_regularises_nothing(world: World) -> None:
    strong = {"lambda1": 5.0, "lambda2": 5.0, "threshold": 0.001, "proximal": "always"}
    left = run_to_end(small(FedPub, regularise="as-published-code", **strong), world.clients, world.task)
    right = run_to_end(small(FedPub, lambda1=0.0, lambda2=0.0, threshold=0.001), world.clients, world.task)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert_close(mine, theirs, 0.0)
    paper = run_to_end(small(FedPub, **strong), world.clients, world.task)
    mask = "params.mask/layer1.weight"
    difference = paper.states[0].tensors()[mask] - left.states[0].tensors()[mask]
    assert float(difference.abs().max()) > 0.01


# The loss


def terms_and_params(method: FedPub, world: World) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    received = {name: v.expand(4, *v.shape[1:]) for name, v in method.initial_params(world.task).items()}
    params = {name: (value * 0.9).clone().requires_grad_() for name, value in received.items()}
    batch = next(batches(world.clients, method.training, Streams.of(0, world.clients.ids, "test")))
    return method.loss_terms(params, batch, received, beginning(method, world.clients, world.task)), params


def test_every_term_reaches_masks_and_weights(world: World) -> None:
    terms, params = terms_and_params(small(FedPub, proximal="always"), world)
    reached = {}
    for term, loss in terms.items():
        grads = torch.autograd.grad(loss.sum(), list(params.values()), allow_unused=True, retain_graph=True)
        pairs = zip(params, grads, strict=True)
        reached[term] = {name for name, grad in pairs if grad is not None and bool(grad.abs().max() > 0)}
    masks = {name for name in params if name.startswith(MASK)}
    assert reached["labels"] == set(params)
    assert reached["sparsity"] == masks
    # Biases start at zero, so that 0.9 of them is where they started.
    assert reached["proximal"] == {name for name in params if not name.endswith("bias")}


def test_the_published_codes_terms_have_no_gradient(world: World) -> None:
    terms, _ = terms_and_params(small(FedPub, regularise="as-published-code", proximal="always"), world)
    assert float(terms["sparsity"].detach().max()) > 0 and not terms["sparsity"].requires_grad
    assert float(terms["proximal"].detach().max()) > 0 and not terms["proximal"].requires_grad


def test_the_masks_norm_is_a_mean_or_a_sum(world: World) -> None:
    entries = 40 * 8 + 8 * 8 + 8 * 3
    mean = terms_and_params(small(FedPub, lambda1=2.0), world)[0]["sparsity"]
    total = terms_and_params(small(FedPub, lambda1=2.0, l1_norm="sum"), world)[0]["sparsity"]
    torch.testing.assert_close(mean, torch.full((4,), 2 * 0.9))
    torch.testing.assert_close(total, torch.full((4,), 2 * 0.9 * entries))


@pytest.mark.parametrize(
    ("epochs", "when", "counts"), [(1, "one-epoch", True), (2, "one-epoch", False), (2, "always", True)]
)
def test_the_proximal_term_is_for_rounds_of_one_epoch(epochs: int, when: str, counts: bool, world: World) -> None:
    method = small(FedPub, proximal=when, training={"local_epochs": epochs})
    assert ("proximal" in terms_and_params(method, world)[0]) == counts


def test_as_a_mean_the_printed_lambda1_is_below_adams_epsilon_and_moves_no_mask() -> None:
    """One step of torch's own Adam from the gradient alone: lambda1 / M, where M is that of Cora's network in the paper."""
    entries = 1433 * 128 + 128 * 128 + 128 * 7
    gradient = 0.001 / entries
    assert gradient < 1e-8
    mask = torch.ones(1, requires_grad=True)
    adam = torch.optim.Adam([mask], lr=0.01)
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0)) * 1e-6  # gradients of the loss, small ones
    for value in noise:
        mask.grad = value.view(1) + gradient
        adam.step()
    with_penalty = mask.detach().clone()
    other = torch.ones(1, requires_grad=True)
    adam = torch.optim.Adam([other], lr=0.01)
    for value in noise:
        other.grad = value.view(1).clone()
        adam.step()
    assert float((with_penalty - other.detach()).abs()) < 0.01  # in a hundred steps less than one step is long


def test_shrinking_masks_is_the_proximal_step_of_their_norm(world: World) -> None:
    """argmin_m (m - w)^2 / 2 + by |m|, by search; and a round is that of lambda1 = 0 with this step at its end."""
    grid = torch.linspace(-2, 2, 40001, dtype=torch.float64)
    for w in (1.3, 0.2, -0.7, 0.0):
        best = grid[((grid - w).square() / 2 + 0.3 * grid.abs()).argmin()]
        mine = shrunk({MASK + "a": torch.tensor([[w]])}, 0.3)[MASK + "a"]
        assert abs(float(mine) - float(best)) < 1e-4
    one = {"training": {"rounds": 1, "local_epochs": 2, "lr": 0.05}, "threshold": 0.0}
    plain = run_to_end(small(FedPub, lambda1=0.0, **one), world.clients, world.task)
    less = run_to_end(small(FedPub, lambda1=3.0, l1_norm="shrink", **one), world.clients, world.task)
    for mine, theirs in zip(less.states, plain.states, strict=True):
        for name, before in masks_of(theirs.params).items():
            expected = before.sign() * (before.abs() - 0.05 * 3.0 * 2).clamp_min(0)
            torch.testing.assert_close(mine.params[MASK + name], expected)
        for name, weight in weights_of(theirs.params).items():
            assert torch.equal(mine.params[name], weight)


def test_the_product_is_returned_if_asked(world: World) -> None:
    """Algorithm 1, line 3: what is averaged are weights times masks, entry by entry."""
    method, listener = small(FedPub, returned="product", threshold=0.0, training={"rounds": 1}), Listener()
    cohort = EmbeddedCohort.start(method, world.clients, world.task, ledger=listener)
    server = method.round(method.init_server(world.task), cohort)
    up, state = listener.heard[-1][1], cohort.states()[0]
    assert isinstance(up, Up)
    product = {name: value * state.params.get(MASK + name, 1.0) for name, value in weights_of(state.params).items()}
    sent = layout_of(state.params).join(product)
    assert torch.equal(up.values.values.view(sent.shape), sent)
    assert not torch.equal(sent, layout_of(state.params).join(weights_of(state.params)))
    expected = server.weights[1:, 1:].float() @ sent
    torch.testing.assert_close(server.personal(world.clients.ids).params, expected)


@pytest.mark.parametrize("lowest", [0.5, -1.0])
def test_the_gradient_of_masked_weights_is_right(lowest: float) -> None:
    """Against finite differences, for masks that are all positive and for others."""
    rng = torch.Generator().manual_seed(3)
    weight, anchor = (torch.randn(2, 3, 4, dtype=torch.float64, generator=rng) for _ in range(2))
    bias = torch.randn(2, 4, dtype=torch.float64, generator=rng)
    mask = torch.rand(2, 3, 4, dtype=torch.float64, generator=rng) + lowest

    def outputs(weight: Tensor, mask: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        start = {"w": anchor, "b": torch.zeros_like(bias)}
        model, size, distance = masked_model({"w": weight, "b": bias, MASK + "w": mask}, start)
        torch.testing.assert_close(size, mask.abs().sum((1, 2)))
        torch.testing.assert_close(distance, ((weight * mask - anchor) ** 2).sum((1, 2)) + (bias**2).sum(1))
        return model["w"], size, distance

    leaves = [value.requires_grad_() for value in (weight, mask, bias)]
    assert torch.autograd.gradcheck(outputs, leaves)


# A round by hand


def test_two_rounds_worked_out_by_hand() -> None:
    """Equations (2)-(4) in numpy: a linear GCN, plain gradient steps, two local epochs, masks, two rounds.

    Client k: logits = A_hat X (W * M) + b. With E the gradient of the mean cross-entropy by the logits, and
    D = W * M - W0 the drift, G = (A_hat X)^T E + 2 lambda2 D, so that dW = G * M and dM = G * W + lambda1 / |M| sign(M);
    db = sum_n E + 2 lambda2 (b - b0). The random graph is taken as drawn; everything on it is computed here.
    """
    lr, lambda1, lambda2, tau = 0.3, 0.4, 0.05, 2.0
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 3)).astype(np.float32)
    y = np.array([0, 1, 0, 1, 0, 1, 1, 0, 1])
    edges = np.array([[0, 1], [1, 2], [3, 4], [4, 5], [5, 6], [3, 6], [7, 8]])
    members = {"a": np.array([0, 1, 2]), "b": np.array([3, 4, 5, 6]), "c": np.array([7, 8])}
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(np.concatenate([edges, edges[:, ::-1]]).T.copy()))
    data.y = torch.from_numpy(y)
    nodes = [torch.from_numpy(m) for m in members.values()]
    graph = batch_of(data, list(members), nodes, [torch.ones(len(m), dtype=torch.int8) for m in nodes], [False] * 3)
    training = TrainingSettings(rounds=2, local_epochs=2, optimizer="sgd", lr=lr)
    model = ModelSettings(kind="gcn", layers=1, hidden=3, dropout=0.0)
    strengths = {"tau": tau, "lambda1": lambda1, "lambda2": lambda2, "proximal": "always", "threshold": 0.0}
    method = FedPub(model=model, training=training, **strengths)
    task = Task(features=3, classes=2, seed=5)

    initial = method.initial_params(task)
    w0, b0 = initial["layer1.weight"][0].double().numpy(), initial["layer1.bias"][0].double().numpy()
    received = dict.fromkeys(members, (w0, b0))
    masks = {name: np.ones_like(w0) for name in members}
    proxy = proxy_graph(SBM, 1, 3, task.seed, torch.device("cpu")).graph
    proxy_a = a_hat(500, proxy.edge_index.numpy().T)
    for _ in range(2):
        trained = {}
        for name, own in members.items():
            inside = [(a, b) for a, b in edges if a in own and b in own]
            a_x = a_hat(len(own), np.searchsorted(own, np.array(inside))) @ x[own]
            (w_start, b_start), mask = received[name], masks[name]
            w, b = w_start, b_start
            for _ in range(2):
                error = (softmax(a_x @ (w * mask) + b) - np.eye(2)[y[own]]) / len(own)
                g = a_x.T @ error + 2 * lambda2 * (w * mask - w_start)
                grad_b = error.sum(0) + 2 * lambda2 * (b - b_start)
                grad_mask = g * w + lambda1 / mask.size * np.sign(mask)
                w, b, mask = w - lr * g * mask, b - lr * grad_b, mask - lr * grad_mask
            trained[name], masks[name] = (w, b), mask
        proxy_x = proxy_a @ proxy.x.dense().double().numpy()
        h = np.stack([(proxy_x @ (w * masks[name]) + b).mean(0) for name, (w, b) in trained.items()])
        unit = h / np.linalg.norm(h, axis=1, keepdims=True)
        similarity = unit @ unit.T
        alpha = softmax(tau * similarity)
        models = list(trained.values())
        received = {
            name: tuple(sum(alpha[i, j] * models[j][part] for j in range(3)) for part in range(2))
            for i, name in enumerate(members)
        }

    cohort = EmbeddedCohort.start(method, graph, task)
    server = method.round(method.round(method.init_server(task), cohort), cohort)
    kept = cohort.take_kept()
    np.testing.assert_allclose(kept["similarity"].numpy(), similarity, atol=2e-6)
    np.testing.assert_allclose(kept["weights"].numpy(), alpha, atol=2e-6)
    sent = layout_of(method.initial_params(task)).split(server.personal(graph.ids).params)
    for k, name in enumerate(graph.ids):
        np.testing.assert_allclose(cohort.states()[0].params["mask/layer1.weight"][k].numpy(), masks[name], atol=1e-6)
        np.testing.assert_allclose(sent["layer1.weight"][k].numpy(), received[name][0], atol=1e-6)
        np.testing.assert_allclose(sent["layer1.bias"][k].numpy(), received[name][1], atol=1e-6)


def a_hat(nodes: int, edges: np.ndarray) -> np.ndarray:
    adjacency = np.eye(nodes)
    for a, b in edges:
        adjacency[a, b] = adjacency[b, a] = 1
    scale = adjacency.sum(1) ** -0.5
    return scale[:, None] * adjacency * scale[None, :]


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# Who gets which model


class Puppets:
    """A cohort whose samples and answers are written by the test: a client adds its own number to what it is sent."""

    def __init__(self, everyone: Sequence[str], samples: Sequence[Sequence[str]]) -> None:
        self.ids, self.samples = tuple(everyone), list(samples)
        self.sent: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}

    def sample(self, fraction: float) -> Puppets:
        chosen = Puppets(self.samples.pop(0), [])
        chosen.sent, chosen.kept = self.sent, self.kept
        return chosen

    def ask(self, step: Callable[..., Any], message: SparseModel) -> Up:
        assert message.ids == self.ids
        self.sent.clear()
        rows = message.values.values.view(len(self.ids), -1)
        self.sent |= dict(zip(self.ids, rows, strict=True))
        answer = rows + torch.tensor([NUMBER[name] for name in self.ids]).unsqueeze(1)
        clients = len(self.ids)
        values = Rows(answer.flatten(), message.values.ptr)
        return Up(self.ids, values, everything(clients), torch.zeros(clients), torch.zeros(clients, 0))

    def report(self, **values: float) -> None: ...

    def keep(self, **tensors: Tensor) -> None:
        self.kept.clear()
        self.kept |= tensors


NUMBER = {"ash": 0.3, "birch": -0.2, "cedar": 0.7, "dogwood": -0.5}


def test_clients_leave_and_return_and_get_their_own_model(world: World) -> None:
    """Samples differ in membership, size and order; every model is looked up by its client's id."""
    method = small(FedPub, mask=False, similarity="parameters", tau=1.5)
    samples = [["birch", "ash"], ["cedar", "birch"], ["ash", "cedar"], ["dogwood"], ["ash", "birch", "cedar", "dogwood"]]
    puppets = Puppets(list(NUMBER), samples)
    server = method.init_server(world.task)
    start = server.params[0].double()
    latest: dict[str, Tensor] = {}

    def expected(name: str) -> Tensor:
        if name not in latest:
            return start
        own = latest[name] / latest[name].norm()
        score = torch.stack([1.5 * (own @ (other / other.norm())) for other in latest.values()])
        return torch.softmax(score, 0) @ torch.stack(list(latest.values()))

    for sample in samples:
        should_get = {name: expected(name) for name in sample}
        server = method.round(server, puppets)
        for name in sample:
            torch.testing.assert_close(puppets.sent[name].double(), should_get[name], atol=1e-6, rtol=1e-6)
            latest[name] = should_get[name] + NUMBER[name]
        unheard = [k for k, name in enumerate(NUMBER) if name not in latest]
        assert bool(puppets.kept["weights"][unheard].isnan().all())
        heard = [k for k, name in enumerate(NUMBER) if name in latest]
        torch.testing.assert_close(puppets.kept["weights"][heard].nansum(1), torch.ones(len(heard), dtype=torch.float64))
    for name in NUMBER:
        deployed = method.deploy(server, [name])
        torch.testing.assert_close(deployed.values.values.double(), expected(name), atol=1e-6, rtol=1e-6)
    assert torch.equal(method.deploy(server, ["elm"]).values.values, server.params[0])


def test_a_client_joining_late_starts_from_the_initial_model(world: World) -> None:
    method = small(FedPub)
    few = world.clients.select(world.clients.ids[:2])
    cohort = EmbeddedCohort.start(method, few, world.task)
    server = method.round(method.init_server(world.task), cohort)
    everybody = EmbeddedCohort.start(method, world.clients, world.task)
    message = method.deploy(server, world.clients.ids)
    late = everybody.peek(lambda clients: method.assemble(clients, message.select(clients.ids)))
    initial = weights_of(method.initial_params(world.task))
    for name, value in late.select(world.clients.ids[2:]).params.items():
        assert torch.equal(value, initial[name].expand_as(value)), name
    assert server.ids == ("", *sorted(few.ids))


def test_strangers_get_nothing_from_each_other() -> None:
    similarity = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.5], [0.1, 0.5, 1.0]], dtype=torch.float64)
    alpha = FedPub(tau=2.0, community=0.5).alpha(similarity)
    near, self_weight = np.exp(1.2), np.exp(2.0)
    pair = near / (near + self_weight)
    np.testing.assert_allclose(alpha.numpy(), [[1 - pair, pair, 0], [pair, 1 - pair, 0], [0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(FedPub(tau=2.0).alpha(similarity).numpy(), softmax(2 * similarity.numpy()), atol=1e-12)


# Masks stay at home


class Listener:
    """A ledger that keeps the messages themselves."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Message]] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        self.heard.append((direction, message))


def test_only_weights_travel_never_masks(world: World) -> None:
    method, listener = rounds(small(FedPub, **HIDING), 3), Listener()
    cohort = EmbeddedCohort.start(method, world.clients, world.task, ledger=listener)
    server = method.init_server(world.task)
    layout = layout_of(method.initial_params(world.task))
    some_hidden = False
    for _ in range(3):
        server = method.round(server, cohort)
        up = listener.heard[-1][1]
        assert isinstance(up, Up)
        state = cohort.states()[0]
        masks, theta = masks_of(state.params), layout.join(state.params)
        visible = torch.cat([mask.abs().flatten(1) >= 0.9 for mask in masks.values()], 1)
        bounds = up.values.ptr.tolist()
        for k in range(4):
            sparse = int(up.support.ptr[k + 1] - up.support.ptr[k]) > 0
            masked_part = theta[k, : visible.shape[1]]
            there = torch.cat([masked_part[visible[k]] if sparse else masked_part, theta[k, visible.shape[1] :]])
            assert torch.equal(up.values.values[bounds[k] : bounds[k + 1]], there)
            some_hidden |= sparse
    assert some_hidden, "nothing was hidden; the test shows nothing"
    fields = {type(message).__name__: set(message.tensors()) for _, message in listener.heard}
    rows = {"values.values", "values.ptr", "support.values", "support.ptr"}
    assert fields == {"SparseModel": rows, "Up": rows | {"loss", "signature"}}


def test_masks_move_and_differ_between_clients(world: World) -> None:
    end = run_to_end(small(FedPub), world.clients, world.task)
    masks = [state.tensors()["params.mask/layer1.weight"] for state in end.states]
    assert float((masks[0] - 1).abs().max()) > 0.01
    assert not torch.allclose(masks[0], masks[1])
    names = {path for path in end.states[0].tensors() if path.startswith(f"params.{MASK}")}
    assert names == {f"params.mask/{name}.weight" for name in ("layer1", "layer2", "head")}


def test_small_mask_entries_are_zero_in_tests() -> None:
    params = {"w": torch.full((1, 2, 2), 3.0), "b": torch.ones(1, 2)}
    params[MASK + "w"] = torch.tensor([[[0.5, -0.5], [0.05, -0.05]]])
    model, visible = pruned(params, 0.1)
    assert set(model) == {"w", "b"} and visible is not None and visible.tolist() == [[True, True, False, False]]
    torch.testing.assert_close(model["w"], torch.tensor([[[1.5, -1.5], [0.0, 0.0]]]))


def test_the_tested_model_is_pruned_and_has_no_masks(world: World) -> None:
    method = rounds(small(FedPub, **HIDING), 2)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.round(method.init_server(world.task), cohort)
    model = cohort.peek(lambda clients: method.assemble(clients, Nothing(clients.ids)))
    params = cohort.states()[0].params
    mask = params["mask/layer1.weight"]
    torch.testing.assert_close(model.params["layer1.weight"], params["layer1.weight"] * mask * (mask.abs() >= 0.9))
    assert set(model.params) == {name for name in params if not name.startswith("mask/")}
    message = method.deploy(server, cohort.ids)
    aggregated = cohort.peek(lambda clients: method.assemble(clients, message.select(clients.ids)))
    bar = layout_of(method.initial_params(world.task)).split(server.personal(cohort.ids).params)["layer1.weight"]
    torch.testing.assert_close(aggregated.params["layer1.weight"], bar * mask * (mask.abs() >= 0.9))


# Sparse sending


def sparse_rows(hidden_share: float, clients: int = 3, entries: int = 1000, masked: int = 903) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    kept = torch.rand(clients, masked, generator=rng) >= hidden_share
    return torch.randn(clients, entries, generator=rng), kept


@pytest.mark.parametrize("hidden_share", [0.0, 0.01, 0.5, 0.97, 1.0])
def test_sparse_models_come_back_exactly(hidden_share: float) -> None:
    rows, kept = sparse_rows(hidden_share)
    support = support_of(kept)
    message = SparseModel(("a", "b", "c"), thinned(rows, support), support)
    for names in (["a", "b", "c"], ["c"], ["c", "a"]):
        copies = [SparseModel.unpack(message.select([name]).pack()) for name in names]
        index = [("a", "b", "c").index(name) for name in names]
        back = restored(SparseModel.concat(copies), 1000, lambda index=index: torch.full_like(rows[index], 7.0))
        travelled = torch.ones(len(index), 1000, dtype=torch.bool)
        if bool(support.ptr[-1] > 0):
            travelled[:, :903] = kept[index]
        assert torch.equal(back, torch.where(travelled, rows[index], torch.tensor(7.0)))


def test_bytes_shrink_with_sparsity_and_dense_is_never_exceeded() -> None:
    sizes = []
    for hidden_share in (0.0, 0.01, 0.1, 0.5, 0.9, 1.0):
        rows, kept = sparse_rows(hidden_share)
        support = support_of(kept)
        sizes.append(sum(SparseModel(("a", "b", "c"), thinned(rows, support), support).nbytes()))
    dense = sum(Model(("a", "b", "c"), {"params": torch.zeros(3, 1000)}).nbytes())
    assert sizes[0] == sizes[1], "hiding nine of 903 entries saves less than their bits cost"
    assert sizes[1] > sizes[2] > sizes[3] > sizes[4] > sizes[5]
    assert dense <= sizes[0] <= dense + 3 * 200, "pointers and field names are all that is added"
    assert sizes[5] <= 3 * (4 * 97 + 113 + 400)


def test_one_client_may_send_bits_while_another_sends_all() -> None:
    rows, kept = sparse_rows(0.5)
    kept[1] = True
    support = support_of(kept)
    assert support.ptr.tolist() == [0, 113, 113, 226]
    message = SparseModel(("a", "b", "c"), thinned(rows, support), support)
    assert message.shapes_per_client()[1]["values"] == (1000,)
    back = restored(message, 1000, lambda: torch.zeros(3, 1000))
    assert torch.equal(back[1], rows[1])
    assert torch.equal(back[0, :903], rows[0, :903] * kept[0])


def test_malformed_sparse_models_are_refused() -> None:
    rows, kept = sparse_rows(0.5)
    support = support_of(kept)
    good = SparseModel(("a", "b", "c"), thinned(rows, support), support)
    one_less_for_c = (torch.arange(4) == 3).long()
    short = dataclasses.replace(good, values=Rows(good.values.values[:-1], good.values.ptr - one_less_for_c))
    uneven = dataclasses.replace(good, support=Rows(support.values[:-1], support.ptr - one_less_for_c))
    without_bits = dataclasses.replace(good, support=everything(3))
    for bad, complaint in ((short, "entries"), (uneven, "bytes of bits"), (without_bits, "entries")):
        with pytest.raises(IntegrityError, match=complaint):
            restored(bad, 1000, lambda: rows)


def test_the_layout_does_not_depend_on_the_order_of_the_tree() -> None:
    tree = {"b": torch.randn(2, 3), "w": torch.randn(2, 3, 4), "a": torch.randn(2, 5, 1)}
    layout = RowLayout.of(tree, ["w", "a"])
    assert layout == RowLayout.of(dict(reversed(tree.items())), ["a", "w"])
    assert layout.entries == 3 + 12 + 5
    for name, value in layout.split(layout.join(tree)).items():
        assert torch.equal(value, tree[name])
    assert torch.equal(layout.join(tree)[:, -3:], tree["b"]), "what has no mask comes last"


def test_fewer_bytes_travel_the_larger_lambda1(world: World) -> None:
    up, down = [], []
    for lambda1 in (0.001, 0.7, 0.85, 0.95):
        ledger = RunLedger()
        run_to_end(rounds(small(FedPub, lambda1=lambda1), 6), world.clients, world.task, ledger=ledger)
        up.append(ledger.totals["up"])
        down.append(ledger.totals["down"])
    assert up == sorted(up, reverse=True) and up[-1] < 0.8 * up[0]
    assert down == sorted(down, reverse=True) and down[-1] < 0.8 * down[0]


def test_what_was_not_sent_back_is_averaged_as_it_was_handed_out(world: World) -> None:
    method = rounds(small(FedPub, **HIDING), 3)
    cohort, listener = EmbeddedCohort.start(method, world.clients, world.task), Listener()
    cohort._common.ledger = listener
    server = method.round(method.init_server(world.task), cohort)
    handed = server.personal(cohort.ids)
    after = method.round(server, cohort)
    up = listener.heard[-1][1]
    assert isinstance(up, Up) and bool(up.support.ptr.diff().all())
    theta = layout_of(method.initial_params(world.task)).join(cohort.states()[0].params)
    masks = masks_of(cohort.states()[0].params)
    visible = torch.cat([mask.abs().flatten(1) >= 0.9 for mask in masks.values()], 1)
    known = after.params[1:][[sorted(cohort.ids).index(name) for name in cohort.ids]]
    entries = visible.shape[1]
    assert torch.equal(known[:, :entries], torch.where(visible, theta[:, :entries], handed.params[:, :entries]))
    assert torch.equal(known[:, entries:], theta[:, entries:])


# Variants


VARIANTS: list[dict[str, Any]] = [
    {"similarity": "parameters"},
    {"similarity": "gradients"},
    {"similarity": "labels"},
    {"similarity": "none"},
    {"proxy": "erdos-renyi"},
    {"proxy": "single-node"},
    {"proxy": "own-features"},
    {"community": 0.5},
    {"mask": False},
    {"l1_norm": "sum"},
    {"l1_norm": "shrink", "lambda1": 0.9},
    {"returned": "product"},
    HIDING,
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_variants_are_separable(fields: dict[str, Any], world: World) -> None:
    assert_separable(small(FedPub, training={"participation": 0.75}, **fields), world)


@pytest.mark.parametrize("fields", [HIDING, {"similarity": "gradients"}, {"similarity": "labels"}], ids=str)
def test_variants_resume(fields: dict[str, Any], world: World, tmp_path: Path) -> None:
    method = rounds(small(FedPub, training={"participation": 0.5}, **fields), 4)
    undisturbed = run_to_end(method, world.clients, world.task)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for _ in range(2):
        server = method.round(server, cohort)
    save_checkpoint(tmp_path, {"asked": cohort.asked, "iteration": 2}, {"server": server, "clients": cohort.states()[0]})
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    again = EmbeddedCohort.start(method, world.clients, world.task)
    again.restore([saved.records["clients"].as_record(type(cohort.states()[0]))], 2)
    server = saved.records["server"].as_record(Federation)
    for _ in range(2):
        server = method.round(server, again)
    assert_close(server, undisturbed.server, 0.0)


def test_variants_compare_by_what_they_say() -> None:
    """Parameters and gradients as the server computes them, the rest as the clients tell it."""
    theta, start = torch.randn(2, 10), torch.randn(2, 10)
    labels = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
    up = Up(("a", "b"), Rows(theta.flatten(), torch.tensor([0, 10, 20])), everything(2), torch.zeros(2), labels)
    assert torch.equal(FedPub(similarity="parameters").signature(up, theta, lambda: start), theta)
    assert torch.equal(FedPub(similarity="gradients").signature(up, theta, lambda: start), theta - start)
    assert torch.equal(FedPub(similarity="labels").signature(up, theta, lambda: start), labels)
    assert torch.equal(FedPub().signature(up, theta, lambda: start), labels)


def test_clients_tell_what_they_are_compared_by(world: World) -> None:
    told = {}
    for fields in ({}, {"similarity": "parameters"}, {"similarity": "labels"}):
        listener = Listener()
        run_to_end(rounds(small(FedPub, **fields), 1), world.clients, world.task, ledger=listener)
        (up,) = [message for _, message in listener.heard if isinstance(message, Up)]
        told[fields.get("similarity", "function")] = up.signature
    assert {name: value.shape[1] for name, value in told.items()} == {"function": 8, "parameters": 0, "labels": 3}
    graph = world.clients
    train = graph.train.nodes
    counts = np.zeros((4, 3))
    np.add.at(counts, (graph.segments.client[train].numpy(), graph.y[train].numpy()), 1)
    np.testing.assert_array_equal(told["labels"].numpy(), counts)


def test_the_compared_function_is_that_of_the_tested_model(world: World) -> None:
    """Masks and threshold included."""
    method = rounds(small(FedPub, **HIDING), 2)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.round(method.round(method.init_server(world.task), cohort), cohort)
    model = cohort.peek(lambda clients: method.assemble(clients, Nothing(clients.ids)))
    graph = proxy_graph(SBM, 1, 40, world.task.seed, torch.device("cpu")).graph
    plain = uncut(Data(x=graph.x.dense(), edge_index=graph.edge_index, y=graph.y), torch.zeros(500, dtype=torch.int8))
    for name in cohort.ids:
        expected = method.backbone(world.task).embed(model.select([name]).params, plain).mean(0)
        torch.testing.assert_close(server.select([name]).signature[0], expected, atol=1e-5, rtol=1e-5)


def test_label_similarity_is_one_minus_the_jensen_shannon_distance() -> None:
    counts = torch.tensor([[5.0, 0.0, 1.0], [0.0, 2.0, 2.0], [10.0, 0.0, 2.0]])
    expected = [[1 - jensenshannon(a, b, base=2) for b in counts.numpy()] for a in counts.numpy()]
    np.testing.assert_allclose(label_similarity(counts).numpy(), expected, atol=1e-7)


def with_links(world: World) -> World:
    """The three clients that have edges enough, some of them held out."""
    graph = hide_links(world.clients.select(world.clients.ids[:3]), SplitSettings(), 0)
    return dataclasses.replace(world, clients=graph, task=dataclasses.replace(world.task, classes=8, link=True))


def test_labels_are_refused_where_there_are_none(world: World) -> None:
    method = small(FedPub, similarity="labels")
    linked = with_links(world)
    with pytest.raises(ConfigError, match="link prediction"):
        method.round(method.init_server(linked.task), EmbeddedCohort.start(method, linked.clients, linked.task))


def test_links_can_be_predicted(world: World) -> None:
    assert_separable(small(FedPub), with_links(world))


def test_a_users_own_network_takes_part(world: World) -> None:
    class Plain(torch.nn.Module):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(features, 4), torch.nn.Linear(4, classes)
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.two(self.norm(self.one(x)).relu())

    method = small(FedPub)
    task = dataclasses.replace(world.task, module=Plain)
    cohort = EmbeddedCohort.start(method, world.clients, task)
    server = method.round(method.init_server(task), cohort)
    assert set(masks_of(cohort.states()[0].params)) == {"one.weight", "two.weight"}
    model = cohort.peek(lambda clients: method.assemble(clients, Nothing(clients.ids)))
    module = Plain(40, 3).eval()
    proxy = proxy_graph(SBM, 1, 40, task.seed, torch.device("cpu")).graph
    for k, name in enumerate(cohort.ids):
        own = {key: value[k] for key, value in model.params.items()}
        with torch.no_grad():
            out = torch.func.functional_call(module, own, (proxy.x.dense(), proxy.edge_index)).mean(0)
        torch.testing.assert_close(server.select([name]).signature[0], out, atol=1e-5, rtol=1e-5)


def test_matrices_are_kept_in_the_order_of_the_cohort() -> None:
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = placed(matrix, ["a", "b"], ["b", "c", "a"])
    nan = float("nan")
    torch.testing.assert_close(out, torch.tensor([[4.0, nan, 3.0], [nan, nan, nan], [2.0, nan, 1.0]]), equal_nan=True)


# The random graph


def test_the_block_model_has_the_papers_densities() -> None:
    graph = proxy_graph(SBM, 1, 300, 0, torch.device("cpu")).graph
    source, target = graph.edge_index
    inside = source // 100 == target // 100
    assert graph.num_nodes == 500
    assert abs(int(inside.sum()) / (5 * 100 * 99) - 0.1) < 0.006
    assert abs(int((~inside).sum()) / (500 * 400) - 0.01) < 0.001
    x = graph.x.dense()
    assert abs(float(x.mean())) < 0.01 and abs(float(x.std()) - 1) < 0.01
    pairs = set(map(tuple, graph.edge_index.T.tolist()))
    assert all((b, a) in pairs and a != b for a, b in pairs)


def test_the_other_random_graphs() -> None:
    cpu = torch.device("cpu")
    block = proxy_graph(SBM, 1, 4, 0, cpu).graph
    random = proxy_graph(dataclasses.replace(SBM, kind="erdos-renyi"), 1, 4, 0, cpu).graph
    assert abs(random.edge_index.shape[1] / block.edge_index.shape[1] - 1) < 0.05
    inside = random.edge_index[0] // 100 == random.edge_index[1] // 100
    assert abs(float(inside.float().mean()) - 99 / 499) < 0.02
    single = proxy_graph(dataclasses.replace(SBM, kind="single-node"), 2, 4, 0, cpu).graph
    assert (single.num_nodes, single.edge_index.shape[1]) == (2, 0)
    other_seed = proxy_graph(SBM, 1, 4, 1, cpu).graph
    assert not torch.equal(other_seed.edge_index, block.edge_index)


NETWORKS = [("gcn", 1), ("gcn", 2), ("gcn", 3), ("sage", 2), ("gat", 2), ("mlp", 2), ("gprgnn", 2)]


@pytest.mark.parametrize(("kind", "layers"), NETWORKS)
def test_the_embedding_is_the_mean_over_the_graphs_nodes(kind: Any, layers: int) -> None:
    """Against each model alone on the graph as an ordinary client."""
    method = FedPub(model=ModelSettings(kind=kind, layers=layers, hidden=8, head=True, heads=2))
    task = Task(features=6, classes=3, seed=2)
    backbone = method.backbone(task)
    one = weights_of(method.initial_params(task))
    rng = torch.Generator().manual_seed(0)
    params = {name: value + 0.1 * torch.randn(3, *value.shape[1:], generator=rng) for name, value in one.items()}
    proxy = proxy_graph(SBM, 3, 6, 2, torch.device("cpu"))
    first = proxy_graph(SBM, 1, 6, 2, torch.device("cpu")).graph
    plain = uncut(Data(x=first.x.dense(), edge_index=first.edge_index, y=first.y), torch.zeros(500, dtype=torch.int8))
    alone = [backbone.embed({n: v[k : k + 1] for n, v in params.items()}, plain).mean(0) for k in range(3)]
    torch.testing.assert_close(proxy.embed(backbone, params), torch.stack(alone), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize(
    ("rank", "precision", "tolerance"),
    [(0, "float32", 1e-6), (0, "bfloat16", 1e-3), (48, "float32", 1e-6), (48, "bfloat16", 1e-3)],
)
def test_wide_features_are_multiplied_as_the_plain_graph_would_be(rank: int, precision: Precision, tolerance: float) -> None:
    method = FedPub(model=ModelSettings(hidden=32, head=True))
    task = Task(features=600, classes=3, seed=2)
    backbone = method.backbone(task)
    rng = torch.Generator().manual_seed(0)
    base = weights_of(method.initial_params(task))
    params = {name: value + 0.02 * torch.randn(4, *value.shape[1:], generator=rng) for name, value in base.items()}
    settings = dataclasses.replace(SBM, rank=rank, precision=precision)
    proxy = proxy_graph(settings, 4, 600, 2, torch.device("cpu"))
    first = proxy_graph(settings, 1, 600, 2, torch.device("cpu")).graph
    x = first.x.dense()
    assert first.x.width == 600 and torch.linalg.matrix_rank(x) == (rank or 500) and abs(float(x.std()) - 1) < 0.02
    plain = uncut(Data(x=x, edge_index=first.edge_index, y=first.y), torch.zeros(500, dtype=torch.int8))
    exact = torch.stack([backbone.embed({n: v[k : k + 1] for n, v in params.items()}, plain).mean(0) for k in range(4)])
    found = method.similarities(proxy.embed(backbone, params))
    torch.testing.assert_close(found, method.similarities(exact), atol=tolerance, rtol=0)


def test_what_is_multiplied_does_not_depend_on_the_processor() -> None:
    """bfloat16 is there for who names it; a processor that could must not decide."""
    assert proxy_graph(SBM, 2, 600, 2, torch.device("cpu")).graph.x._shared.dtype == torch.float32  # type: ignore[attr-defined]
    assert FedPub().proxy_precision == "float32" and FedPub().proxy_rank == 0


def test_own_features_come_from_the_client_itself(world: World) -> None:
    proxy = proxy_graph(SBM, 4, 40, 0, torch.device("cpu"))
    own = proxy.on_features_of(world.clients, Streams.of(0, world.clients.ids, "test")).graph
    theirs, bounds = world.clients.x.dense(), world.clients.segments.bounds
    for k in range(4):
        rows = {tuple(row) for row in theirs[bounds[k] : bounds[k + 1]].tolist()}
        drawn = {tuple(row) for row in own.x.dense()[500 * k : 500 * (k + 1)].tolist()}
        assert drawn <= rows and len(drawn) > len(rows) // 2
    assert torch.equal(own.edge_index, proxy.graph.edge_index)


def test_similarity_is_one_with_itself_and_symmetric(world: World) -> None:
    method = small(FedPub)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    method.round(method.init_server(world.task), cohort)
    kept = cohort.take_kept()
    similarity, weights = kept["similarity"], kept["weights"]
    torch.testing.assert_close(similarity.diagonal(), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(similarity, similarity.T)
    assert float(similarity.min()) < 0.999, "all models are alike; the test shows nothing"
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert bool((weights.argmax(1) == torch.arange(4)).all())


def test_the_order_of_clients_does_not_matter_when_entries_are_hidden(world: World) -> None:
    method = rounds(small(FedPub, **HIDING), 3)
    shuffled = world.clients.select([world.clients.ids[k] for k in (2, 0, 3, 1)])
    assert_same(run_to_end(method, world.clients, world.task), run_to_end(method, shuffled, world.task))
