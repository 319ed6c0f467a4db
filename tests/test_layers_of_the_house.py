"""The order of rooms: who may import whom. Read from the source, so that a wrong import fails before it spreads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "suture"

# From the ground up; a module may import its own floor and those below.
FLOORS: list[set[str]] = [
    {"errors", "settings", "core"},
    {"graph", "config", "engines.robust"},
    {"nn", "privacy.mechanisms", "tables"},
    {"training", "method"},
    {"methods", "engines", "privacy", "runs.evaluation", "runs.checkpoint"},
    {"runs"},
    {"api"},
    {"federation"},
    {"report"},
    {"commands", "cli", "__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def _room(module: str) -> str:
    """The first part of a module's name, unless the module itself has a floor."""
    parts = module.removeprefix("suture.").split(".")
    return module_name if (module_name := ".".join(parts[:2])) in FLOOR else parts[0]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("suture"):
            found |= {f"{node.module}.{alias.name}" if node.module == "suture" else node.module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("suture.")}
    return found


def _modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    here = FLOOR[_room(".".join(parts))]
    for module in _imports(path):
        room = _room(module)
        assert room in FLOOR, f"{module}: give the new room {room!r} a floor"
        assert FLOOR[room] <= here, f"{'.'.join(parts)} may not import {module}: it is higher up"


def test_methods_and_engines_do_not_know_each_other() -> None:
    for path in (PACKAGE / "methods").rglob("*.py"):
        assert not any(_room(module) == "engines" for module in _imports(path)), path
    for path in (PACKAGE / "engines").rglob("*.py"):
        assert not any(_room(module) == "methods" for module in _imports(path)), path


def test_one_room_knows_flare() -> None:
    for path in _modules():
        if PACKAGE / "federation" / "flare" not in path.parents:
            assert "nvflare" not in path.read_text(), path
