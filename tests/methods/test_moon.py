"""MOON: the reduction to FedAvg, its contrast and a whole run against an independent computation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from by_hand import SGD, linear, mean_parts, parts_of, sizes
from harness import assert_same, run_to_end, small, small_world
from numpy.testing import assert_allclose
from torch import Tensor

from suture.methods.fedavg import FedAvg
from suture.methods.moon import Moon, contrast
from suture.training.batches import Batch

WORLD = small_world()


def test_without_contrast_it_is_fedavg() -> None:
    left = run_to_end(small(Moon, mu=0.0), WORLD.clients, WORLD.task)
    assert_same(left, run_to_end(small(FedAvg), WORLD.clients, WORLD.task), tolerance=0.0)


def test_the_first_round_is_fedavgs() -> None:
    """The earlier model is the received one: the contrast is log 2, without a slope."""
    once = {"rounds": 1, "local_epochs": 1}
    left = run_to_end(small(Moon, mu=5.0, training=once), WORLD.clients, WORLD.task)
    right = run_to_end(small(FedAvg, training=once), WORLD.clients, WORLD.task)
    for name, value in left.server.tensors().items():
        torch.testing.assert_close(value, right.server.tensors()[name], rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(left.states, right.states, strict=True):
        torch.testing.assert_close(mine.params, theirs.params, rtol=1e-6, atol=1e-6)


def test_the_contrast_by_hand() -> None:
    view = WORLD.clients.train
    now, common, earlier = torch.randn(3, view.nodes.numel(), 4, generator=torch.Generator().manual_seed(0))
    got = contrast(now, common, earlier, Batch(WORLD.clients, view, None), 0.5)  # type: ignore[arg-type]
    for k in range(len(WORLD.clients.ids)):
        values = []
        for row in (view.segments.client == k).nonzero().flatten().tolist():
            near, far = (float(now[row] @ z[row] / (now[row].norm() * z[row].norm())) for z in (common, earlier))
            values.append(-math.log(math.exp(near / 0.5) / (math.exp(near / 0.5) + math.exp(far / 0.5))))
        assert float(got[k]) == pytest.approx(sum(values) / len(values), rel=1e-5)


def test_two_rounds_against_one_client_at_a_time() -> None:
    """The paper's algorithm in plain torch, a client at a time, on a linear network: an embedding is the class scores."""
    mu, tau, lr, epochs = 2.0, 0.4, SGD["lr"], 2
    method = linear(Moon, {"mu": mu, "temperature": tau}, **SGD, rounds=2, local_epochs=epochs)
    start = method.initial_params(WORLD.task)
    w = [start[f"layer1.{part}"][0].double() for part in ("weight", "bias")]
    earlier = dict.fromkeys(WORLD.clients.ids, w)
    for _ in range(2):
        trained: list[list[Tensor]] = []
        for name in WORLD.clients.ids:
            graph = WORLD.clients.select([name])
            x, y = graph.x.dense().double()[graph.train.nodes], graph.y[graph.train.nodes]
            now = [part.clone() for part in w]
            for _ in range(epochs):
                now = [part.detach().requires_grad_() for part in now]
                z, common, before = (x @ a + b for a, b in (now, w, earlier[name]))
                scores = torch.stack([F.cosine_similarity(z, other.detach()) for other in (common, before)], 1) / tau
                loss = F.cross_entropy(z, y) + mu * F.cross_entropy(scores, torch.zeros(len(y), dtype=torch.int64))
                now = [part - lr * g for part, g in zip(now, torch.autograd.grad(loss, now), strict=True)]
            trained.append(now)
            earlier[name] = [part.detach() for part in now]
        w = [torch.from_numpy(part) for part in mean_parts([[p.detach().numpy() for p in m] for m in trained], sizes())]
    end = run_to_end(method, WORLD.clients, WORLD.task)
    for got, expected in zip(parts_of(end.server), w, strict=True):
        assert_allclose(got, expected.numpy(), atol=1e-5)
