from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import RandomNodeSplit

from suture.errors import ConfigError, DataError, PartitionError
from suture.graph.data import single_split
from suture.graph.partition import Partition
from suture.graph.splits import Role, Split, given_masks, make_split
from suture.settings import SplitSettings

TRAIN, VAL, TEST, NONE = int(Role.TRAIN), int(Role.VAL), int(Role.TEST), int(Role.NONE)


def plain(nodes: int) -> Data:
    return Data(x=torch.ones(nodes, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.arange(nodes) % 3)


def clients(*members: list[int] | range) -> Partition:
    tensors = tuple(torch.tensor(list(nodes), dtype=torch.int64) for nodes in members)
    return Partition(tuple(f"client-{k:02d}" for k in range(len(members))), tensors, (False,) * len(members))


def split(data: Data, partition: Partition, seed: int = 0, /, **settings: object) -> Split:
    return make_split(data, partition, SplitSettings(**settings), seed)  # type: ignore[arg-type]


def counts(roles: Tensor) -> list[int]:
    return torch.bincount(roles.long(), minlength=4).tolist()


def test_global_roles_are_drawn_once_and_inherited() -> None:
    partition = clients(range(0, 120), range(60, 200))
    found = split(plain(200), partition, scope="global", train=0.2, val=0.4, test=0.4)
    assert found.roles.dtype == torch.int8
    assert counts(found.roles) == [0, 40, 80, 80]
    for nodes, roles in zip(partition.members, found.client_roles, strict=True):
        assert torch.equal(roles, found.roles[nodes])


def test_global_roles_do_not_depend_on_the_cut() -> None:
    first = split(plain(100), clients(range(100)))
    second = split(plain(100), clients(range(0, 50), range(50, 100)))
    assert torch.equal(first.roles, second.roles)


@pytest.mark.parametrize("scope", ["global", "client"])
def test_same_seed_same_roles_other_seed_other_roles(scope: str) -> None:
    partition = clients(range(0, 50), range(50, 100))
    first, again, other = (split(plain(100), partition, seed, scope=scope) for seed in (3, 3, 4))
    assert torch.equal(first.roles, again.roles)
    assert not torch.equal(first.roles, other.roles)


def test_shares_that_sum_to_less_than_one_leave_nodes_without_a_role() -> None:
    assert counts(split(plain(100), clients(range(100)), train=0.2, val=0.35, test=0.35).roles) == [10, 20, 35, 35]


@pytest.mark.parametrize("nodes", [7, 99, 101, 2708])
def test_shares_that_sum_to_one_leave_none(nodes: int) -> None:
    found = counts(split(plain(nodes), clients(range(nodes)), train=0.6, val=0.2, test=0.2).roles)
    assert found[NONE] == 0
    assert found == pytest.approx([0, 0.6 * nodes, 0.2 * nodes, 0.2 * nodes], abs=1)


def test_balanced_roles_are_those_of_pygs_random_planetoid_split(cora: Data) -> None:
    """FederatedScope asks PyG for 232 training nodes of each class of Cora, 542 for validation, and tests the rest."""
    found = split(cora, clients(range(cora.num_nodes)), balanced=True).roles.long()
    drawn = RandomNodeSplit("random", num_train_per_class=232, num_val=542, num_test=cora.num_nodes)(cora.clone())
    assert counts(found)[1:] == [int(drawn[f"{role}_mask"].sum()) for role in ("train", "val", "test")]
    trained = torch.bincount(cora.y[found == Role.TRAIN])
    assert torch.equal(trained, torch.bincount(cora.y[drawn.train_mask]))
    assert trained.tolist() == torch.bincount(cora.y).clamp_max(232).tolist()


def test_balanced_training_nodes_are_random_within_their_class(cora: Data) -> None:
    first, other = (split(cora, clients(range(cora.num_nodes)), seed, balanced=True).roles for seed in (0, 1))
    large = cora.y == int(torch.bincount(cora.y).argmax())
    assert not torch.equal(first[large] == Role.TRAIN, other[large] == Role.TRAIN)


def test_balanced_validation_and_test_nodes_are_alike(cora: Data) -> None:
    """Whatever a class leaves goes to both in proportion: 542 of the 1151 nodes that do not train are validated."""
    found = torch.cat([split(cora, clients(range(cora.num_nodes)), seed, balanced=True).roles for seed in range(20)]).long()
    labels = cora.y.repeat(20)
    left, validated = (torch.bincount(labels[chosen], minlength=7) for chosen in (found != Role.TRAIN, found == Role.VAL))
    expected = left * 542 / 1151
    assert bool(((validated - expected).abs() <= 5 * (expected / 2).sqrt()).all()), (validated, expected)


def test_balanced_shares_below_one_leave_nodes_without_a_role() -> None:
    data = plain(100)
    data.y = torch.tensor([0] * 50 + [1] * 50)
    assert counts(split(data, clients(range(100)), balanced=True, train=0.2, val=0.4, test=0.2).roles) == [20, 20, 40, 20]


def test_client_scope_draws_the_shares_inside_each_client() -> None:
    partition = clients(range(0, 50), range(50, 60))
    found = split(plain(70), partition, scope="client")
    assert [counts(roles) for roles in found.client_roles] == [[0, 30, 10, 10], [0, 6, 2, 2]]
    assert torch.equal(found.roles[:60], torch.cat(found.client_roles))
    assert counts(found.roles[60:]) == [10, 0, 0, 0]


def test_two_clients_with_the_same_nodes_draw_different_roles() -> None:
    found = split(plain(60), clients(range(60), range(60)), scope="client")
    assert not torch.equal(*found.client_roles)


def test_a_shared_node_that_trains_anywhere_is_not_tested_on_the_uncut_graph() -> None:
    found = split(plain(200), clients(range(200), range(200)), scope="client")
    first, second = found.client_roles
    for node in range(200):
        own = {int(first[node]), int(second[node])}
        expected = TRAIN if TRAIN in own else VAL if VAL in own else TEST
        assert int(found.roles[node]) == expected
    assert 0 < counts(found.roles)[TEST] < 40


def test_given_masks_become_roles() -> None:
    data = plain(5)
    data.train_mask = torch.tensor([1, 0, 0, 1, 0]).bool()
    data.val_mask = torch.tensor([0, 1, 0, 0, 0]).bool()
    data.test_mask = torch.tensor([0, 0, 1, 0, 0]).bool()
    found = split(data, clients([0, 1], [2, 3, 4]), scope="given")
    assert found.roles.tolist() == [TRAIN, VAL, TEST, TRAIN, NONE]
    assert [roles.tolist() for roles in found.client_roles] == [[TRAIN, VAL], [TEST, TRAIN, NONE]]


def test_given_roles_of_cora_are_its_public_split(cora: Data) -> None:
    found = split(cora, clients(range(cora.num_nodes)), scope="given")
    assert counts(found.roles) == [2708 - 140 - 500 - 1000, 140, 500, 1000]


def test_missing_masks_are_said() -> None:
    with pytest.raises(DataError, match=r"needs data\.train_mask, which is absent"):
        split(plain(4), clients(range(4)), scope="given")


def test_masks_of_wrong_shape_or_with_shared_nodes_are_said() -> None:
    data = plain(4)
    data.train_mask = torch.ones(5, dtype=torch.bool)
    with pytest.raises(DataError, match=r"train_mask must be one bool for each of the 4 nodes, got .*\(5,\)"):
        split(data, clients(range(4)), scope="given")
    data.train_mask = torch.tensor([True, False, False, False])
    data.val_mask = data.train_mask
    with pytest.raises(DataError, match=r"val_mask shares nodes with another mask"):
        split(data, clients(range(4)), scope="given")


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"train": 0.0}, "split.train must be > 0, got 0.0"),
        ({"val": -0.1}, "split.val must be > 0, got -0.1"),
        ({"test": float("nan")}, "split.test must be > 0, got nan"),
        ({"train": 0.7, "val": 0.2, "test": 0.2}, "at most 1, got 1.1"),
    ],
)
@pytest.mark.parametrize("scope", ["global", "client"])
def test_impossible_shares_are_refused(scope: str, shares: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split(plain(10), clients(range(10)), scope=scope, **shares)


def test_misspelt_scope_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'global'"):
        split(plain(10), clients(range(10)), scope="globl")


def test_a_client_without_a_training_node_is_named_with_what_to_change() -> None:
    with pytest.raises(PartitionError, match=r"client-01.*has 1 nodes.*fewer clients.*split\.train.*another seed"):
        split(plain(21), clients(range(20), [20]), scope="client", train=0.2, val=0.4, test=0.4)


def test_a_client_without_a_given_training_node_is_told_to_draw_a_split(cora: Data) -> None:
    bare = [node for node in range(cora.num_nodes) if not cora.train_mask[node]]
    with pytest.raises(PartitionError, match=r"1 of 2 clients .*client-01.*another split\.scope"):
        split(cora, clients(range(140), bare), scope="given")


def test_a_client_without_a_test_node_is_allowed() -> None:
    found = split(plain(12), clients(range(10), [10, 11]), scope="client", train=0.7, val=0.2, test=0.1)
    assert TEST not in found.client_roles[1].tolist()


@pytest.mark.parametrize("validating", [True, False], ids=["with validation", "without"])
def test_an_owner_alone_decides_as_all_owners_together(validating: bool) -> None:
    """Of three owners one has masks, one has none, one has masks without labelled validation nodes."""
    owners, size = ("a", "b", "c"), 20
    y = torch.arange(3 * size) % 2
    y[::7] = -1
    place = torch.arange(3 * size) % size
    masks = {"train_mask": place < 8, "val_mask": (place >= 8) & (place < 12), "test_mask": place >= 12}
    inside = torch.arange(3 * size) // size != 1
    masks = {name: mask & inside for name, mask in masks.items()}
    masks["val_mask"] &= validating & (torch.arange(3 * size) < size)
    whole = Data(x=torch.ones(3 * size, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=y, **masks)
    members = tuple(torch.arange(k * size, (k + 1) * size) for k in range(3))
    settings = SplitSettings(scope="auto", stratified=True)
    together = make_split(whole, Partition(owners, members, (False,) * 3), settings, 4)
    for k, name in enumerate(owners):
        mine = {key: value[members[k]] for key, value in masks.items()} if k != 1 else {}
        data = Data(x=whole.x[members[k]], edge_index=whole.edge_index, y=y[members[k]], **mine)
        alone = make_split(data, Partition((name,), (torch.arange(size),), (False,)), settings, 4, given_masks(whole))
        assert torch.equal(alone.client_roles[0], together.client_roles[k]), name


def several() -> Data:
    """Three splits of six nodes; everybody is tested on the last node."""
    data = plain(6)
    data.train_mask, data.val_mask = torch.zeros(2, 6, 3, dtype=torch.bool).unbind(0)
    for number in range(3):
        data.train_mask[number, number] = True
        data.val_mask[(number + 1) % 5, number] = True
    data.test_mask = torch.arange(6) == 5
    return data


@pytest.mark.parametrize("scope", ["given", "auto"])
@pytest.mark.parametrize(("seed", "number", "taken"), [(0, -1, 0), (2, -1, 2), (4, -1, 1), (4, 0, 0), (0, 2, 2)])
def test_of_several_given_splits_one_is_taken(scope: str, seed: int, number: int, taken: int) -> None:
    found = split(several(), clients(range(6)), seed, scope=scope, number=number)
    expected = [NONE] * 5 + [TEST]
    expected[taken], expected[(taken + 1) % 5] = TRAIN, VAL
    assert found.roles.tolist() == expected
    assert f"of the 3 given splits, number {taken} is used" in found.notes
    assert given_masks(several()) == ("train_mask", "val_mask", "test_mask")


def test_a_split_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match=r"split\.number is 3, but the given masks hold 3 splits, numbered from 0; set a"):
        split(several(), clients(range(6)), scope="given", number=3)
    data = several()
    data.val_mask = data.val_mask[:, :2]
    with pytest.raises(DataError, match=r"masks must hold equally many splits, .* data\.train_mask 3, data\.val_mask 2"):
        split(data, clients(range(6)), scope="given")
    with pytest.raises(ConfigError, match=r"split\.number is 1, but the given masks hold one split; set a smaller one"):
        split(single_split(several(), 0), clients(range(6)), scope="given", number=1)
