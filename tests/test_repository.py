"""What a repository promises beside its code: licence, citation, hooks, targets."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_licence_is_the_whole_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "\n   Copyright The Suture authors\n" in text
    official = text.replace("Copyright The Suture authors", "Copyright [yyyy] [name of copyright owner]")
    # Of https://www.apache.org/licenses/LICENSE-2.0.txt, as many projects ship it.
    assert (
        hashlib.sha256(official.encode()).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]


def test_the_citation_is_complete() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    # What the schema of the Citation File Format 1.2.0 requires, of a file and of a reference.
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert {reference["notes"].split(",")[0] for reference in cited["references"]} == {
        "FedSage",
        "FedDEP",
        "FED-PUB",
        "FedGGR",
        "FedGLS",
    }
    for reference in cited["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        assert all(set(author) == {"given-names", "family-names"} for author in reference["authors"])
        assert "collection-title" in reference or "journal" in reference


def test_the_hook_calls_a_target_that_exists() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local", "a hook from elsewhere would be fetched"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        program, target = hook["entry"].split()
        assert program == "make"
        assert target in targets()


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert explained == targets() == set(phony.split())


def test_pages_name_targets_that_exist() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        # In code only: prose may make other things.
        named = re.findall(r"(?:`|^|; |&& )make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets(), page.name
