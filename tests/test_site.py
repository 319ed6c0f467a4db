"""The site builds without a warning, and its reference shows every room of the package."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def words_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs/site", ".", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    front = (site / "index.html").read_text()
    assert "every piece" in front and "docs/reference/python.html" in front
    interface = (site / "docs" / "reference" / "python.html").read_text()
    for name in ("run", "compare", "resume", "Options", "Result", "SutureError"):
        assert f'id="suture.{name}"' in interface
    # A field with its bounds and its docstring, and an algorithm box that kept its lines.
    settings = words_of(site / "docs" / "reference" / "suture.settings.html")
    assert re.search(r"rounds: Annotated\[int, Field\(ge=1\)\] = 100.{0,3}\nCommunication rounds\.", settings)
    box = words_of(site / "docs" / "reference" / "suture.methods.fedpub.html")
    assert "server (algorithm 2)\n  1  draw one random graph" in box
    rooms = {path.parent for path in (ROOT / "suture").rglob("*.py") if path.parent != ROOT / "suture"}
    for room in rooms:
        page = ".".join(room.relative_to(ROOT).parts)
        assert (site / "docs" / "reference" / f"{page}.html").exists()
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="(https?:[^"]+)"', page.read_text())
        assert not fetched, f"{page.name} makes a browser fetch {fetched}"
