"""What the documents show really works."""

from __future__ import annotations

import re
from pathlib import Path

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
