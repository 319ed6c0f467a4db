"""An owner's file: what comes back is what was written; what lies is refused in a sentence, before it costs memory."""

from __future__ import annotations

import dataclasses
import io
import json
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch_geometric.utils import to_dense_adj

from suture.errors import DataError
from suture.graph.batch import Features, GraphBatch, batch_of, feature_matrix
from suture.graph.data import MOST_CLASSES
from suture.graph.shard import Shard, load_shard, save_shard
from suture.testing.world import small_world, weighted_world

OWNER = "owner-ash"


def single_client(shard: Shard, owner: str) -> GraphBatch:
    return batch_of(shard.data, [owner], [torch.arange(int(shard.data.num_nodes))], [shard.roles], [False])


def dense(graph: GraphBatch) -> Tensor:
    adjacency: Tensor = to_dense_adj(graph.edge_index, edge_attr=graph.edge_weight, max_num_nodes=graph.num_nodes)[0]
    return adjacency


@pytest.mark.parametrize("world", [small_world, weighted_world], ids=["plain", "weighted"])
@pytest.mark.parametrize("owner", ["owner-ash", "owner-dogwood"])
def test_what_is_read_is_what_was_written(world: Callable[[], Any], owner: str, tmp_path: Path) -> None:
    clients = world().clients
    save_shard(clients, owner, tmp_path / "a.safetensors", classes=3, row_normalised=True)
    shard = load_shard(tmp_path / "a.safetensors")
    one, again = clients.select([owner]), single_client(shard, owner)
    assert shard.classes == 3
    assert (again.edge_weight is None) == (one.edge_weight is None)
    assert torch.equal(dense(one), dense(again))
    assert torch.equal(one.directed, again.directed)
    for name in ("y", "role", "node_id"):
        assert torch.equal(getattr(one, name), getattr(again, name))
    assert torch.equal(one.x.dense(), again.x.dense())
    assert torch.equal(one.gcn_operator.val, again.gcn_operator.val), "the order of sums, too"


def test_a_version_that_knows_no_weights_does_not_read_them(tmp_path: Path) -> None:
    formats = []
    for world in (small_world(), weighted_world()):
        save_shard(world.clients, OWNER, tmp_path / "a.safetensors", classes=3, row_normalised=True)
        with safetensors.safe_open(tmp_path / "a.safetensors", framework="pt") as file:
            formats.append(json.loads(file.metadata()["suture"])["format"])
    assert formats == ["suture-shard/1", "suture-shard/2"]


def arrays(**changes: Any) -> dict[str, Any]:
    nodes = 12
    rng = np.random.default_rng(0)
    masks = {f"{name}_mask": np.arange(nodes) % 3 == k for k, name in enumerate(("train", "val", "test"))}
    plain = {"x": rng.normal(size=(nodes, 4)), "edge_index": np.array([[0, 1, 2, 5], [1, 2, 0, 4]])}
    made = {**plain, "y": np.arange(nodes) % 2, **masks, **changes}
    return {name: value for name, value in made.items() if value is not None}


def written(path: Path, **changes: Any) -> Path:
    np.savez(path, **arrays(**changes))
    return path


def test_an_own_file_may_have_weights_direction_and_unlabelled_nodes(tmp_path: Path) -> None:
    weight = np.array([0.5, 2.0, 3.0, 1.5])
    y = arrays()["y"].copy()
    y[0] = -1
    train = arrays()["train_mask"].copy()
    train[0] = False
    more = {"edge_weight": weight, "directed": True, "y": y, "train_mask": train}
    batch = single_client(load_shard(written(tmp_path / "own.npz", **more)), "own")
    expected = torch.zeros(12, 12)
    for (u, v), w in zip(arrays()["edge_index"].T, weight, strict=True):
        expected[u, v] = w
    assert torch.equal(dense(batch), expected)
    assert batch.y[0] == -1 and batch.role[0] == 0
    mirrored = single_client(load_shard(written(tmp_path / "both.npz", edge_weight=weight)), "own")
    assert torch.equal(dense(mirrored), expected + expected.T)


def test_a_role_without_a_label_is_refused(tmp_path: Path) -> None:
    y = arrays()["y"].copy()
    y[3] = -1
    with pytest.raises(DataError, match=r"1 nodes without a label are marked .* node 3"):
        load_shard(written(tmp_path / "a.npz", y=y))


HOSTILE_ARRAYS: dict[str, dict[str, Any]] = {
    "label of 2^40": {"y": np.array([2**40, *range(11)])},
    "label of 10^9": {"y": np.array([10**9, *range(11)])},
    "label of the limit": {"y": np.array([MOST_CLASSES, *range(11)])},
    "unsigned label of 2^63": {"y": np.array([2**63, *range(11)], dtype=np.uint64)},
    "label of -2": {"y": np.array([-2, *range(11)])},
    "float labels": {"y": np.arange(12) / 2},
    "labels of several columns": {"y": np.ones((12, 2), dtype=np.int64)},
    "text labels": {"y": np.array(["a"] * 12)},
    "too few labels": {"y": np.arange(5)},
    "edges to nowhere": {"edge_index": np.array([[0, 2**50], [1, 2]])},
    "negative nodes": {"edge_index": np.array([[0, -1], [1, 2]])},
    "three rows of edges": {"edge_index": np.zeros((3, 2), dtype=np.int64)},
    "fractional edges": {"edge_index": np.array([[0.0, 1.5], [1, 2]])},
    "too few weights": {"edge_weight": np.ones(3)},
    "negative weights": {"edge_weight": np.array([1.0, -1, 1, 1])},
    "weights of zero": {"edge_weight": np.array([1.0, 0, 1, 1])},
    "infinite weights": {"edge_weight": np.array([1.0, np.inf, 1, 1])},
    "three directions": {"directed": np.array([True, False, True])},
    "complex features": {"x": np.ones((12, 4), dtype=np.complex64)},
    "features of one dimension": {"x": np.ones(12)},
    "infinite features": {"x": np.full((12, 4), np.inf)},
    "a mask of numbers": {"train_mask": np.ones(12)},
    "a pickled array": {"x": np.array([{}] * 12, dtype=object)},
    "no training node": {"train_mask": np.zeros(12, dtype=bool)},
    "no features": {"x": None},
    "no nodes": {"x": np.zeros((0, 4)), "y": np.zeros(0, dtype=np.int64)},
}


