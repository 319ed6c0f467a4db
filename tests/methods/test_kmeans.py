"""k-means with a client axis against scipy and against exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from suture.core.kernels import Segments
from suture.core.streams import Streams
from suture.methods.feddep.kmeans import kmeans, nearest, seeds

SIZES = [30, 7, 18]
IDS = ("ash", "birch", "cedar")


def _points(seed: int = 0) -> tuple[torch.Tensor, Segments]:
    points = torch.randn(sum(SIZES), 4, generator=torch.Generator().manual_seed(seed))
    return points, Segments(torch.tensor([0, *itertools.accumulate(SIZES)]))


def _streams(ids: tuple[str, ...] = IDS) -> Streams:
    return Streams.of(0, ids, "k-means")


def test_equals_scipy_from_the_same_seeds() -> None:
    points, segments = _points()
    start = seeds(points.double(), segments, 3, _streams())
    centres, cluster = kmeans(points, segments, 3, _streams())
    for k, piece in enumerate(points.split(SIZES)):
        theirs, labels = kmeans2(piece.double().numpy(), start[k].numpy(), iter=100, minit="matrix", missing="raise")
        np.testing.assert_allclose(centres[k].numpy(), theirs, atol=1e-6)
        assert cluster.split(SIZES)[k].tolist() == labels.tolist()


def test_well_separated_groups_are_found_exactly() -> None:
    middle = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    noise = torch.rand(24, 2, generator=torch.Generator().manual_seed(1))
    truth = torch.arange(24) % 3
    points = torch.cat([middle[truth] + noise, -middle[truth] - noise])
    segments = Segments(torch.tensor([0, 24, 48]))
    centres, cluster = kmeans(points, segments, 3, _streams(("ash", "birch")))
    for k, piece in enumerate(points.split(24)):
        mine = cluster.split(24)[k]
        for group in range(3):
            assert mine[truth == group].unique().numel() == 1
            expected = piece[truth == group].mean(0)
            torch.testing.assert_close(centres[k][mine[truth == group][0]], expected)


def test_nearest_is_exhaustive_search() -> None:
    points, segments = _points(3)
    centres = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(4))
    apart = torch.stack([(points[i] - centres[k]).norm(dim=1) for i, k in enumerate(segments.client.tolist())])
    assert torch.equal(nearest(points, centres, segments), apart.argmin(1))


def test_a_client_groups_its_points_alike_alone_and_in_a_batch() -> None:
    points, segments = _points()
    centres, cluster = kmeans(points, segments, 4, _streams())
    for k, piece in enumerate(points.split(SIZES)):
        alone, own = kmeans(piece, Segments(torch.tensor([0, SIZES[k]])), 4, _streams((IDS[k],)))
        torch.testing.assert_close(alone[0], centres[k])
        assert torch.equal(own, cluster.split(SIZES)[k])


def test_seeds_are_drawn_in_proportion_to_squared_distance() -> None:
    """Points at 0, 1 and 3: after the first the second seed follows distance squared, counted over many clients."""
    clients = 3000
    points = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64).repeat(clients, 1)
    segments = Segments(torch.arange(clients + 1) * 3)
    chosen = seeds(points, segments, 2, Streams.of(0, [str(k) for k in range(clients)], "seeds")).squeeze(2)
    first, second = chosen[:, 0], chosen[:, 1]
    assert abs(float((first == 0).double().mean()) - 1 / 3) < 0.03
    after_zero = second[first == 0]
    assert abs(float((after_zero == 3).double().mean()) - 9 / 10) < 0.03
    assert not bool((first == second).any())


def test_fewer_points_than_clusters() -> None:
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    centres, cluster = kmeans(points, Segments(torch.tensor([0, 2, 3])), 4, _streams(("ash", "birch")))
    torch.testing.assert_close(centres[0, cluster[:2]], points[:2])
    torch.testing.assert_close(centres[1], points[2].expand(4, 2))
