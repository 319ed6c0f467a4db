"""The learned graph against the same formulas on full matrices, and its gradients against finite differences."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from suture.core.kernels import Segments, SparseMatrix
from suture.core.tree import tile
from suture.errors import SutureError
from suture.graph.batch import Features
from suture.nn.graph_learner import GraphLearner

SEGMENTS = Segments(torch.tensor([0, 7, 12]))


def features(seed: int = 0) -> torch.Tensor:
    return torch.rand(12, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_params(learner: GraphLearner, clients: int, seed: int = 1) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = {name: (clients, *value.shape[1:]) for name, value in learner.init().items()}
    return {name: torch.rand(shape, generator=rng, dtype=torch.float64) + 0.1 for name, shape in shapes.items()}


def dense(graph: object) -> torch.Tensor:
    return graph.matrix.to_dense()  # type: ignore[attr-defined]


@pytest.mark.parametrize("generator", ["mlp", "mlp-d", "attentive", "activated"])
def test_generators_by_hand(generator: str) -> None:
    learner = GraphLearner(4, k=2, generator=generator, between="tanh")  # type: ignore[arg-type]
    params, x = random_params(learner, 2), features()
    out = learner.generate(params, x, SEGMENTS)
    for client, (first, last) in enumerate([(0, 7), (7, 12)]):
        one, two = (params[f"generator{layer}.weight"][client] for layer in (1, 2))
        if generator not in ("mlp", "activated"):
            one, two = torch.diag(one), torch.diag(two)
        expected = torch.tanh(x[first:last] @ one) @ two
        torch.testing.assert_close(
            out[first:last], torch.tanh(expected) if generator in ("attentive", "activated") else expected
        )


@pytest.mark.parametrize("generator", ["mlp", "mlp-d", "attentive", "activated"])
def test_the_identity_reproduces_plain_nearest_neighbours(generator: str) -> None:
    """A fresh learner on non-negative features is kNN: compare with the cosine matrix, sorted."""
    learner = GraphLearner(4, k=3, generator=generator, edges="none")  # type: ignore[arg-type]
    x = features()
    r = learner.generate({n: v.double() for n, v in learner.init().items()}, x, SEGMENTS)
    assert torch.equal(r, x)
    links = learner.links(r, SEGMENTS)
    unit = x / x.norm(dim=1, keepdim=True)
    for first, last in ((0, 7), (7, 12)):
        cosine = unit[first:last] @ unit[first:last].T - 2 * torch.eye(last - first)
        best = cosine.argsort(1, descending=True)[:, :3] + first
        for row in range(first, last):
            assert set(links.neighbour[links.node == row].tolist()) == set(best[row - first].tolist())


@pytest.mark.parametrize("edges", ["relu", "elu", "plain-elu", "none"])
def test_the_processor_on_full_matrices(edges: str) -> None:
    learner = GraphLearner(4, k=3, edges=edges)  # type: ignore[arg-type]
    x = features() - {"relu": 0.3, "plain-elu": features().mean(0)}.get(edges, 0)  # some are unlike each other
    links = learner.links(x, SEGMENTS)
    unit = x / x.norm(dim=1, keepdim=True)
    kept = torch.eye(12, dtype=torch.bool)
    kept[links.node, links.neighbour] = True
    printed = {"relu": torch.relu, "elu": lambda s: torch.exp(6 * (s - 1)), "none": lambda s: s}
    printed["plain-elu"] = lambda s: torch.where(s > 0, s, torch.exp(s) - 1)
    activation = printed[edges]
    weight = activation(unit @ unit.T) * kept
    symmetric = (weight + weight.T) / 2
    assert edges != "plain-elu" or bool((symmetric < 0).any())
    scale = (symmetric.abs() if edges == "plain-elu" else symmetric).sum(1).rsqrt()
    graph = learner.process(x, links)
    torch.testing.assert_close(dense(graph), scale[:, None] * symmetric * scale)
    assert torch.equal(dense(graph) != 0, symmetric != 0)
    h = features(5)
    torch.testing.assert_close(graph.times(h), dense(graph) @ h)


@pytest.mark.parametrize("generator", ["mlp", "mlp-d", "attentive", "activated"])
@pytest.mark.parametrize("similarity", ["cosine", "inner", "euclidean"])
def test_gradients_reach_generator_and_signal(generator: str, similarity: str) -> None:
    """Finite differences move the generator by little enough that the neighbours stay."""
    learner = GraphLearner(4, k=3, generator=generator, similarity=similarity, edges="elu", between="tanh")  # type: ignore[arg-type]
    params, x, h = random_params(learner, 2), features(), features(3)
    names = list(params)

    def propagate(signal: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return learner.graph(dict(zip(names, weights, strict=True)), x, SEGMENTS).times(signal)

    inputs = [value.requires_grad_() for value in (h, *params.values())]
    torch.autograd.gradcheck(propagate, inputs)
    grads = torch.autograd.grad(propagate(*inputs).square().sum(), inputs)
    assert all(float(grad.abs().max()) > 0 for grad in grads)


def test_each_client_learns_its_own_graph() -> None:
    """Two clients at once equal each alone, gradients included, even while they still share one copy of the weights."""
    learner = GraphLearner(4, k=2)
    x = features()
    start = {name: value.double() * 0.7 for name, value in learner.init().items()}
    together = {name: value.detach().requires_grad_() for name, value in tile(start, 2).items()}
    graph = learner.graph(together, x, SEGMENTS)
    grads = torch.autograd.grad(graph.times(x).square().sum(), list(together.values()))
    for client, (first, last) in enumerate([(0, 7), (7, 12)]):
        alone = {name: value.clone().requires_grad_() for name, value in start.items()}
        piece = learner.graph(alone, x[first:last], Segments(torch.tensor([0, last - first])))
        torch.testing.assert_close(dense(graph)[first:last, first:last], dense(piece))
        own = torch.autograd.grad(piece.times(x[first:last]).square().sum(), list(alone.values()))
        for mine, both in zip(own, grads, strict=True):
            torch.testing.assert_close(mine[0], both[client])


def test_sparse_features_are_as_good_as_dense_ones() -> None:
    x = (features() * (features(9) > 0.5)).float()
    index = x.nonzero()
    sparse = SparseMatrix.from_coo(index[:, 0], index[:, 1], x[index[:, 0], index[:, 1]], (12, 4))
    for generator in ("mlp", "mlp-d"):
        learner = GraphLearner(4, k=2, generator=generator)  # type: ignore[arg-type]
        params = {name: value.float() for name, value in random_params(learner, 2).items()}
        want, got = (learner.graph(params, source, SEGMENTS) for source in (x, Features(sparse, SEGMENTS)))
        torch.testing.assert_close(dense(want), dense(got))


def test_a_lonely_node_keeps_itself() -> None:
    learner = GraphLearner(4, k=3)
    graph = learner.process(torch.ones(1, 4), learner.links(torch.ones(1, 4), Segments(torch.tensor([0, 1]))))
    torch.testing.assert_close(dense(graph), torch.ones(1, 1))


@pytest.mark.parametrize("wrong", [{"k": 0}, {"layers": 0}, {"generator": "mlpd"}, {"edges": "gelu"}, {"between": "x"}])
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SutureError):
        dataclasses.replace(GraphLearner(4, k=2), **wrong)  # type: ignore[arg-type]
