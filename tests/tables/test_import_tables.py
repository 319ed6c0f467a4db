"""From files to a graph folder, against counts and matrices worked out by hand."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch_geometric.data import Data

from suture.errors import DataError, IntegrityError
from suture.tables import GraphFolder, Tables, Wishes, apply_schema, check_schema, import_tables, make_schema, read_schema
from suture.tables.preparing import find_owners
from suture.tables.schema import Column, Roles, Schema

NODES = """id,age,colour,member,since,note,label,bank
a,10,red,true,2000-01-02,,x,north
b,20,blue,false,2000-01-03,hello world again,y,north
c,,red,true,2000-01-04,hello there you,,south
d,40,,false,2000-01-05,hello,x,south
"""
EDGES = """from,to,weight
a,b,1
b,a,2
a,b,4
c,c,9
c,d,1
d,zz,3
zz,d,5
q,r,1
,a,1
"""
ROLES = Roles(id=("id",), label=("label",), owner="bank", source=("from",), target=("to",), weight="weight")
WISHES = Wishes(ROLES, min_count=1)


def written(folder: Path, nodes: str = NODES, edges: str | None = EDGES) -> Tables:
    (folder / "nodes.csv").write_text(nodes)
    if edges is not None:
        (folder / "edges.csv").write_text(edges)
    return Tables(folder / "nodes.csv", None if edges is None else folder / "edges.csv")


def imported(
    folder: Path, wishes: Wishes = WISHES, nodes: str = NODES, edges: str | None = EDGES
) -> tuple[Data, GraphFolder]:
    graph, _ = import_tables(folder / "out", [written(folder, nodes, edges)], wishes)
    return GraphFolder.read(folder / "out").to_data(), graph


def features(data: Data) -> dict[str, list[float]]:
    return dict(zip(data.feature_names, data.x.to_dense().T.tolist(), strict=True))


def weights(data: Data) -> dict[tuple[int, ...], float]:
    return {tuple(edge): weight for edge, weight in zip(data.edge_index.T.tolist(), data.edge_weight.tolist(), strict=True)}


class TestFeatures:
    def test_every_kind_of_column(self, tmp_path: Path) -> None:
        data, folder = imported(tmp_path, Wishes(ROLES, min_count=1, kinds={"note": "text:8"}))
        found = features(data)
        assert found["age"] == [10, 20, 0, 40] and found["age (missing)"] == [0, 0, 1, 0]
        assert found["colour=red"] == [1, 0, 1, 0] and found["colour=blue"] == [0, 1, 0, 0]
        assert found["colour (missing)"] == [0, 0, 0, 1] and found["colour (other)"] == [0, 0, 0, 0]
        assert found["member"] == [1, 0, 1, 0]
        assert found["since"] == [1, 2, 3, 4]
        words = np.array([found[f"note[{bucket}]"] for bucket in range(8)])
        assert words[:, 0].sum() == 0 and words[:, 1].sum() >= 1
        hello = np.flatnonzero(words[:, 3])
        assert hello.size == 1 and words[hello[0], 1] == words[hello[0], 2] == 1
        scaled = {name for name, wanted in zip(data.feature_names, data.standardise.tolist(), strict=True) if wanted}
        assert scaled == {"age", "since"}
        assert folder.schema.roles == ROLES

    def test_labels_owners_and_names(self, tmp_path: Path) -> None:
        data, _ = imported(tmp_path)
        assert data.y.tolist() == [0, 1, -1, 0] and data.class_names == ["x", "y"]
        assert data.client.tolist() == [0, 0, 1, 1] and data.owners == ["north", "south"]
        assert data.node_name == ["a", "b", "c", "d"] and data.task == "classification" and data.directed is False

    def test_tokens_are_columns_and_count_once(self, tmp_path: Path) -> None:
        (tmp_path / "tokens.json").write_text(json.dumps({"a": [3, 1, 3], "b": [], "d": [0], "nobody": [2]}))
        tables = written(tmp_path)
        tables = Tables(tables.nodes, tables.edges, tmp_path / "tokens.json")
        folder, summary = import_tables(tmp_path / "out", [tables], WISHES)
        found = features(folder.to_data())
        assert [found[f"tokens[{token}]"] for token in range(4)] == [[0, 0, 0, 1], [1, 0, 0, 0], [0] * 4, [1, 0, 0, 0]]
        account = next(one for one in summary.accounts if one.table == "features")
        assert (account.read, account.kept, account.dropped) == (4, 3, {"of ids that are not in the node table": 1})

    def test_a_split_column_becomes_masks(self, tmp_path: Path) -> None:
        nodes = "id,v,part\na,1.5,train\nb,2.5,valid\nc,3.5,TEST\nd,4.5,\n"
        data, _ = imported(tmp_path, Wishes(Roles(id=("id",), split="part")), nodes, None)
        masks = [data[name].tolist() for name in ("train_mask", "val_mask", "test_mask")]
        assert masks == [[True, False, False, False], [False, True, False, False], [False, False, True, False]]
        with pytest.raises(DataError, match="train, val, test or empty"):
            import_tables(tmp_path / "two", [written(tmp_path, nodes.replace("TEST", "maybe"), None)],
                          Wishes(Roles(id=("id",), split="part")))  # fmt: skip

    @pytest.mark.parametrize(("label", "y"), [(["1.5", "", "2"], [1.5, None, 2.0])])
    def test_regression(self, tmp_path: Path, label: list[str], y: list[float | None]) -> None:
        rows = "".join(f"{name},{number},{value}\n" for number, (name, value) in enumerate(zip("abc", label, strict=True)))
        data, _ = imported(tmp_path, Wishes(Roles(id=("id",), label=("y",)), task="regression"), "id,v,y\n" + rows, None)
        assert data.y.dtype == torch.float32
        assert [None if value != value else value for value in data.y.tolist()] == y

    def test_multi_label_from_columns_and_from_one(self, tmp_path: Path) -> None:
        wishes = Wishes(Roles(id=("id",), label=("p", "q")), task="multi-label")
        data, _ = imported(tmp_path, wishes, "id,v,p,q\na,1.5,1,0\nb,2.5,1,1\nc,3.5,,1\n", None)
        assert data.y[:2].tolist() == [[1, 0], [1, 1]] and bool(data.y[2].isnan().all())
        (tmp_path / "next").mkdir()
        wishes = Wishes(Roles(id=("id",), label=("l",)), task="multi-label")
        again, _ = imported(tmp_path / "next", wishes, "id,v,l\na,1.5,p\nb,2.5,p|q\nc,3.5,\n", None)
        assert again.class_names == ["p", "q"] and torch.equal(again.y.nan_to_num(7), data.y.nan_to_num(7))


class TestEdges:
    def test_every_row_is_somewhere(self, tmp_path: Path) -> None:
        """a-b is given three times (1, 4 and back 2), c-d once; d has a foreign neighbour twice; three rows lead nowhere."""
        data, folder = imported(tmp_path)
        assert weights(data) == {(0, 1): 7, (1, 0): 7, (2, 3): 1, (3, 2): 1}
        assert (data.boundary_node.tolist(), data.boundary_foreign, data.boundary_weight.tolist()) == ([3], ["zz"], [8])
        account = next(one for one in folder.summary().accounts if one.table == "edges")
        assert account.read == 9 and account.kept == 3
        assert account.dropped == {
            "without an id at one end": 1,
            "with neither end in the node table": 1,
            "self loops": 1,
            "repeated, their weights added": 2,
            "given in both directions, their weights added": 1,
        }

    def test_direction_is_kept(self, tmp_path: Path) -> None:
        data, _ = imported(tmp_path, Wishes(ROLES, directed=True, min_count=1))
        assert weights(data) == {(0, 1): 5, (1, 0): 2, (2, 3): 1} and data.directed is True
        assert data.boundary_outgoing.tolist() == [False, True] and data.boundary_weight.tolist() == [5, 3]

    def test_a_symmetric_table_does_not_double_weights(self, tmp_path: Path) -> None:
        data, _ = imported(tmp_path, edges="from,to,weight\na,b,3\nb,a,3\n")
        assert data.edge_weight.tolist() == [3, 3]

    def test_compound_ids(self, tmp_path: Path) -> None:
        """The same account number at two banks is two nodes; a slash in a name cannot make two ids one."""
        nodes = "bank,account,v\nN,1,1.5\nS,1,2.5\nN/1,1,3.5\nN,1/1,4.5\n"
        edges = "b1,a1,b2,a2\nN,1,S,1\nN/1,1,N,1/1\n"
        roles = Roles(id=("bank", "account"), source=("b1", "a1"), target=("b2", "a2"))
        data, _ = imported(tmp_path, Wishes(roles), nodes, edges)
        assert data.edge_index.T.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
        assert data.node_name == ["N/1", "S/1", "N%2F1/1", "N/1%2F1"]

    def test_whole_numbers_that_became_floats(self, tmp_path: Path) -> None:
        pl.DataFrame({"id": [1.0, 2.0, 3.0], "v": [1.5, 2.5, 3.5]}).write_parquet(tmp_path / "n.parquet")
        pl.DataFrame({"source": [1, 2], "target": [2, 3]}).write_parquet(tmp_path / "e.parquet")
        folder, _ = import_tables(
            tmp_path / "out", [Tables(tmp_path / "n.parquet", tmp_path / "e.parquet")], Wishes(Roles(id=("id",)))
        )
        assert folder.about["edges"] == 4 and folder.to_data().node_name == ["1", "2", "3"]

    @pytest.mark.parametrize("weight", ["", "x", "inf"])
    def test_a_weight_that_is_none_is_refused(self, tmp_path: Path, weight: str) -> None:
        with pytest.raises(DataError, match="weight"):
            imported(tmp_path, edges=f"from,to,weight\na,b,1\nb,c,{weight}\n")
        assert not (tmp_path / "out").exists()


class TestColumnsThatShouldNotBeFeatures:
    def rows(self, number: int = 200) -> str:
        rng = np.random.default_rng(0)
        lines = ["id,email,customer_no,code,leak,score,amount,label"]
        for row in range(number):
            label = int(rng.integers(0, 2))
            amount = int(rng.integers(0, 10**9))
            leak = "hot" if label else "cold"
            lines.append(f"{row},u{row % 7}@x.org,{5000 + row},K{row}Q,{leak},{label + 0.1:.2f},{amount},{label}")
        return "\n".join(lines) + "\n"

    def test_they_are_left_out_and_said(self, tmp_path: Path) -> None:
        wishes = Wishes(Roles(id=("id",), label=("label",)))
        data, folder = imported(tmp_path, wishes, self.rows(), None)
        assert data.feature_names == ["amount"]
        said = {line.subject: line.done for line in folder.summary().lines}
        for name in ("email", "customer_no", "code", "leak", "score"):
            assert said[f"column '{name}'"].startswith("dropped")

    def test_the_user_may_keep_them(self, tmp_path: Path) -> None:
        wishes = Wishes(Roles(id=("id",), label=("label",)), keep=frozenset({"leak", "score"}))
        data, _ = imported(tmp_path, wishes, self.rows(), None)
        assert data.feature_names == ["leak=cold", "leak=hot", "leak (other)", "score", "amount"]

    def test_rare_categories_are_not_written_down(self, tmp_path: Path) -> None:
        towns = ["Bigtown"] * 30 + ["Smallville"] * 3 + ["Midway"] * 7
        lines = ["id,town", *(f"{row},{town}" for row, town in enumerate(towns))]
        schema, _ = make_schema([written(tmp_path, "\n".join(lines) + "\n", None)], Wishes(Roles(id=("id",))))
        assert "Smallville" not in json.dumps(schema.to_json())
        assert schema.feature_names == ("town=Bigtown", "town=Midway", "town (other)")


class TestSchema:
    def test_two_owners_get_the_same_columns(self, tmp_path: Path) -> None:
        schema, _ = make_schema([written(tmp_path)], Wishes(ROLES, min_count=1))
        schema.write(tmp_path / "schema.json")
        assert read_schema(tmp_path / "schema.json") == schema
        other = tmp_path / "other"
        other.mkdir()
        nodes = "id,age,colour,member,since,note,label\nk,7,green,true,2001-01-01,,x\nl,8,red,false,2001-01-01,,w\n"
        tables = written(other, nodes, None)
        tables = Tables(tables.nodes, owner="east")
        folder, summary = import_tables(other / "out", [tables], Wishes(), schema)
        data = folder.to_data()
        assert data.feature_names == list(schema.feature_names)
        found = features(data)
        assert found["colour (other)"] == [1, 0] and found["colour=red"] == [0, 1]
        assert data.y.tolist() == [0, -1] and data.graphless == ["east"]
        assert any("classes that the schema does not know: 'w'" in line.found for line in summary.lines)

    def test_new_nodes_by_the_schema(self, tmp_path: Path) -> None:
        data, folder = imported(tmp_path)
        new = pl.DataFrame(
            {"id": ["z"], "age": ["99"], "colour": ["mauve"], "member": ["true"], "since": ["2000-01-01"], "note": [None]}
        )
        fresh = apply_schema(Tables(new), folder.schema)
        assert fresh.x.shape == (1, data.x.shape[1]) and features(fresh)["colour (other)"] == [1]
        assert fresh.y.tolist() == [-1]

    def test_unseen_categories_can_be_refused(self, tmp_path: Path) -> None:
        schema = Schema((Column("c", "categorical", categories=("u",), unseen="error"),), Roles(id=("id",)))
        with pytest.raises(DataError, match="does not know"):
            check_schema([written(tmp_path, "id,c\na,u\nb,w\n", None)], Wishes(), schema)

    def test_missing_values_where_none_are_allowed(self, tmp_path: Path) -> None:
        schema = Schema((Column("v", "numeric"),), Roles(id=("id",)))
        with pytest.raises(DataError, match="missing"):
            check_schema([written(tmp_path, "id,v\na,1\nb,\n", None)], Wishes(), schema)

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{}",
            "[]",
            "\xff",
            '{"columns": [], "roles": {}, "extra": 1}',
            '{"columns": [{"name": "a", "kind": "magic"}], "roles": {}}',
            '{"columns": [{"name": "a", "kind": "text", "width": 1e12}], "roles": {}}',
        ],
    )
    def test_a_file_that_is_no_schema(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "s.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(DataError, match="is not a schema"):
            read_schema(tmp_path / "s.json")


class TestFolder:
    def test_owners_pieces_and_joined_again(self, tmp_path: Path) -> None:
        """a-c crosses the owners: inside the whole it is an edge, in each piece a boundary edge with the other's id."""
        whole, folder = imported(tmp_path, edges=EDGES + "a,c,6\n")
        paths = folder.per_owner(tmp_path / "pieces")
        north, south = (GraphFolder.read(paths[name]).to_data() for name in ("north", "south"))
        assert north.edge_index.shape[1] == south.edge_index.shape[1] == 2
        assert (north.boundary_node.tolist(), north.boundary_foreign) == ([0], ["c"])
        assert sorted(zip(south.boundary_node.tolist(), south.boundary_foreign, strict=True)) == [(0, "a"), (1, "zz")]
        assert torch.equal(torch.cat([north.x.to_dense(), south.x.to_dense()]), whole.x.to_dense())

    def test_owners_one_after_the_other_are_as_all_at_once(self, tmp_path: Path) -> None:
        for owner, first in (("DE", 0), ("FR", 100)):
            (tmp_path / owner).mkdir()
            rows = "".join(f"{number},{first + number}.5,{'xy'[number % 2]}\n" for number in range(4))
            (tmp_path / owner / "n.csv").write_text("id,v,label\n" + rows)
            (tmp_path / owner / "e.csv").write_text("source,target\n0,1\n2,3\n")
        wishes = Wishes(Roles(id=("id",), label=("label",)))
        pattern = str(tmp_path / "{owner}" / "{}.csv")
        together = find_owners(pattern.replace("{}", "n"), pattern.replace("{}", "e"), None)
        assert [one.owner for one in together] == ["DE", "FR"]
        import_tables(tmp_path / "all", together, wishes)
        import_tables(tmp_path / "step", together[:1], wishes)
        import_tables(tmp_path / "step", together[1:], Wishes(), add=True)
        one, two = (GraphFolder.read(tmp_path / name).to_data() for name in ("all", "step"))
        assert torch.equal(one.x, two.x) and torch.equal(one.edge_index, two.edge_index) and torch.equal(one.y, two.y)
        assert one.edge_index.shape[1] == 8 and int(one.edge_index.max()) == 7 and one.client.tolist() == [0] * 4 + [1] * 4
        with pytest.raises(DataError, match="already"):
            import_tables(tmp_path / "step", together[1:], Wishes(), add=True)
        assert torch.equal(GraphFolder.read(tmp_path / "step").to_data().x, two.x)

    def test_a_changed_file_is_noticed(self, tmp_path: Path) -> None:
        _, folder = imported(tmp_path)
        path = folder.path / "edges.npy"
        path.write_bytes(path.read_bytes()[:-1] + b"\7")
        with pytest.raises(IntegrityError, match=r"edges\.npy"):
            GraphFolder.read(folder.path)

    def test_an_existing_folder_is_not_overwritten(self, tmp_path: Path) -> None:
        imported(tmp_path)
        before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir())
        with pytest.raises(DataError, match="already"):
            imported(tmp_path)
        assert before == sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir())

    def test_using_the_graph_does_not_change_the_folder(self, tmp_path: Path) -> None:
        data, folder = imported(tmp_path)
        data.edge_index.zero_()
        GraphFolder.read(folder.path)

    @pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "x" * 80, "a\nb", "ü"])
    def test_owners_that_could_not_be_folders(self, tmp_path: Path, name: str) -> None:
        with (tmp_path / "n.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "v", "bank"], ["a", "1.5", name], ["b", "2.5", "good"]])
        with pytest.raises(DataError, match="owner"):
            import_tables(tmp_path / "out", [Tables(tmp_path / "n.csv")], Wishes(Roles(id=("id",), owner="bank")))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["n.csv"]


class TestKindsOfFiles:
    def test_all_kinds_give_one_graph(self, tmp_path: Path) -> None:
        plain = pl.read_csv(NODES.encode(), infer_schema=False)
        records = [{name: value for name, value in row.items() if value is not None} for row in plain.to_dicts()]
        (tmp_path / "n.csv").write_text(NODES)
        (tmp_path / "n.csv.gz").write_bytes(gzip.compress(NODES.encode()))
        (tmp_path / "n.tsv").write_text(NODES.replace(",", "\t"))
        (tmp_path / "semicolon.csv").write_text(NODES.replace(",", ";"))
        (tmp_path / "n.json").write_text(json.dumps(records))
        (tmp_path / "n.jsonl").write_text("\n".join(json.dumps(record) for record in records))
        plain.write_parquet(tmp_path / "n.parquet")
        (tmp_path / "utf16.csv").write_text(NODES, encoding="utf-16")
        (tmp_path / "bom.csv").write_text(NODES, encoding="utf-8-sig")
        (tmp_path / "crlf.csv").write_bytes(NODES.replace("\n", "\r\n").encode())
        files = sorted(path for path in tmp_path.iterdir())
        graphs = {}
        for number, path in enumerate(files):
            graphs[path.name] = import_tables(tmp_path / f"out{number}", [Tables(path)], WISHES)[0].to_data()
        assert len(graphs) == 10
        for name, data in graphs.items():
            assert torch.equal(data.x, graphs["n.csv"].x), name
            assert data.y.tolist() == [0, 1, -1, 0] and data.node_name == ["a", "b", "c", "d"], name

    def test_latin_1_must_be_said(self, tmp_path: Path) -> None:
        (tmp_path / "n.csv").write_bytes("id,town\nä,Köln\nb,Bonn\n".encode("latin-1"))
        roles = Roles(id=("id",))
        with pytest.raises(DataError, match="--encoding"):
            import_tables(tmp_path / "out", [Tables(tmp_path / "n.csv")], Wishes(roles))
        folder, _ = import_tables(
            tmp_path / "out", [Tables(tmp_path / "n.csv")], Wishes(roles, encoding="latin-1", min_count=1)
        )
        assert folder.to_data().node_name == ["ä", "b"] and folder.schema.columns[0].categories == ("Bonn", "Köln")
