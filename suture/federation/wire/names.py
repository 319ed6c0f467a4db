"""Names that become folders: of runs, and of FLARE's jobs. Whoever makes a path of one asks here first."""

from __future__ import annotations

import re

from suture.errors import ConfigError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
CENSUS, MATCHING = ".census", ".matching"
"""What is counted, and who holds which id, before a run is kept beside it, under these endings."""
MOST_SHOWN = 80


def run_name(text: object) -> str:
    """A run's name that is safe as the name of a folder, or one sentence."""
    if not isinstance(text, str) or not RUN_NAME.fullmatch(text):
        raise ConfigError(
            "the run's name may hold letters, digits, dots and dashes only, at most 100 of them, "
            f"and begins with a letter or a digit, got {str(text)[:MOST_SHOWN]!r}"
        )
    return text


def own_run_name(text: object) -> str:
    """The same for a run somebody orders: the endings of what belongs to other runs are not free."""
    if (name := run_name(text)).endswith((CENSUS, MATCHING)):
        raise ConfigError(
            f"a run's name must not end with {CENSUS} or {MATCHING}, which is what is exchanged before a run, got {name!r}"
        )
    return name


def job_id(text: object) -> str:
    """An id that FLARE could have given a job: it becomes part of a command line and of a path."""
    if not isinstance(text, str) or not JOB_ID.fullmatch(text):
        raise ConfigError(f"a job's id may hold letters, digits and dashes only, got {str(text)[:MOST_SHOWN]!r}")
    return text
