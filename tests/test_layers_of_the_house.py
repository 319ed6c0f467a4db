"""The order of rooms: who may import whom. Read from the source, so that a wrong import fails before it spreads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "suture"

PAGE = PACKAGE.parent / "docs" / "architecture.md"


def _floors() -> list[set[str]]:
    """From the ground up, as the page draws them; a module may import its own floor and those below."""
    drawn = re.search(r"```rooms\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert drawn, "docs/architecture.md does not draw the rooms any more"
    names = [re.split(r"\s{2,}", line)[0].split() for line in drawn[1].splitlines()]
    return [{name.rstrip("/").replace("/", ".") for name in line} for line in names]


FLOOR = {room: number for number, rooms in enumerate(_floors()) for room in rooms}


def _room(module: str) -> str:
    """The first part of a module's name, unless the module itself has a floor."""
    parts = module.removeprefix("suture.").split(".")
    return module_name if (module_name := ".".join(parts[:2])) in FLOOR else parts[0]


NAMES_TYPES_ABOVE = {PACKAGE / "seam.py"}
"""What an engine gives is told in terms of clients and tasks, which are a floor higher: for the type checker only."""


def _imports(path: Path) -> set[str]:
    found = set()
    source = ast.parse(path.read_text())
    if path in NAMES_TYPES_ABOVE:
        source.body = [
            node for node in source.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    for node in ast.walk(source):
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


def test_every_room_is_drawn_and_nothing_else() -> None:
    there = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if _is_code(path)}
    assert {name.split(".")[0] for name in FLOOR} == there


def _is_code(path: Path) -> bool:
    return (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()


def test_few_modules_stand_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_files_and_functions_stay_small() -> None:
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        assert source.count("\n") <= 400, f"{path.relative_to(PACKAGE)} is too long; it is several things"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= 60, f"{node.name} in {path.relative_to(PACKAGE)} has {lines} lines"


def test_types_are_rarely_ignored() -> None:
    ignored = [line for path in PACKAGE.rglob("*.py") for line in path.read_text().splitlines() if "type: ignore" in line]
    assert len(ignored) <= 15
    assert not any("override" in line for line in ignored)


def test_methods_and_engines_do_not_know_each_other() -> None:
    for path in (PACKAGE / "methods").rglob("*.py"):
        assert not any(_room(module) == "engines" for module in _imports(path)), path
    for path in (PACKAGE / "engines").rglob("*.py"):
        assert not any(_room(module) == "methods" for module in _imports(path)), path


def test_one_room_knows_flare() -> None:
    for path in _modules():
        if PACKAGE / "federation" / "flare" not in path.parents:
            assert "nvflare" not in path.read_text(), path


# Python's own way to import late needs a module's name as a text: torch takes seconds, and `suture --help` needs none of it.
MAY_SPELL_MODULES = {PACKAGE / "__init__.py"}
SPELT = re.compile(r"suture(\.[A-Za-z_]\w*)+")


def _texts(path: Path) -> set[str]:
    """Every text in the code of a module, its documentation apart."""
    tree = ast.parse(path.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said)
    return {node.value for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_text_spells_a_module(path: Path) -> None:
    """A class or module named in a text is an import that the tests above cannot see: name the object, and let it tell."""
    spelt = {text for text in _texts(path) if SPELT.fullmatch(text) and _is_ours(text)}
    assert not spelt or path in MAY_SPELL_MODULES, f"{path.name} spells {', '.join(sorted(spelt))}"


def _is_ours(text: str) -> bool:
    """Whether there is such a module, or one that holds such a name. `suture.methods` is a group of entry points too."""
    place = PACKAGE.parent.joinpath(*text.split("."))
    rooms = [place, place.parent] if text.count(".") > 1 else []
    return place.with_suffix(".py").exists() or any(
        room.with_suffix(".py").exists() or (room / "__init__.py").exists() for room in rooms
    )


# Who may know whom among the parties: owners and coordinator meet in what travels only, and in the jobs of the engine.
PARTIES = {
    "wire": set(),
    "coordinator": {"wire", "identity"},
    "owner": {"wire", "audit", "identity"},
    "flare": {"wire", "audit", "pem"},
    "operator": {"wire", "flare"},
    "audit": set(),
    "identity": {"pem"},
    "pem": set(),
}
WHERE_PARTIES_MEET = PACKAGE / "federation" / "flare" / "jobs.py"


@pytest.mark.parametrize("room", list(PARTIES))
def test_parties_know_each_other_by_what_travels(room: str) -> None:
    home = PACKAGE / "federation" / room
    for path in sorted(home.rglob("*.py")) if home.is_dir() else [home.with_suffix(".py")]:
        known = {module.split(".")[2] for module in _imports(path) if module.startswith("suture.federation.")} - {room}
        allowed = PARTIES[room] | ({"coordinator", "owner"} if path == WHERE_PARTIES_MEET else set())
        assert known <= allowed, f"{path.relative_to(PACKAGE)} knows {', '.join(sorted(known - allowed))}"
