"""Code that is spelled: by the user, whose own it is, or in files that somebody was handed; found by reading alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.config.toml import parsed, read_toml
from suture.core.storage import read_json
from suture.core.trusted import Code, code_at, is_spelled, let_in
from suture.errors import SutureError
from suture.graph import datasets
from suture.methods import DOOR, AnyMethod
from suture.plugins import spelling_of

NAMING = ("kind", "metric", "method", "methods", "run", "dataset", "protocol")
"""The keys of our files under which code may be spelled."""


def codes_in(*files: Path, spelled: Iterable[str] = ()) -> tuple[Code, ...]:
    """The code that .json and .toml files spell; a file that is not there or damaged is another reader's to refuse."""
    found = {spelling: code_at(spelling) for spelling in spelled}
    for file in files:
        try:
            content: Mapping[str, Any] = read_toml(file) if file.suffix == ".toml" else read_json(file, "file")
        except SutureError:
            continue
        found |= {spelling: code_at(spelling) for spelling in _spelled(content)}
    return tuple({code.spelling: code for code in found.values()}.values())


def _spelled(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, content in value.items():
            yield from _spelled(content, str(inner))
    elif isinstance(value, list):
        for content in value:
            yield from _spelled(content, key)
    elif isinstance(value, str) and key in NAMING:
        base = datasets.base_of(value) if key == "dataset" else value
        if is_spelled(base) and ":" in base and base not in datasets.DOOR.names():
            yield base


def let_in_named(
    dataset: str | None = None,
    methods: Sequence[str | AnyMethod] = (),
    overrides: Sequence[str] = (),
    protocol: str | Path | None = None,
) -> None:
    """What the user names or gives is the user's own: remember the code that is spelled in it, and the files of classes."""
    let_in(spelled_in_words(dataset, methods, overrides, protocol))


def spelled_in_words(
    dataset: str | None = None,
    methods: Sequence[str | AnyMethod] = (),
    overrides: Sequence[str] = (),
    protocol: str | Path | None = None,
) -> list[str]:
    """The code that is spelled in what somebody asks for."""
    texts = [datasets.base_of(dataset)] if dataset is not None else []
    texts += [one if isinstance(one, str) else _written_in(one) for one in methods]
    texts += [text_of(override) for override in overrides]
    texts += [protocol] if isinstance(protocol, str) else []
    return [text for text in texts if is_spelled(text) and ":" in text]


def _written_in(kind: AnyMethod) -> str:
    return "" if any(kind is ours for ours in DOOR.shipped.values()) else spelling_of(kind)


def text_of(override: str) -> str:
    """The text that `key=text` gives; empty for a number."""
    value = parsed(override.partition("=")[2].strip())
    return value if isinstance(value, str) else ""
