"""One optimiser step of a side network, against torch's own optimiser, one client at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.tree import Tree, map_tree, tile
from suture.settings import TrainingSettings
from suture.training.optimisers import descend, fresh_moments, leaves_of, slopes, stepped

SETTINGS = TrainingSettings(optimizer="adam", lr=0.1, weight_decay=0.01)


def start(clients: int) -> Tree:
    rng = torch.Generator().manual_seed(3)
    return {"weight": torch.randn(clients, 4, 2, generator=rng), "unused": torch.randn(clients, 2, generator=rng)}


def loss(params: Tree) -> Tensor:
    """Another target for each client."""
    target_K = torch.arange(params["weight"].shape[0]).view(-1, 1, 1)
    return (params["weight"] - target_K).square().sum((1, 2))


def test_descend_is_one_torch_step_of_every_active_client() -> None:
    params, active = start(3), torch.tensor([True, False, True])
    moments, before = fresh_moments(params, SETTINGS), map_tree(Tensor.clone, params)
    after, remembered, told = descend(loss, params, moments, SETTINGS, active)
    torch.testing.assert_close(told, loss(before))
    assert remembered["step"].tolist() == [1, 0, 1] and not moments["step"].any()
    for k in range(3):
        leaf = before["weight"][k].clone().requires_grad_()
        if active[k]:
            (leaf - k).square().sum().backward()  # type: ignore[no-untyped-call]
            torch.optim.Adam([leaf], lr=0.1, weight_decay=0.01).step()
        torch.testing.assert_close(after["weight"][k], leaf.detach())
    assert all(torch.equal(params[name], value) for name, value in before.items())
    assert not any(value.requires_grad for value in (*after.values(), told))


def test_everybody_steps_unless_told_otherwise() -> None:
    params = start(2)
    _, remembered, _ = descend(loss, params, fresh_moments(params, SETTINGS), SETTINGS)
    assert remembered["step"].tolist() == [1, 1]


def test_descend_from_one_copy_for_all_is_descending_from_copies() -> None:
    shared = tile(map_tree(lambda value: value[:1], start(1)), 3)
    copies = map_tree(lambda value: value.clone(memory_format=torch.contiguous_format), shared)
    ends = [descend(loss, params, fresh_moments(params, SETTINGS), SETTINGS)[0] for params in (shared, copies)]
    assert all(torch.equal(ends[0][name], value) and value.is_contiguous() for name, value in ends[1].items())


def test_a_foreign_gradient_is_added_between_slopes_and_step() -> None:
    """w <- w - lr (own + foreign), by plain SGD; a leaf the loss does not know of gets the foreign gradient alone."""
    settings, params = TrainingSettings(optimizer="sgd", lr=0.5), start(2)
    leaves = leaves_of(params)
    own = slopes(loss(leaves), leaves)
    assert not own["unused"].any()
    foreign = map_tree(torch.ones_like, params)
    grads = {name: own[name] + foreign[name] for name in own}
    after, _ = stepped(params, grads, fresh_moments(params, settings), settings)
    target = torch.arange(2).view(-1, 1, 1)
    torch.testing.assert_close(after["weight"], params["weight"] - 0.5 * (2 * (params["weight"] - target) + 1))
    torch.testing.assert_close(after["unused"], params["unused"] - 0.5)
