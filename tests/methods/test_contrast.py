"""The contrastive loss of FedGLS against its formula written out node by node."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from suture.core.kernels import Segments
from suture.methods.fedgls import contrast
from suture.methods.fedgls.contrast import contrastive_loss

SEGMENTS = Segments(torch.tensor([0, 6, 7, 16]))


def embeddings() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    z, h = (torch.randn(16, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    return z.requires_grad_(), h


def written_out(z: Tensor, h: Tensor, temperature: float) -> Tensor:
    """Equations (8) and (9) for one client."""

    def sim(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b) / (a.norm() * b.norm())

    losses = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        below = sum((sim(z[i], h[j]) / temperature).exp() + (sim(z[i], z[j]) / temperature).exp() for j in others)
        losses.append(-((sim(z[i], h[i]) / temperature).exp() / below).log())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("block", [1 << 22, 20, 1])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_value_and_gradient_are_those_of_the_formula(
    temperature: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrast, "BLOCK_ENTRIES", block)
    z, h = embeddings()
    loss = contrastive_loss(z, h, SEGMENTS, temperature)
    expected = [written_out(z[:6], h[:6], temperature), torch.tensor(0.0), written_out(z[7:], h[7:], temperature)]
    torch.testing.assert_close(loss, torch.stack([e.double() for e in expected]))
    weights = torch.tensor([1.0, 5.0, -2.0], dtype=torch.float64)
    (found,) = torch.autograd.grad((loss * weights).sum(), z)
    (wanted,) = torch.autograd.grad(expected[0] - 2 * expected[2], z)
    torch.testing.assert_close(found, wanted)


def test_small_temperatures_stay_finite() -> None:
    z, h = embeddings()
    loss = contrastive_loss(z.float(), h.float(), SEGMENTS, 0.001)
    assert bool(loss.isfinite().all())


def test_agreement_is_rewarded() -> None:
    z, _ = embeddings()
    agreeing, turned = contrastive_loss(z, z.detach(), SEGMENTS, 0.2), contrastive_loss(z, -z.detach(), SEGMENTS, 0.2)
    assert bool((agreeing[[0, 2]] < turned[[0, 2]]).all())
