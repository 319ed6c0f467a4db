from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import networkx as nx
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import is_undirected, to_networkx

from suture.errors import DataError
from suture.graph.checks import validate
from suture.graph.data import (
    csr_from_parts,
    fingerprint,
    largest_component,
    num_classes,
    row_normalise,
    select_nodes,
    select_rows,
)

# FED-PUB, Table 4, "Ori": nodes and edges (both directions) of what the paper cuts.
FEDPUB_SIZES = {"cora": (2485, 10138), "citeseer": (2120, 7358), "pubmed": (19717, 88648), "computers": (13381, 491556)}


def small(**changes: object) -> Data:
    """A path 0-1-2 and an isolated node 3, given with one direction, a repeated edge and a self-loop."""
    fields: dict[str, object] = {
        "x": torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0], [5.0, 6.0]]),
        "edge_index": torch.tensor([[0, 1, 1, 2], [1, 2, 2, 2]]),
        "y": torch.tensor([0, 1, 2, 1]),
    }
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


def sparse_rows(rows: int, columns: int) -> Tensor:
    """One non-zero entry per row."""
    return csr_from_parts(torch.arange(rows + 1), torch.arange(rows) % columns, torch.arange(1.0, rows + 1), (rows, columns))


class TestValidate:
    def test_edges_become_undirected_distinct_and_loop_free(self) -> None:
        given = small()
        checked = validate(given)
        assert checked.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert is_undirected(checked.edge_index)
        assert given.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 2, 2]], "the graph that came in must not change"

    def test_types(self) -> None:
        checked = validate(small(x=small().x.double(), y=small().y.int().unsqueeze(1)))
        assert checked.x.dtype == torch.float32
        assert checked.y.dtype == torch.int64
        assert checked.y.shape == (4,)

    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    @pytest.mark.parametrize(("nonzero", "layout"), [(39, torch.sparse_csr), (40, torch.strided)])
    def test_layout_follows_density_whatever_came_in(self, nonzero: int, layout: torch.layout) -> None:
        x = torch.zeros(100)
        x[torch.randperm(100, generator=torch.Generator().manual_seed(0))[:nonzero]] = 2.0
        x = x.reshape(10, 10)
        graph = {"edge_index": torch.tensor([[0], [9]]), "y": torch.zeros(10, dtype=torch.long)}
        for given in (x, x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
            checked = validate(Data(x=given, **graph))
            assert checked.x.layout == layout
            assert torch.equal(checked.x.to_dense(), x)

    def test_stored_zeros_do_not_count(self) -> None:
        stored = csr_from_parts(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), torch.tensor([1.0, 0, 0, 0]), (2, 4))
        checked = validate(Data(x=stored, edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1])))
        assert checked.x.layout == torch.sparse_csr  # one of eight is below 40 %, four of eight would not be
        assert checked.x.values().tolist() == [1.0]

    def test_masks_and_node_numbers_are_kept_other_things_left(self) -> None:
        mask = torch.tensor([True, False, False, True])
        checked = validate(small(train_mask=mask, client=torch.arange(4), edge_weight=torch.ones(4), name="bank"))
        assert sorted(checked.keys()) == ["client", "edge_index", "train_mask", "x", "y"]
        assert torch.equal(checked.train_mask, mask)

    def test_graph_without_edges_is_a_graph(self) -> None:
        assert validate(small(edge_index=torch.empty(2, 0, dtype=torch.long))).edge_index.shape == (2, 0)

    def test_checking_twice_changes_nothing(self, cora: Data) -> None:
        again = validate(cora)
        assert fingerprint(again) == fingerprint(cora)
        assert torch.equal(again.edge_index, cora.edge_index)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"x": None}, "no node features"),
            ({"x": torch.ones(4)}, r"got shape \[4\]"),
            ({"x": torch.ones(0, 2), "y": torch.ones(0).long()}, r"at least one of each, got shape \[0, 2\]"),
            ({"x": torch.tensor([[1.0], [float("nan")], [2.0], [float("inf")]])}, "2 of 4 nodes, the first is node 1"),
            (
                {"x": torch.tensor([[1.0], [1e300], [2.0], [2.0]], dtype=torch.float64)},
                r"features go up to 1e\+300",
            ),
            ({"edge_index": None}, "got none"),
            ({"edge_index": torch.tensor([0, 1])}, r"got \[2\]"),
            ({"edge_index": torch.tensor([[0.0], [1.0]])}, "float32; convert"),
            ({"edge_index": torch.tensor([[0, 4], [1, 0]])}, r"1 edges .* edge 1 \(4 to 0\).*0 to 3"),
            ({"edge_index": torch.tensor([[0], [-1]])}, r"edge 0 \(0 to -1\)"),
            ({"y": None}, "no labels"),
            ({"y": torch.tensor([0, 1, 2])}, r"\[4\] like the features, got shape \[3\]"),
            ({"y": torch.ones(4, 3).long()}, r"got shape \[4, 3\]"),
            ({"y": torch.tensor([0.0, 1.0, 2.0, 1.0])}, "float32; convert"),
            ({"y": torch.tensor([0, -2, 2, -2])}, "2 labels are negative, the first is -2 at node 1"),
            ({"y": torch.tensor([0, 2**40, 2, 1])}, "would mean 1,099,511,627,777 classes"),
            ({"train_mask": torch.tensor([0, 1, 0, 1])}, "train_mask must be torch.bool"),
            ({"val_mask": torch.ones(5, 10).bool()}, r"val_mask .* or \[4, splits\], got torch.bool \[5, 10\]"),
        ],
    )
    def test_says_what_is_wrong(self, changes: dict[str, object], says: str) -> None:
        with pytest.raises(DataError, match=says):
            validate(small(**changes))

    def test_finds_the_row_of_a_sparse_nan(self) -> None:
        x = sparse_rows(6, 30)
        x.values()[4] = float("nan")
        with pytest.raises(DataError, match="1 of 6 nodes, the first is node 4"):
            validate(Data(x=x, edge_index=torch.tensor([[0], [1]]), y=torch.zeros(6).long()))


