from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.errors import IntegrityError, StorageError, SutureError
from suture.graph.checks import validate
from suture.graph.cut import Cut, load_manifest, make_cut, save_manifest
from suture.graph.data import fingerprint
from suture.settings import PartitionSettings, PreprocessSettings, SplitSettings

Content = dict[str, object]


@pytest.fixture(scope="module")
def graph() -> Data:
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(rng.integers(60, size=(2, 200)))
    return validate(Data(x=torch.rand(60, 4) + 0.1, edge_index=edges, y=torch.from_numpy(rng.integers(3, size=60))))


@pytest.fixture(scope="module")
def cut(graph: Data) -> Cut:
    partition = PartitionSettings(kind="metis-overlap", clients=4, overlap_copies=2, graphless_fraction=0.5)
    return make_cut(graph, "toy", PreprocessSettings(), partition, SplitSettings(scope="client"), 7)


@pytest.fixture
def manifest(cut: Cut, tmp_path: Path) -> Path:
    save_manifest(cut, tmp_path / "cut.json")
    return tmp_path / "cut.json"


def rehash(content: Content) -> None:
    """As in the module: SHA-256 of the sorted, compact JSON of all but the hash."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    content["sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def assert_same(left: Cut, right: Cut) -> None:
    assert left.partition.ids == right.partition.ids
    assert left.partition.graphless == right.partition.graphless
    pairs = [
        *zip(left.partition.members, right.partition.members, strict=True),
        *zip(left.split.client_roles, right.split.client_roles, strict=True),
        (left.split.roles, right.split.roles),
    ]
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    for name in ("settings", "seed", "dataset", "fingerprint", "versions"):
        assert getattr(left, name) == getattr(right, name)


def test_round_trip_is_exact(cut: Cut, manifest: Path, graph: Data) -> None:
    assert_same(load_manifest(manifest), cut)
    assert_same(load_manifest(manifest, graph), cut)


def test_a_cut_records_how_it_was_made(cut: Cut, graph: Data) -> None:
    assert cut.settings == {
        "preprocess": asdict(PreprocessSettings()),
        "partition": asdict(PartitionSettings(kind="metis-overlap", clients=4, overlap_copies=2, graphless_fraction=0.5)),
        "split": asdict(SplitSettings(scope="client")),
    }
    assert (cut.seed, cut.dataset, cut.fingerprint) == (7, "toy", fingerprint(graph))
    assert cut.versions["pymetis"][:4].isdecimal()


def test_same_cut_same_hash_other_seed_other_hash(graph: Data, tmp_path: Path) -> None:
    def digest(seed: int) -> str:
        made = make_cut(graph, "toy", PreprocessSettings(), PartitionSettings(clients=3), SplitSettings(), seed)
        return save_manifest(made, tmp_path / "cut.json")

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)


def test_the_hash_returned_is_the_one_in_the_file(cut: Cut, tmp_path: Path) -> None:
    digest = save_manifest(cut, tmp_path / "new" / "cut.json")
    content = json.loads((tmp_path / "new" / "cut.json").read_text())
    assert content["sha256"] == digest
    rehash(content)
    assert content["sha256"] == digest
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cut.json"]


def every_leaf(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [leaf for key, child in value.items() for leaf in every_leaf(child, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, child in enumerate(value) for leaf in every_leaf(child, (*path, index))]
    return [path]


def changed(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}1"


def test_a_change_of_any_value_is_caught(manifest: Path) -> None:
    original = json.loads(manifest.read_text())
    leaves = every_leaf(original)
    assert len(leaves) > 60
    for path in leaves:
        content = copy.deepcopy(original)
        target = content
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = changed(target[path[-1]])
        manifest.write_text(json.dumps(content))
        with pytest.raises(IntegrityError, match="does not hold what its sha256 promises"):
            load_manifest(manifest)


def test_a_removed_or_added_key_is_caught(manifest: Path) -> None:
    original = json.loads(manifest.read_text())
    for key in original:
        manifest.write_text(json.dumps({name: value for name, value in original.items() if name != key}))
        with pytest.raises(IntegrityError):
            load_manifest(manifest)
    manifest.write_text(json.dumps({**original, "note": "harmless"}))
    with pytest.raises(IntegrityError):
        load_manifest(manifest)


def test_truncation_is_caught_wherever_it_happens(manifest: Path) -> None:
    raw = manifest.read_bytes()
    for length in range(0, len(raw) - 1, max(1, len(raw) // 200)):
        manifest.write_bytes(raw[:length])
        with pytest.raises(IntegrityError, match="not valid JSON"):
            load_manifest(manifest)


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"a": 1}', "\x00\x01", "{'a': 1}"])
def test_other_files_are_not_taken_for_manifests(tmp_path: Path, text: str) -> None:
    (tmp_path / "cut.json").write_text(text)
    with pytest.raises(IntegrityError):
        load_manifest(tmp_path / "cut.json")


def set_first_client(key: str, value: object) -> Callable[[dict[str, list[Content]]], None]:
    def edit(content: dict[str, list[Content]]) -> None:
        content["clients"][0][key] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update(format="suture-cut/9"),
        lambda content: content.update(nodes=59),
        lambda content: content.update(roles="9" + content["roles"][1:]),
        lambda content: content.update(roles="é" * 30),
        lambda content: content.update(seed="7"),
        lambda content: content.update(seed=True),
        lambda content: content.update(clients=[]),
        lambda content: content.update(clients=[1]),
        lambda content: content.update(settings=[]),
        lambda content: content.update(versions={"numpy": 2}),
        lambda content: content["clients"].append(content["clients"][0]),
        lambda content: content["clients"][0].pop("nodes"),
        lambda content: content["clients"][0]["nodes"].append(60),
        lambda content: content["clients"][0]["nodes"].reverse(),
        set_first_client("nodes", []),
        set_first_client("nodes", "abc"),
        set_first_client("nodes", [0.5]),
        set_first_client("nodes", [True]),
        set_first_client("nodes", [10**30]),
        set_first_client("nodes", [-1]),
        set_first_client("roles", ""),
        set_first_client("id", 3),
        set_first_client("graphless", 1),
    ],
)
def test_content_that_makes_no_sense_is_refused_even_with_a_true_hash(
    manifest: Path, edit: Callable[[Content], None]
) -> None:
    content = json.loads(manifest.read_text())
    edit(content)
    rehash(content)
    manifest.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match=r"inconsistent|has format"):
        load_manifest(manifest)


def test_another_graph_is_refused(manifest: Path, graph: Data) -> None:
    other = graph.clone()
    other.y = (other.y + 1) % 3
    with pytest.raises(IntegrityError, match="made for another graph"):
        load_manifest(manifest, other)


def test_a_missing_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        load_manifest(tmp_path / "nowhere.json")
    with pytest.raises(StorageError, match="cannot read"):
        load_manifest(tmp_path)


def test_a_failed_write_leaves_the_old_manifest(
    cut: Cut, manifest: Path, graph: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = manifest.read_bytes()
    other = make_cut(graph, "toy", PreprocessSettings(), PartitionSettings(clients=2), SplitSettings(), 1)
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(StorageError, match="full"):
        save_manifest(other, manifest)
    assert manifest.read_bytes() == before
    assert list(manifest.parent.iterdir()) == [manifest]


def test_every_failure_is_one_line(manifest: Path) -> None:
    manifest.write_text("{")
    with pytest.raises(SutureError) as caught:
        load_manifest(manifest)
    assert "\n" not in str(caught.value)
