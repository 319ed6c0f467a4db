"""What the documents show really works."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import torch
from harness import assert_separable, run_to_end, small, small_world

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "examples").glob("*.md")]
TO_BE_WRITTEN = {"suture/methods/fedmedian.py", "tests/methods/test_fedmedian.py"}
"""Files that the tutorial lets its reader write."""


def _first_block(page: str) -> str:
    found = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found
    return found.group(1)


def test_the_method_of_the_tutorial() -> None:
    module = types.ModuleType("fedmedian_of_the_tutorial")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(_first_block("add-a-method.md"), module.__dict__)
    method = small(module.FedMedian)
    world = small_world()
    assert_separable(method, world)
    end = run_to_end(method, world.clients, world.task)
    trained = torch.stack([state.tensors()["params.head.bias"][0] for state in end.states])
    torch.testing.assert_close(end.server.tensors()["params.head.bias"][0], trained.median(0).values)


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_file_the_documents_name_is_there() -> None:
    for page in PAGES:
        named = set(re.findall(r"(?<![\w/.-])((?:suture|tests|benchmarks|docs|examples)/[\w/.-]+\.\w+)", page.read_text()))
        absent = {path for path in named - TO_BE_WRITTEN if not (ROOT / path).exists()}
        assert not absent, f"{page.name} names {', '.join(sorted(absent))}"