class TestLargestComponent:
    def test_keeps_order_and_original_indices(self) -> None:
        data = validate(small(edge_index=torch.tensor([[3, 3], [1, 2]]), test_mask=torch.tensor([True, False, True, True])))
        kept = largest_component(data)
        assert kept.node_id.tolist() == [1, 2, 3]
        assert kept.edge_index.tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
        assert kept.y.tolist() == [1, 2, 1]
        assert kept.test_mask.tolist() == [False, True, True]
        assert kept.x.tolist() == data.x[1:].tolist()

    def test_original_indices_survive_a_second_selection(self) -> None:
        first = largest_component(validate(small(edge_index=torch.tensor([[3, 3], [1, 2]]))))
        assert select_nodes(first, torch.tensor([2, 0])).node_id.tolist() == [3, 1]

    @pytest.mark.parametrize("name", FEDPUB_SIZES)
    def test_sizes_of_the_paper(self, dataset: Callable[[str], Data], name: str) -> None:
        kept = largest_component(dataset(name))
        assert (kept.num_nodes, kept.edge_index.shape[1]) == FEDPUB_SIZES[name]

    def test_same_nodes_as_networkx(self, dataset: Callable[[str], Data]) -> None:
        data = dataset("citeseer")
        expected = max(nx.connected_components(to_networkx(data, to_undirected=True)), key=len)
        kept = largest_component(data)
        assert kept.node_id.tolist() == sorted(expected)
        assert torch.equal(kept.x.to_dense(), data.x.to_dense()[kept.node_id])


class TestSelectNodes:
    def test_induced_subgraph_in_the_asked_order(self) -> None:
        chosen = select_nodes(validate(small()), torch.tensor([2, 3, 1]))
        assert chosen.edge_index.tolist() == [[0, 2], [2, 0]]
        assert chosen.y.tolist() == [2, 1, 1]

    def test_sparse_rows_equal_dense_rows(self) -> None:
        x, index = sparse_rows(8, 5), torch.tensor([7, 0, 3])
        assert torch.equal(select_rows(x, index).to_dense(), x.to_dense()[index])
        assert select_rows(x, index).layout == torch.sparse_csr


