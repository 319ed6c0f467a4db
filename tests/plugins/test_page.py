"""docs/add-a-method.md, followed literally in an empty folder: files are written, commands run, tests are green."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "add-a-method.md"
BLOCK = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_followed_literally(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, command in (("suture", f"{sys.executable} -m suture"), ("python", sys.executable)):
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tools / name).chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
    }
    printed: dict[str, str] = {}
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["file"]:
            (folder / block["file"]).write_text(block["text"])
        elif block["language"] == "sh":
            for line in block["text"].splitlines():
                done = subprocess.run(
                    line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                printed[line] = done.stdout
    assert {path.name for path in folder.glob("*.py")} == {"fedmedian.py", "compare.py", "test_fedmedian.py"}
    assert "How far the server goes towards the median" in printed["suture methods fedmedian.py:FedMedian"]
    assert (folder / "first" / "result.json").exists()
    assert re.fullmatch(r"fedavg 0\.\d+\nfedmedian 0\.\d+\n", printed["python compare.py"])
    tested = printed["python -m pytest test_fedmedian.py"]
    passed = re.search(r"(\d+) passed", tested)
    assert passed and int(passed[1]) >= 15 and "failed" not in tested, tested
