"""Nearest neighbours against brute force over the full matrix of similarities, in numpy."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
import torch

from suture.core.kernels import Segments
from suture.errors import SutureError
from suture.nn import topk
from suture.nn.topk import Links, Similarity, approximate, exact, neighbours, similarities

SIMILARITIES = pytest.mark.parametrize("similarity", ["cosine", "inner", "euclidean"])


def points(nodes: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed))


def full_matrix(h: torch.Tensor, similarity: Similarity) -> np.ndarray:
    x = h.double().numpy()
    if similarity == "euclidean":
        return 1 / (1 + ((x[:, None] - x[None]) ** 2).sum(-1))
    if similarity == "cosine":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def by_brute_force(h: torch.Tensor, k: int, bounds: list[int], similarity: Similarity) -> set[tuple[int, int]]:
    score = full_matrix(h, similarity)
    pairs = set()
    for first, last in itertools.pairwise(bounds):
        for i in range(first, last):
            others = [j for j in range(first, last) if j != i]
            pairs |= {(i, j) for j in sorted(others, key=lambda j: -score[i, j])[:k]}
    return pairs


def as_set(links: Links) -> set[tuple[int, int]]:
    return set(zip(links.node.tolist(), links.neighbour.tolist(), strict=True))


@SIMILARITIES
def test_equals_brute_force_inside_every_client(similarity: Similarity, monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients of 20, 1, 0, 3 and 16 nodes, and blocks of very few rows.
    monkeypatch.setattr(topk, "BLOCK_ENTRIES", 70)
    bounds = [0, 20, 21, 21, 24, 40]
    h = points(40)
    links = neighbours(h, 5, Segments(torch.tensor(bounds)), similarity)
    assert links.node.numel() == 20 * 5 + 0 + 0 + 3 * 2 + 16 * 5
    assert bool((links.node.diff() >= 0).all())
    assert as_set(links) == by_brute_force(h, 5, bounds, similarity)


def test_never_holds_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "BLOCK_ENTRIES", 1000)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        exact(points(200), 3, "cosine")
    assert 0 < largest <= 200 * 6


@SIMILARITIES
def test_similarities_and_their_gradients(similarity: Similarity) -> None:
    h = points(9).double()
    links = neighbours(h, 3, Segments(torch.tensor([0, 9])), similarity)
    expected = full_matrix(h, similarity)[links.node.numpy(), links.neighbour.numpy()]
    np.testing.assert_allclose(similarities(h, links, similarity).numpy(), expected, rtol=1e-9)
    torch.autograd.gradcheck(lambda x: similarities(x, links, similarity), h.requires_grad_())


def test_a_gradient_exists_where_nodes_coincide() -> None:
    h = torch.ones(2, 3, requires_grad=True)
    links = Links(torch.tensor([0]), torch.tensor([1]), nodes=2)
    for similarity in ("cosine", "euclidean"):
        (grad,) = torch.autograd.grad(similarities(h, links, similarity).sum(), h)
        assert bool(grad.isfinite().all())


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs suture-fl[index]")
@SIMILARITIES
def test_the_approximate_index_finds_nearly_all(similarity: Similarity) -> None:
    # Clustered like real embeddings: neighbours are mostly inside one's own cluster.
    centre = 3 * points(30, 16, seed=1)
    h = centre[torch.arange(3000) % 30] + points(3000, 16, seed=2)
    true, found = exact(h, 10, similarity), approximate(h, 10, similarity)
    assert found.shape == true.shape
    assert not bool((found == torch.arange(3000).unsqueeze(1)).any())
    hits = (found.unsqueeze(2) == true.unsqueeze(1)).any(2).float().mean()
    assert float(hits) >= 0.95


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs suture-fl[index]")
def test_the_index_is_chosen_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(topk, "APPROXIMATE_FROM", 100)
    monkeypatch.setattr(topk, "approximate", lambda h, k, s: asked.append(h.shape[0]) or exact(h, k, s))
    neighbours(points(250), 3, Segments(torch.tensor([0, 100, 150, 250])))
    assert asked == [100, 100]
    neighbours(points(250), 3, Segments(torch.tensor([0, 250])), index="exact")
    assert asked == [100, 100]


def test_without_faiss_a_large_graph_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SutureError, match=r"suture-fl\[index\]"):
        neighbours(points(50), 3, Segments(torch.tensor([0, 50])), index="approximate")


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 3, "similarity": "cosin"}, {"k": 3, "index": "exat"}])
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SutureError):
        neighbours(points(5), segments=Segments(torch.tensor([0, 5])), **wrong)  # type: ignore[arg-type]


@SIMILARITIES
def test_pairs_of_before_find_nearly_all_after_points_have_moved(similarity: Similarity) -> None:
    centre = 3 * points(30, 16, seed=1)
    h = centre[torch.arange(3000) % 30] + points(3000, 16, seed=2)
    moved = h + 0.2 * points(3000, 16, seed=3)
    old, true = exact(h, 10, similarity), exact(moved, 10, similarity)
    found = topk.updated(moved, old, similarity)

    def share(these: torch.Tensor) -> float:
        return float((these.unsqueeze(2) == true.unsqueeze(1)).any(2).float().mean())

    assert not bool((found == torch.arange(3000).unsqueeze(1)).any())
    assert all(len(set(row)) == 10 for row in found[:200].tolist())
    assert share(found) > 0.93 and share(found) > share(old) + 0.05


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs suture-fl[index]")
def test_a_second_search_starts_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    h, segments = points(400, 8), Segments(torch.tensor([0, 150, 400]))
    first = neighbours(h, 5, segments, index="approximate")
    monkeypatch.setattr(topk, "approximate", lambda *given: pytest.fail("searched from nothing"))
    again = neighbours(h, 5, segments, index="approximate", before=first)
    assert torch.equal(again.node, first.node)
    assert float((again.neighbour == first.neighbour).float().mean()) > 0.8  # and what differs is nearer
    one, other = (similarities(h, links, "cosine").mean() for links in (first, again))
    assert float(other) >= float(one)


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs suture-fl[index]")
def test_nodes_of_other_owners_by_the_index() -> None:
    centre = 3 * points(20, 16, seed=1)
    unit = torch.nn.functional.normalize(centre[torch.arange(2000) % 20] + points(2000, 16, seed=2))
    owner = torch.arange(2000) // 20  # a hundred owners, each with a node of every cluster
    cosine, place = topk.of_others(unit, owner, 5)
    assert bool((owner[place] != owner.unsqueeze(1)).all())
    true = (unit @ unit.T).masked_fill(owner.unsqueeze(1) == owner, -2.0).topk(5, 1)
    assert float((place.unsqueeze(2) == true.indices.unsqueeze(1)).any(2).float().mean()) > 0.9
    torch.testing.assert_close(cosine, (unit.unsqueeze(1) * unit[place]).sum(2), rtol=1e-4, atol=1e-5)
