"""Values of files that anybody may have written: what is of the right kind and size, and nothing else.

Every function takes what JSON gave and answers with what can be drawn, or raises `ValueError`, which whoever reads the file
turns into a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.core.storage import read_json, read_lines
from suture.errors import IntegrityError
from suture.report.console import cleaned, shortened

NAME, SENTENCE = 80, 1000
"""Characters."""
LARGEST = 64_000_000
"""Bytes of a file that is read."""


def text(value: object, most: int = NAME) -> str:
    """A text of a length that can be shown, without control characters."""
    if not isinstance(value, str):
        raise ValueError(f"a text is expected, not {type(value).__name__}")
    return shortened(cleaned(value).replace("\n", " "), most)


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300:
        return float(value)
    if value is None or isinstance(value, float):
        return None
    raise ValueError(f"a number is expected, not {type(value).__name__}")


def whole(value: object, most: int = 10**15) -> int:
    """A whole number from -1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= most:
        raise ValueError("a whole number is expected")
    return value


def listed(value: object, most: int) -> Sequence[Any]:
    """A list that is not too long."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"a list of at most {most} is expected")
    return value


def table(value: object) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError("an object is expected")
    return value


def numbers(value: object, most: int) -> tuple[float | None, ...]:
    """A list of numbers."""
    return tuple(number(one) for one in listed(value, most))


def wholes(value: object, most: int, below: int = 10**15) -> tuple[int, ...]:
    """A list of whole numbers."""
    return tuple(whole(one, below - 1) for one in listed(value, most))


def texts(value: object, most: int, length: int = NAME) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(one, length) for one in listed(value, most))


def checked_file(path: Path) -> Path | None:
    """A file that may be read: there, a file and no pipe, not too large, and no link. None: it is not there."""
    if path.is_symlink():
        raise IntegrityError(f"{path.name} is a link, and is not followed")
    if not path.exists():
        return None
    if not path.is_file():
        raise IntegrityError(f"{path.name} is not a file")
    if (size := path.stat().st_size) > LARGEST:
        raise IntegrityError(f"{path.name} has {size:,} bytes, more than the {LARGEST:,} that are read")
    return path


def json_of(path: Path) -> Mapping[str, Any] | None:
    """A JSON object; None: there is no such file."""
    found = checked_file(path)
    return None if found is None else read_json(found, "file")


def lines_of(path: Path, most: int) -> list[dict[str, Any]]:
    """The lines of a file that may still be growing, at most so many; none if there is no such file."""
    found = checked_file(path)
    lines: list[dict[str, Any]] = []
    for line in read_lines(found) if found is not None else ():
        lines.append(line)
        if len(lines) == most:
            break
    return lines
