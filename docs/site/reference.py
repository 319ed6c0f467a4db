"""The pages of the reference, one for each room, found by walking the package when the site is built."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass
from pathlib import Path

import suture


@dataclass(frozen=True)
class Section:
    """A part of the reference, and the rooms it shows."""

    title: str
    about: str
    rooms: tuple[str, ...]
    """Without `suture.`; what is not there is passed over, and a room that no section names is in the last."""


SECTIONS = {
    "python": Section("The Python interface", "`import suture` is enough for all of this.", ("api", "errors")),
    "writing-methods": Section(
        "Writing methods",
        "What a method is made of, and what tests it. Start with [Add a method](../add-a-method.md).",
        ("method", "seam", "plugins", "testing", "core", "training", "nn"),
    ),
    "settings": Section(
        "Settings and protocols",
        "Every value a run can have. What the protocols prescribe is in [Protocols](../protocols.md).",
        ("settings", "config"),
    ),
    "graph": Section("Graphs", "From raw files to the clients' pieces.", ("graph",)),
    "operators": Section(
        "Engines and federation",
        "What runs a method, in one process or between owners. Operators start [here](../federation.md).",
        ("engines", "federation", "privacy"),
    ),
    "methods": Section("Methods", "Every method with its algorithm box and its hyper-parameters.", ("methods",)),
    "inside": Section("Inside", "What is in no other section: runs and their folders, reports, commands.", ()),
}


def rooms() -> dict[str, list[str]]:
    """The modules of every room: a package, or a module that lies directly in `suture`."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(suture.__path__, "suture."):
        parent = module.name.rpartition(".")[0]
        is_own_room = module.ispkg or parent == "suture"
        if not module.name.endswith("__main__"):
            found.setdefault(module.name if is_own_room else parent, []).append(module.name)
    return found


def section_of(room: str) -> str:
    """The section that names it, or the last one."""
    named = {name: title for title, section in SECTIONS.items() for name in section.rooms}
    return named.get(room.split(".")[1], list(SECTIONS)[-1])


def write(folder: Path) -> None:
    """Write the pages that have changed, so that only these are built again, and remove those of rooms that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    known = rooms()
    pages = {f"{room}.md": _page(room, modules) for room, modules in known.items()}
    for name, section in SECTIONS.items():
        pages[f"{name}.md"] = _contents(name, section, [room for room in known if section_of(room) == name])
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _contents(name: str, section: Section, members: list[str]) -> str:
    lines = [f"# {section.title}", "", section.about, ""]
    if name == "python":
        lines += [_directives(_interface()), ""]
    lines += ["| room | what it is |", "|---|---|"]
    lines += [f"| [`{room}`]({room}.md) | {_summary(room)} |" for room in members]
    lines += ["", "```{toctree}", ":hidden:", "", *members, "```", ""]
    return "\n".join(lines)


def _page(room: str, modules: list[str]) -> str:
    parts = [f"# {room.removeprefix('suture.')}\n"]
    for module in modules:
        parts += [f"## {module.removeprefix(f'{room}.')}\n"] if module != room else []
        parts.append(_directives([f".. automodule:: {module}\n   :members:"]))
    return "\n".join(parts)


def _directives(directives: list[str]) -> str:
    return "```{eval-rst}\n" + "\n\n".join(directives) + "\n```\n"


def _summary(room: str) -> str:
    text = (import_module(room).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _interface() -> list[str]:
    """What `import suture` gives: functions, then classes."""
    given = {name: getattr(suture, name) for name in dir(suture) if not name.startswith("_")}
    ours = {name: thing for name, thing in given.items() if getattr(thing, "__module__", "").startswith("suture.")}
    functions = [f".. autofunction:: suture.{name}" for name, thing in ours.items() if not isclass(thing)]
    classes = [f".. autoclass:: suture.{name}\n   :members:" for name, thing in ours.items() if isclass(thing)]
    return functions + classes
