"""What the documents show really works."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "examples").glob("*.md")]


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_file_the_documents_name_is_there() -> None:
    for page in PAGES:
        named = set(re.findall(r"(?<![\w/.-])((?:suture|tests|benchmarks|docs|examples)/[\w/.-]+\.\w+)", page.read_text()))
        absent = {path for path in named if not (ROOT / path).exists()}
        assert not absent, f"{page.name} names {', '.join(sorted(absent))}"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_of_reproducibility_are_what_its_data_gives(tmp_path: Path) -> None:
    from suture.bench.reproduced import Store

    maker = _script("reproducibility")
    page = maker.PAGE.read_text()
    assert maker.made(page, Store(maker.RESULTS)) == page, "run: python benchmarks/reproducibility.py"
    # Other data give another page.
    shutil.copytree(maker.RESULTS, tmp_path / "other", ignore=shutil.ignore_patterns(".under-way"))
    kept = tmp_path / "other" / "feddep-table-2.json"
    kept.write_text(re.sub(r'"accuracy_global": 0\.\d+', '"accuracy_global": 0.125', kept.read_text()))
    other = maker.made(page, Store(tmp_path / "other"))
    assert "12.50 ± 0.00" in other
