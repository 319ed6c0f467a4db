"""Nearest nodes against all distances written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.graph import matching
from suture.graph.batch import Features
from suture.graph.matching import dense_rows, nearest_of_each_client, nearest_of_listed, shares_of_each_client

SEGMENTS = Segments(torch.tensor([0, 12, 20, 33]))


def _features(sparse: bool) -> tuple[Features, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(33, 9, generator=rng) * (torch.rand(33, 9, generator=rng) < 0.4)
    if not sparse:
        return Features(x, SEGMENTS), x
    row, col = torch.nonzero(x, as_tuple=True)
    return Features(SparseMatrix.from_coo(row, col, x[row, col], (33, 9)), SEGMENTS), x


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("at_a_time", [1, 40, 1 << 24])
def test_nearest_node_of_each_client(sparse: bool, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "SCORES_AT_A_TIME", at_a_time)
    features, x = _features(sparse)
    made = torch.rand(7, 9, generator=torch.Generator().manual_seed(1))
    distance = torch.cdist(made, x)
    expected = [distance[:, a:b].argmin(1) + a for a, b in ((0, 12), (12, 20), (20, 33))]
    assert torch.equal(nearest_of_each_client(made, features), torch.stack(expected))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("at_a_time", [1, 40, 1 << 24])
def test_nearest_listed_node(sparse: bool, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "SCORES_AT_A_TIME", at_a_time)
    features, x = _features(sparse)
    made = torch.rand(4, 9, generator=torch.Generator().manual_seed(1))
    lists = [[3, 30, 8], [5], [32, 1, 2, 9, 15], [7, 7]]
    row = torch.tensor([r for r, nodes in enumerate(lists) for _ in nodes])
    col = torch.tensor([node for nodes in lists for node in nodes])
    candidates = SparseMatrix.from_coo(row, col, torch.ones(col.numel()), (4, 33))
    expected = [min(nodes, key=lambda u: float((made[r] - x[u]).norm())) for r, nodes in enumerate(lists)]
    assert nearest_of_listed(made, candidates, features).tolist() == expected


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("softness", [0.0, 0.2, 5.0])
def test_shares_and_what_they_mix(sparse: bool, softness: float) -> None:
    features, x = _features(sparse)
    made = torch.rand(7, 9, generator=torch.Generator().manual_seed(1))
    shares = list(shares_of_each_client(made, features, softness))
    assert len(shares) == 3
    for k, (start, end) in enumerate(((0, 12), (12, 20), (20, 33))):
        distance = torch.cdist(made, x[start:end]).square()
        if softness:
            falling = torch.exp(-distance / (softness * distance.mean(1, keepdim=True)))
            expected = falling / falling.sum(1, keepdim=True)
        else:
            expected = torch.nn.functional.one_hot(distance.argmin(1), end - start).float()
        torch.testing.assert_close(shares[k], expected.T)
        torch.testing.assert_close(features.mixed(k, shares[k]), expected @ x[start:end])


@pytest.mark.parametrize("sparse", [True, False])
def test_norms_and_rows(sparse: bool) -> None:
    features, x = _features(sparse)
    torch.testing.assert_close(features.squared_norms, x.norm(dim=1).square())
    assert torch.equal(dense_rows(features, torch.tensor([4, 0, 4])), x[[4, 0, 4]])
