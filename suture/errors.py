"""What Suture says when something outside it is wrong.

Every member names what was wrong, what was expected and what to do, in one sentence. The command line prints that
sentence and exits with code 2; library users catch `SutureError`. Bugs in Suture itself stay ordinary exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class SutureError(Exception):
    """Root of the errors a user can cause and a user can repair."""


class ConfigError(SutureError):
    """A name, key or value that the configuration does not know."""


class DataError(SutureError):
    """A graph that cannot be trained on: NaN features, edges out of range, labels missing."""


class PartitionError(SutureError):
    """A cut that cannot be made, or that leaves a client without what it needs."""


class IntegrityError(SutureError):
    """A manifest, checkpoint or download whose content is not what its hash promised."""


class StorageError(SutureError):
    """A disk that is full, read-only or missing."""


class StepError(SutureError):
    """A step that answered, or keeps, what nobody can go on with: NaN or infinity."""


class Place(str):
    """A note on an exception: which client, step, phase and round it comes from."""

    __slots__ = ()


def place_of(error: BaseException) -> Place | None:
    """Where in a run an exception comes from, if an engine has noted it."""
    return next((note for note in getattr(error, "__notes__", ()) if isinstance(note, Place)), None)


def unknown(kind: str, name: str, known: Iterable[str], error: type[SutureError] = ConfigError) -> SutureError:
    """The error for a misspelt name: suggests the nearest known one and lists all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return error(f"unknown {kind} {name!r}: {hint}known: {', '.join(known)}")


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are: `a, b and 7 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