def assert_refused_cheaply(path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError) as refused:
        load_shard(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value).strip()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "it took more than 100 MB"


@pytest.mark.parametrize("changes", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_hostile_arrays_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "hostile.npz"
    np.savez(path, allow_pickle=True, **arrays(**changes))
    assert_refused_cheaply(path)


@pytest.mark.parametrize("shape", [(2, 10**11), (2, 2**62), (2**40, 2**40)])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_that_lies_about_its_size(shape: tuple[int, int], compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "lying.npz"
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, array in arrays().items():
            content = io.BytesIO()
            if name == "edge_index":
                np.lib.format.write_array_header_1_0(content, {"descr": "<i8", "fortran_order": False, "shape": shape})
                content.write(b"\0" * 64)
            else:
                np.save(content, array)
            archive.writestr(f"{name}.npy", content.getvalue())
    assert_refused_cheaply(path)


@pytest.mark.parametrize("end", [100, 700, 1500])
def test_a_torn_file(end: int, tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.npz").read_bytes()
    for name, content in (("torn", whole[:end]), ("scratched", whole[:end] + b"\xff" * 40 + whole[end + 40 :])):
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content)
        assert_refused_cheaply(path)


HOSTILE_NOTES: dict[str, dict[str, Any]] = {
    "a billion classes": {"classes": 10**9},
    "2^40 classes": {"classes": 2**40},
    "no class": {"classes": 0},
    "classes in words": {"classes": "many"},
    "classes that are true": {"classes": True},
    "10^400 classes": {"classes": 10**400},
    "2^40 features": {"features": 2**40},
    "negative features": {"features": -1},
    "fewer features than columns": {"features": 2},
    "features in halves": {"features": 40.5},
    "another format": {"format": "suture-shard/9"},
}


def few(x: Tensor) -> Tensor:
    """A tenth of the features."""
    return x.clamp_min(0.1) * (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.1)


def retold(path: Path, about: Any, **tensors: Tensor) -> Path:
    """The shard of a client, its features sparse, with another note about itself and other tensors."""
    clients = weighted_world().clients
    matrix = feature_matrix(few(clients.x.dense()).to_sparse_csr())
    clients = dataclasses.replace(clients, x=Features(matrix, clients.segments))
    save_shard(clients, OWNER, path, classes=3, row_normalised=True)
    with safetensors.safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["suture"])
        content = {name: file.get_tensor(name) for name in file.keys()} | tensors  # noqa: SIM118 - not a dictionary
    note = json.dumps({**told, **about} if isinstance(about, dict) else about)
    path.write_bytes(safetensors.torch.save(content, {"suture": note}))
    return path


@pytest.mark.parametrize("about", HOSTILE_NOTES.values(), ids=HOSTILE_NOTES)
def test_hostile_notes_are_refused(about: dict[str, Any], tmp_path: Path) -> None:
    assert_refused_cheaply(retold(tmp_path / "a.safetensors", about))


def test_sparse_features_come_back(tmp_path: Path) -> None:
    shard = load_shard(retold(tmp_path / "a.safetensors", {}))
    assert shard.data.x.layout == torch.sparse_csr
    expected = few(weighted_world().clients.x.dense())[: shard.data.num_nodes]
    assert torch.equal(shard.data.x.to_dense(), expected)


@pytest.mark.parametrize("about", [[], None, 3, "text"])
def test_notes_of_another_kind_are_refused(about: Any, tmp_path: Path) -> None:
    assert_refused_cheaply(retold(tmp_path / "a.safetensors", about))


NODES = int(small_world().clients.sizes[0])
HOSTILE_TENSORS: dict[str, dict[str, Tensor]] = {
    "label of 2^40": {"y": torch.full((NODES,), 2**40)},
    "roles that wrap around": {"role": torch.full((NODES,), 257)},
    "roles of another length": {"role": torch.ones(3, dtype=torch.int8)},
    "weights of another length": {"edge_weight": torch.ones(3)},
    "edges to nowhere": {"edge_index": torch.full((2, 4), 10**12), "edge_weight": torch.ones(4)},
    "columns beyond the width": {"x.col": torch.full((8,), 10**6)},
    "row pointers that go back": {"x.rowptr": torch.tensor([5, 0])},
}


@pytest.mark.parametrize("tensors", HOSTILE_TENSORS.values(), ids=HOSTILE_TENSORS)
def test_hostile_tensors_are_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    assert_refused_cheaply(retold(tmp_path / "a.safetensors", {}, **tensors))


def test_old_files_say_nothing_of_direction_and_are_mirrored(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_shard(small_world().clients, OWNER, path, classes=3, row_normalised=True)
    with safetensors.safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["suture"])
        content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    told.pop("directed")
    source, target = content["edge_index"]
    content["edge_index"] = content["edge_index"][:, source < target]
    path.write_bytes(safetensors.torch.save(content, {"suture": json.dumps(told)}))
    one, again = small_world().clients.select([OWNER]), single_client(load_shard(path), OWNER)
    assert torch.equal(dense(one), dense(again))
