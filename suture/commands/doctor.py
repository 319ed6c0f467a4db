"""`suture doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from rich.text import Text

from suture import api
from suture.graph import datasets
from suture.graph.sources.cache import cache_folder
from suture.report import console

PACKAGE = "suture-fl"
SELF_TEST = "csbm:nodes=200,features=50,words_per_node=8"
REINSTALL = "install again with: pip install --upgrade suture-fl"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    ok: bool
    what: str
    advice: str = ""


def examine(data_root: Path | None) -> bool:
    """Print every finding; True if nothing is broken."""
    screen, healthy = console.results(), True
    for check in (_packages, _threads, lambda: _data(data_root), _disk, _self_test):
        for finding in check():
            healthy &= finding.ok
            line = Text("ok      " if finding.ok else "not ok  ", style="green" if finding.ok else "bold red")
            line.append(finding.what, style="default")
            line.append(f": {finding.advice}" if finding.advice else "", style="default")
            screen.print(line, soft_wrap=True)
    return healthy


def _packages() -> Iterator[Finding]:
    try:
        needed = requires(PACKAGE) or []
    except PackageNotFoundError:
        yield Finding(False, "suture-fl is not installed, only its source is found", "install it with: pip install -e .")
        return
    yield Finding(True, f"suture {version(PACKAGE)}")
    for requirement in needed:
        name, bounds = re.match(r"([\w.-]+)\s*([^;]*)", requirement).groups()  # type: ignore[union-attr]
        if "extra ==" in requirement:
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(False, f"{name} is missing", REINSTALL)
            continue
        ok = within(found, bounds)
        yield Finding(ok, f"{name} {found} (tested with {bounds})", "" if ok else REINSTALL)


def within(found: str, bounds: str) -> bool:
    """Whether a version satisfies `>=1.2,<2` or `==1.2.3`."""
    compare: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
        "==": lambda a, b: a[: len(b)] == b,
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
    }
    for bound in filter(None, bounds.split(",")):
        sign, number = re.match(r"(==|>=|<)\s*(.+)", bound.strip()).groups()  # type: ignore[union-attr]
        if not compare[sign](_numbers(found), _numbers(number)):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))


def _threads() -> Iterator[Finding]:
    usable, used = len(os.sched_getaffinity(0)), torch.get_num_threads()
    advice = f"more threads than the {usable} usable cores only wait for each other; give --threads {usable}"
    yield Finding(used <= usable, f"{used} threads on {usable} usable cores", advice if used > usable else "")


def _data(explicit: Path | None) -> Iterator[Finding]:
    root = datasets.data_root(explicit)
    public = [info for info in datasets.catalogue() if info.raw]
    here = [info.name for info in public if info.present(root)]
    absent = [info.name for info in public if not info.present(root)]
    yield Finding(True, f"data root {root}: {', '.join(here) or 'no dataset yet'}")
    if absent:
        yield Finding(True, f"not there: {', '.join(absent)}", "fetched when first used, or now with: suture data get NAME")


def _disk() -> Iterator[Finding]:
    for what, folder in (("working folder", Path.cwd()), ("cache folder", cache_folder())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x" * 4096)
        except OSError as error:
            yield Finding(False, f"{what} {folder} cannot be written to ({error.strerror})", _elsewhere(what))
        else:
            yield Finding(True, f"{what} {folder} can be written to")


def _elsewhere(what: str) -> str:
    return "set XDG_CACHE_HOME to another folder" if what == "cache folder" else "give --out another folder"


def _self_test() -> Iterator[Finding]:
    try:
        result = api.run(SELF_TEST, clients=3, overrides=["rounds=3", "hidden=8"])
    except Exception as error:  # whatever breaks it is the finding
        yield Finding(False, f"a small run failed ({error})", REINSTALL)
        return
    yield Finding(True, f"a small run finished in {result.outcome.seconds:.1f} s")
