from __future__ import annotations

import pytest
import torch

from suture.core.tree import Tree, is_tiled, map_tree, mean, mix, rows_of, split, squared_distance, take_rows, tile


@pytest.fixture
def tree() -> Tree:
    rng = torch.Generator().manual_seed(0)
    return {"weight": torch.randn(4, 3, 2, generator=rng), "bias": torch.randn(4, 2, generator=rng)}


def test_rows_of_counts_clients(tree: Tree) -> None:
    assert rows_of(tree) == 4
    assert rows_of({}) == 0


def test_map_tree_keeps_names_and_leaves_the_argument_alone(tree: Tree) -> None:
    before = tree["bias"].clone()
    doubled = map_tree(lambda value: value * 2, tree)
    assert list(doubled) == list(tree)
    assert torch.equal(doubled["bias"], before * 2)
    assert torch.equal(tree["bias"], before)


def test_tile_shares_memory_and_is_recognised() -> None:
    single = {"weight": torch.arange(6.0).view(1, 2, 3)}
    tiled = tile(single, 5)["weight"]
    assert tiled.shape == (5, 2, 3)
    assert tiled.data_ptr() == single["weight"].data_ptr()
    assert is_tiled(tiled)
    assert not is_tiled(tiled.clone())
    assert is_tiled(single["weight"])


def test_mix_follows_the_matrix(tree: Tree) -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]])
    mixed = mix(tree, weights)
    assert mixed["weight"].shape == (2, 3, 2)
    torch.testing.assert_close(mixed["weight"][0], (tree["weight"][0] + tree["weight"][1]) / 2)
    torch.testing.assert_close(mixed["bias"][1], 0.25 * tree["bias"][2] + 0.75 * tree["bias"][3])


def test_mix_with_the_identity_changes_nothing(tree: Tree) -> None:
    mixed = mix(tree, torch.eye(4))
    assert all(torch.equal(mixed[name], value) for name, value in tree.items())


def test_mix_takes_tiled_rows() -> None:
    tiled = tile({"bias": torch.tensor([[1.0, -2.0]])}, 3)
    assert torch.equal(mix(tiled, torch.full((1, 3), 1 / 3))["bias"], torch.tensor([[1.0, -2.0]]))


def test_mean_weighs_by_size(tree: Tree) -> None:
    average = mean(tree, torch.tensor([1, 2, 0, 5]))
    expected = (tree["bias"][0] + 2 * tree["bias"][1] + 5 * tree["bias"][3]) / 8
    assert average["bias"].shape == (1, 2)
    torch.testing.assert_close(average["bias"][0], expected)


def test_mean_of_equal_models_is_that_model() -> None:
    value = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    average = mean(tile({"w": value}, 7), torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]))
    torch.testing.assert_close(average["w"], value, rtol=1e-6, atol=1e-7)


def test_mean_where_nobody_weighs_anything_is_the_plain_mean(tree: Tree) -> None:
    torch.testing.assert_close(mean(tree, torch.zeros(4))["bias"][0], tree["bias"].mean(0))


def test_split_divides_by_name(tree: Tree) -> None:
    chosen, others = split(tree, ["bias", "no such name"])
    assert list(chosen) == ["bias"]
    assert list(others) == ["weight"]


def test_squared_distance_is_per_client(tree: Tree) -> None:
    moved = {"weight": tree["weight"].clone(), "bias": tree["bias"].clone()}
    moved["weight"][1, 2, 0] += 3.0
    moved["bias"][1, 0] += 4.0
    moved["bias"][3, 1] -= 2.0
    torch.testing.assert_close(squared_distance(moved, tree), torch.tensor([0.0, 25.0, 0.0, 4.0]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("index", [[0, 1], [2, 3], [3, 1, 0], [1], [2, 2], []])
def test_take_rows_is_indexing(tree: Tree, index: list[int]) -> None:
    taken = take_rows(tree["weight"], index)
    assert taken.shape == (len(index), 3, 2)
    assert all(torch.equal(taken[i], tree["weight"][k]) for i, k in enumerate(index))


def test_take_rows_copies_nothing_where_it_need_not(tree: Tree) -> None:
    assert take_rows(tree["weight"], [1, 2]).data_ptr() == tree["weight"][1].data_ptr()
    tiled = tile({"w": torch.ones(1, 2)}, 5)["w"]
    assert is_tiled(take_rows(tiled, [4, 0, 2]))
    assert take_rows(tiled, []).shape == (0, 2)
