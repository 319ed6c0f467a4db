"""What a tracker is: a run begins (or goes on), its rounds are logged, it ends.

Steps are iterations of all phases, from 1, as lines of metrics.jsonl. A run that goes on repeats the rounds after its last
checkpoint, with the same numbers, and whoever was killed may not have written all it had; so a tracker is told all rounds
again, continues its run, and has every point once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from suture.errors import ConfigError, IntegrityError

IDENTITY = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tracked:
    """The run that is tracked."""

    name: str
    """Of its folder, or of its method and seed."""
    group: str
    """Of the comparison it belongs to, or what it is on."""
    values: Mapping[str, str]
    """Everything it was asked to do: method, seed, dataset and all settings."""
    known_as: str | None = None
    """What `begin` returned when the run began; None: it begins now."""


class Tracker(ABC):
    """One tool; one object for one run."""

    name: ClassVar[str]
    extra: ClassVar[str]
    """What to install, as `pip install suture-fl[...]` spells it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def begin(self, run: Tracked) -> str:
        """Begin the run, or go on with it; returns what the tool knows it as."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of one round; of a run that goes on, all rounds come again, in order, from the first."""

    @abstractmethod
    def end(self, finished: bool, results: Mapping[str, float]) -> None:
        """The run has ended, or was stopped; `results` are those of its table."""


def numbers_in(line: Mapping[str, Any], clients: Sequence[str] = ()) -> dict[str, float]:
    """All numbers of a line of metrics.jsonl by name; those of clients as `client_test/client-03`."""
    found: dict[str, float] = {}
    for key, value in line.items():
        if key in ("phase", "round", "asked"):
            continue
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": float(one) for name, one in value.items() if _is_number(one)}
        elif isinstance(value, list | tuple):
            names = clients if len(clients) == len(value) else [str(number) for number in range(len(value))]
            found |= {f"{key}/{name}": float(one) for name, one in zip(names, value, strict=True) if _is_number(one)}
        elif _is_number(value):
            found[key] = float(value)
    return found


def identity(text: str) -> str:
    """What a tool knows a run as, out of a file that somebody else may have written."""
    if not IDENTITY.fullmatch(text):
        raise IntegrityError(f"{text[:80]!r} is no name of a tracked run; delete the file that says so, and track it anew")
    return text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parsed(text: str, known: Mapping[str, type[Tracker]], home: Path) -> Tracker:
    """`tensorboard`, or `tensorboard:FOLDER`; without one, a folder of that name in `home`."""
    name, _, folder = text.partition(":")
    if name not in known:
        raise ConfigError(f"unknown tracker {name!r}; there are {', '.join(known)}, each also as NAME:FOLDER")
    return known[name](Path(folder) if folder else home / name)
