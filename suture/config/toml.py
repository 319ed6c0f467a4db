"""Values in TOML syntax, read and written."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from suture.errors import ConfigError

Table = Mapping[str, object]


def read_toml(path: Path) -> Table:
    """What a file holds."""
    try:
        return parsed_table(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise ConfigError(f"cannot be read ({problem.strerror}): check the path") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"is not valid TOML: {problem}") from None


def parsed_table(text: str) -> Table:
    """What a file's text says."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError("is not valid TOML: its values lie too deep in one another") from None
    except ValueError as problem:
        raise ConfigError(f"is not valid TOML: {problem}") from None


def written(value: object) -> str:
    """One value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {written(inner)}' for key, inner in value.items())}}}"
    return str(value)


def parsed(text: str) -> object:
    """The value that `--set` gives; a bare word that is not TOML is a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value: object = table["value"]
    # A line break in the text would smuggle in further keys; no setting is a date.
    return text if len(table) > 1 or isinstance(value, datetime.date | datetime.time) else value


def as_table(value: object, key: str) -> Table:
    """The value, if it is a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a table, got {written(value)}")
    return value
