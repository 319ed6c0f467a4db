"""Makes the tables of docs/reproducibility.md from docs/data/reproduced, where `suture reproduce` keeps our results.

    suture reproduce fedpub-table-2 --store docs/data/reproduced
    python benchmarks/reproducibility.py

What stands between `<!-- reproduced: NAME -->` and `<!-- end -->` is made anew: `summary`, `misprints`, or a table.
"""

from __future__ import annotations

import re
from pathlib import Path

from suture.bench.published import Table, read_figures, read_tables
from suture.bench.reproduced import Store
from suture.core.storage import write_atomically
from suture.report.beside import docs, misprints, said, summary
from suture.report.reproduced import Judged, judge

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "reproducibility.md", ROOT / "docs" / "data" / "reproduced"
GRAPHS = ("cora", "citeseer", "pubmed", "computers", "cs")
"""Those that are run; photo, arxiv and flickr have to be downloaded."""
HEADLINE = (
    ("fedsage", "fedsage-table-2"),
    ("fedsage_plus", "fedsage-table-2"),
    ("fedpub", "fedpub-table-1"),
    ("fedpub", "fedpub-table-2"),
    ("fedggr", "fedggr-table-2"),
    ("fedgls", "fedgls-table-1"),
    ("feddep", "feddep-table-2"),
)
PART = re.compile(r"(<!-- reproduced: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def judged(table: Table, store: Store) -> list[Judged]:
    return [one for one in judge(table, store, GRAPHS) if one.cell.printed.dataset in GRAPHS]


def part(name: str, tables: dict[str, Table], store: Store) -> str:
    if name == "summary":
        lines = summary([(row, tables[table], judged(tables[table], store)) for row, table in HEADLINE])
        return "\n" + "\n".join(lines) + "\n\n"
    if name == "misprints":
        return "\n" + "\n".join(misprints(read_figures())) + "\n\n"
    found = judged(tables[name], store)
    return "\n" + "\n".join([f"{said(found)}", "", *docs(tables[name], found)]) + "\n"


def made(text: str, store: Store) -> str:
    """The page with its parts made from what the store holds."""
    tables = read_tables()
    return PART.sub(lambda found: f"{found[1]}{part(found[2], tables, store)}{found[4]}", text)


def main() -> None:
    write_atomically(PAGE, made(PAGE.read_text(), Store(RESULTS)).encode())


if __name__ == "__main__":
    main()
