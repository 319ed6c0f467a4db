"""What methods do differently with very many clients is what they do with few, only in parts, or among fewer."""

from __future__ import annotations

import pytest
import torch

from suture.core.tree import mix
from suture.methods.feddep.prototypes import Prototypes, among_groups, for_everybody_else
from suture.methods.fedpub import mixing
from suture.methods.fedpub.method import FedPub


def _signatures(clients: int) -> torch.Tensor:
    return torch.randn(clients, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fields", [{}, {"community": 0.2}, {"similarity": "labels"}, {"neighbours": 3}])
def test_fedpubs_weights_in_blocks_are_those_at_once(fields: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedPub(tau=2.0, **fields)  # type: ignore[arg-type]
    signature = _signatures(11).abs()
    at_once = method.alpha(method.similarities(signature)).float()
    monkeypatch.setattr(mixing, "WEIGHTS_AT_A_TIME", 25)  # two rows of eleven
    torch.testing.assert_close(method.weights(signature), at_once)
    torch.testing.assert_close(at_once.sum(1), torch.ones(11))


def test_fedpub_among_neighbours_is_the_softmax_over_the_nearest() -> None:
    method = FedPub(tau=2.0, neighbours=3)
    similarity = method.similarities(_signatures(9))
    alpha = method.alpha(similarity)
    for i in range(9):
        others = sorted((j for j in range(9) if j != i), key=lambda j: -float(similarity[i, j]))[:3]
        chosen = [i, *others]
        expected = torch.zeros(9, dtype=torch.float64)
        expected[chosen] = torch.softmax(2.0 * similarity[i, chosen], 0)
        torch.testing.assert_close(alpha[i], expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_mixing_in_blocks_is_one_product(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(1)
    weights = torch.rand(40, 40, generator=rng)
    if sparse:
        weights = weights * (torch.rand(40, 40, generator=rng) < 0.05) + torch.eye(40)
    weights = weights / weights.sum(1, keepdim=True)
    tree = {"w": torch.randn(40, 3, 5, generator=rng), "b": torch.randn(40, 2, generator=rng)}
    rows = [7, 0, 39, 7, 12, 13]
    expected = mix(tree, weights[rows])
    monkeypatch.setattr(mixing, "WEIGHTS_AT_A_TIME", 80)
    found = mixing.mixed(tree, weights, rows)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_feddeps_groups_hear_of_each_other_alone() -> None:
    told = Prototypes(("e", "a", "d", "b", "c"), torch.arange(1.0, 31.0).view(5, 2, 3))
    of = {name: told.centres[k] for k, name in enumerate(told.ids)}
    heard = among_groups(told, [("a", "d", "b"), ("e", "c")])
    assert heard.ids == told.ids
    by_name = {name: heard.centres[k] for k, name in enumerate(heard.ids)}
    assert torch.equal(by_name["d"], torch.stack([of["a"], of["b"]]))
    assert torch.equal(by_name["e"][0], of["c"])
    assert not by_name["e"][1].any()  # its group is smaller: nothing, as of a client that tells nothing
    everybody = among_groups(told, [told.ids])
    assert torch.equal(everybody.centres, for_everybody_else(told).centres)
