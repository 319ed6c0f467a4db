"""What papers print is kept to the letter, and every cell of it has a run that stands for it, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_papers import small_papers

from suture.bench.published import FIGURES, FOLDER, Cell, Filter, chosen, read_figures, read_tables
from suture.errors import ConfigError

SOURCE = Path(__file__).resolve().parents[3] / "shared" / "papers" / "paper_results.csv"
TABLES = read_tables()


def cell(table: str, method: str, variant: str = "", dataset: str = "cora", clients: int | None = None) -> Cell:
    found = [
        one
        for one in TABLES[table].cells
        if (one.row, one.printed.variant, one.printed.dataset) == (method, variant, dataset)
        and clients in (None, one.printed.clients)
    ]
    assert found
    return found[0]


def key(one: Cell) -> str:
    assert one.recipe is not None
    return one.recipe.key


@pytest.mark.skipif(not SOURCE.exists(), reason="the file that figures were taken from is not here")
def test_figures_are_those_they_were_taken_from_row_by_row() -> None:
    ours = (FOLDER / FIGURES).read_text().splitlines()
    assert ours == SOURCE.read_text().splitlines()


def test_some_figures_as_the_papers_print_them() -> None:
    assert len(read_figures()) == 990
    fedpub = cell("fedpub-table-2", "fedpub", clients=10).printed
    assert (fedpub.mean, fedpub.std) == (0.8154, 0.0012)
    plus = cell("fedsage-table-2", "fedsage_plus", clients=10).printed
    assert plus.mean == 0.8632
    assert cell("fedggr-table-3", "fedggr", "local_epochs=3", "computers").printed.mean == 0.898
    # A misprint stays as it was printed, with a word on it.
    odd = cell("fedsage-appendix-table-2", "fedsage", "neighgen=none", "citeseer").printed
    assert odd.mean == 0.7393
    assert odd.note.startswith("ODD")


def test_every_table_of_the_five_papers_is_there() -> None:
    wanted = {
        "fedsage": ["table-2", *(f"appendix-table-{n}" for n in (1, 2, 3, 4)), "figure-3", "figure-4", "figure-5"],
        "fedpub": [*(f"table-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)), "figure-7", "figure-10", "figure-12"],
        "fedggr": ["table-2", "table-3", "figure-3", "figure-4", "figure-5"],
        "fedgls": ["table-1", "table-2", "table-3", "figure-3"],
        "feddep": ["table-2", "table-3", "figure-4", "figure-5", "figure-6"],
    }
    assert set(TABLES) == {f"{paper}-{name}" for paper, names in wanted.items() for name in names}
    assert sum(one.printed.mean is not None for table in TABLES.values() for one in table.cells) == len(read_figures())


def test_every_cell_resolves_or_says_why_not() -> None:
    for table in TABLES.values():
        assert table.cells or table.described.nothing, table.name
        for one in table.cells:
            if one.recipe is None:
                assert one.why_not, one
            else:
                made = one.recipe.plan()
                assert made.names == (one.recipe.method,)
                assert made.protocol.seeds[: len(table.seeds)] == table.seeds, table.name


def test_variants_set_what_they_say() -> None:
    def value(one: Cell, section: str, name: str) -> object:
        assert one.recipe is not None
        return one.recipe.values[section][name]

    assert value(cell("feddep-table-3", "feddep", "C=15"), "method", "clusters") == 15
    assert value(cell("feddep-table-2", "feddep"), "method", "as_published") is True
    assert value(cell("feddep-figure-5", "fedgnn", "sigma=4.2", "cs"), "method", "sigma") == 4.2
    assert (
        value(cell("fedgls-table-3", "fedgls", "graphless_ratio=4:12", "pubmed"), "partition", "graphless_fraction") == 0.75
    )
    assert value(cell("fedgls-table-1", "fedproto"), "method", "told") == "counts"
    batches = cell("fedsage-appendix-table-3", "fedsage_plus", "batch_size=1;local_epochs=1", "pubmed")
    assert value(batches, "method", "batch_size") == 1
    assert value(batches, "method", "answers") == "exact"
    # Table 3 repeats a row of Table 5, whose lambda2 is another one.
    assert key(cell("fedpub-table-3", "fedpub", "lambda1=7e-1")) == key(
        cell("fedpub-table-5", "fedpub", "lambda1=7e-1;lambda2=1e-1;local_epochs=2")
    )
    assert value(cell("fedggr-table-2", "fedavg_gat"), "model", "kind") == "gat"
    assert value(cell("fedggr-table-2", "fedggr"), "method", "codes") == "nodes"
    reading = cell("fedpub-table-10", "fedpub", "similarity=label;round=40")
    assert (reading.round, value(reading, "method", "similarity")) == (40, "labels")


def test_the_same_run_stands_for_the_same_cell_in_every_table() -> None:
    assert key(cell("fedpub-table-12", "local", clients=5)) == key(cell("fedpub-table-2", "local", clients=5))
    assert key(cell("feddep-table-3", "feddep", "C=10", clients=5)) == key(cell("feddep-table-2", "feddep", clients=5))
    assert key(cell("fedggr-table-3", "fedggr", "local_epochs=1")) == key(cell("fedggr-table-2", "fedggr", clients=3))
    assert key(cell("fedpub-table-2", "local", clients=5)) != key(cell("fedpub-table-2", "local", clients=10))


def test_names_and_filters_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedpub-table-2'"):
        chosen(TABLES, ["fedpub-tabel-2"])
    assert {table.paper for table in chosen(TABLES, ["fedgls"])} == {"fedgls"}
    assert len(chosen(TABLES, ["all"])) == len(TABLES)
    table = chosen(TABLES, ["fedpub-table-2"])
    with pytest.raises(ConfigError, match="did you mean 'cora'"):
        Filter(datasets=("coraa",)).of(table)
    with pytest.raises(ConfigError, match="unknown number of clients '7'"):
        Filter(clients=(7,)).of(table)
    (some,) = Filter(("cora",), (5, 10), ("fedpub", "local")).of(table)
    assert {(one.row, one.printed.clients) for one in some.cells} == {
        ("fedpub", 5),
        ("fedpub", 10),
        ("local", 5),
        ("local", 10),
    }


def test_a_description_that_is_wrong_is_refused_in_a_sentence(tmp_path: Path) -> None:
    papers = small_papers(tmp_path / "papers")
    about = (papers / "tiny.toml").read_text()
    (papers / "tiny.toml").write_text(about.replace("repetitions = 2", 'repetitions = "many"'))
    with pytest.raises(ConfigError, match=r"tiny\.toml: repetitions"):
        read_tables(papers)
    (papers / "tiny.toml").write_text(about.replace("repetitions = 2", "repetitions = 2\nrepetitons = 3"))
    with pytest.raises(ConfigError, match=r"tiny\.toml: repetitons"):
        read_tables(papers)
    (papers / "tiny.toml").write_text(about.replace('printed = "Table 2"', 'printed = "Table 3"'))
    with pytest.raises(ConfigError, match="does not describe it"):
        read_tables(papers)
