"""The files of the operator's run folder, for whoever looks at it without the engine that carries the bytes.

order.json   what was ordered                 job.json    the last job, and the operator's kit
stop.json    somebody wants it to end         .followed   locked while a command follows the run
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from suture.errors import ConfigError
from suture.runs.pulse import Busy, holding, is_locked

JOB, STOP, FOLLOWED = "job.json", "stop.json", ".followed"


@contextmanager
def followed(path: Path) -> Iterator[None]:
    """Follow the run in this folder, as the only one who does."""
    with ExitStack() as held:
        try:
            held.enter_context(holding(path / FOLLOWED))
        except Busy:
            raise ConfigError(f"another command follows the run in {path}; wait for it, or end it first") from None
        yield


def is_followed(path: Path) -> bool:
    """Whether a command follows the run in this folder."""
    return is_locked(path / FOLLOWED)
