"""Where every value of a protocol comes from: the comments of protocol files, kept when a new file is made of one.

Shipped protocols say behind each value whether it is the paper's, the published code's, or ours. A file that `suture tune`
writes says the same behind each value that it left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from suture.config.layers import DOOR
from suture.runs.plan import Plan

_TABLE = re.compile(r"\[(?P<name>[^\]]+)\]")
_VALUE = re.compile(r"(?P<key>\w+) = (?P<value>\"[^\"]*\"|[^#\"]*?)\s*#\s*(?P<comment>.*)")
_PLAIN = re.compile(r"(?P<key>\w+) = ")
DEFAULT = "default"


def origins_of(protocol: str | Path, made: Plan, given: Sequence[str] = ()) -> dict[str, str]:
    """By `section.key`, what the protocol's file says of it; `given` are the texts of `--set`, which are the user's."""
    name = str(protocol)
    path = Path(protocol) if name.endswith(".toml") else DOOR.find(name)
    of_dataset = f"dataset.{made.dataset.split(':')[0].lower()}"
    base: dict[str, str] = {}
    nearer: dict[str, str] = {}
    for key, comment in _comments(path.read_text(encoding="utf-8-sig")).items():
        if key.startswith(f"{of_dataset}."):
            nearer[key.removeprefix(f"{of_dataset}.")] = comment
        elif not key.startswith("dataset."):
            base[key] = comment
    return {**base, **nearer, **{_place_of(text, base): "given" for text in given}}


def _comments(text: str) -> dict[str, str]:
    table, found = "", dict[str, str]()
    for line in text.splitlines():
        if header := _TABLE.match(line):
            table = f"{header['name']}."
        elif value := _VALUE.match(line):
            found[f"{table}{value['key']}"] = value["comment"].strip()
    return found


def _place_of(text: str, known: Mapping[str, str]) -> str:
    """The key that a text of `--set` means, as a file has it: `rounds` is `training.rounds`, `fedprox.mu` a method's."""
    key = text.partition("=")[0].strip()
    if key in known:
        return key
    ends = [place for place in known if place.endswith(f".{key}") and place.count(".") == 1]
    return ends[0] if ends else f"methods.{key}"


def with_origins(toml: str, origins: Mapping[str, str]) -> str:
    """A protocol file's text, with a comment behind each value."""
    table, lines = "", []
    for line in toml.splitlines():
        if header := _TABLE.match(line):
            table = f"{header['name']}."
        elif (value := _PLAIN.match(line)) and f"{table}{value['key']}" not in ("name", "description", "tuned"):
            line += "  # " + origins.get(table + value["key"], DEFAULT)
        lines.append(line)
    return "\n".join(lines) + "\n"