class TestRowNormalise:
    def test_by_hand(self) -> None:
        data = Data(x=torch.tensor([[1.0, 3.0], [0.0, 0.0]]), y=torch.tensor([0, 1]))
        assert row_normalise(data).x.tolist() == [[0.25, 0.75], [0.0, 0.0]]
        assert data.x.tolist() == [[1.0, 3.0], [0.0, 0.0]]

    def test_rows_with_negative_values_stay_as_they_are(self) -> None:
        x = torch.tensor([[1.0, 3.0], [-1.0, 3.0], [0.0, -2.0], [0.0, 4.0]])
        for given in (x, x.to_sparse_csr()):
            made = row_normalise(Data(x=given, y=torch.zeros(4, dtype=torch.long))).x
            assert made.to_dense().tolist() == [[0.25, 0.75], [-1.0, 3.0], [0.0, -2.0], [0.0, 1.0]]

    def test_as_pyg_does_it(self, cora: Data) -> None:
        normalised = row_normalise(cora)
        assert normalised.x.layout == torch.sparse_csr
        expected = NormalizeFeatures()(Data(x=cora.x.to_dense())).x
        torch.testing.assert_close(normalised.x.to_dense(), expected)

    def test_empty_sparse_rows_stay_empty(self, dataset: Callable[[str], Data]) -> None:
        data = dataset("citeseer")
        sums = row_normalise(data).x.to_dense().sum(dim=1)
        empty = data.x.crow_indices().diff() == 0
        assert int(empty.sum()) == 15  # CiteSeer's papers without words or citations
        assert sums[empty].tolist() == [0.0] * 15
        torch.testing.assert_close(sums[~empty], torch.ones_like(sums[~empty]))


class TestFingerprint:
    def test_written_out(self) -> None:
        """x = [[0, 2], [3, 0]], the edge 0-1, labels 1 and 0, hashed part by part."""

        def part(form: str, *numbers: float) -> bytes:
            return hashlib.sha256(struct.pack(form, *numbers)).digest()

        lengths, columns, values = part("<2q", 1, 1), part("<2q", 1, 0), part("<2f", 2, 3)
        edges, labels = part("<2q", 0 * 2 + 1, 1 * 2 + 0), part("<2q", 1, 0)
        parts = [b"suture graph 1: 2 nodes, 2 features", lengths, columns, values, edges, labels]
        data = Data(
            x=torch.tensor([[0.0, 2.0], [3.0, 0.0]]), edge_index=torch.tensor([[1, 0], [0, 1]]), y=torch.tensor([1, 0])
        )
        assert fingerprint(data) == hashlib.sha256(b"\n".join(parts)).hexdigest()

    def test_same_for_dense_and_sparse_and_any_edge_order(self, cora: Data) -> None:
        other = Data(x=cora.x.to_dense(), edge_index=cora.edge_index.flip(1), y=cora.y)
        assert fingerprint(other) == fingerprint(cora)

    def test_every_part_counts(self) -> None:
        data = validate(small())
        seen = {fingerprint(data)}
        for name, row, value in (("x", 2, 9.0), ("y", 3, 0)):
            changed = data.clone()
            changed[name][row] = value
            seen.add(fingerprint(changed))
        seen.add(fingerprint(select_nodes(data, torch.tensor([0, 1, 2]))))
        seen.add(fingerprint(Data(x=data.x, edge_index=data.edge_index[:, :2], y=data.y)))
        seen.add(fingerprint(Data(x=torch.cat([data.x, torch.zeros(4, 1)], dim=1), edge_index=data.edge_index, y=data.y)))
        assert len(seen) == 6


def test_num_classes_counts_up_to_the_largest_label() -> None:
    assert num_classes(Data(y=torch.tensor([0, 4, 2]))) == 5
