"""Where a run stands, as the coordinator tells the operator and leaves it in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.federation.wire.reasons import Reason
from suture.runs.outcome import Tick

STATUS = "status.json"


class State(StrEnum):
    """A leg of a run is under way, or has ended in one of these ways."""

    RUNNING = "running"
    WAITING = "waiting"
    """An owner is lost; the next leg goes on once it is back."""
    STOPPED = "stopped"
    """As the operator wished."""
    REFUSED = "refused"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class Status:
    """One run."""

    run: str
    method: str
    state: State
    time: float = 0.0
    tick: Tick | None = None
    """The last finished round; None before the first."""
    absent: Mapping[str, Reason] = field(default_factory=dict)
    """Owners that are lost at the moment."""
    reason: Reason | None = None
    """Why the leg ended early."""
    audit: Mapping[str, int | str] | None = None
    """What the coordinator's audit log ended with when the leg did: how many lines, and the last one's hash."""

    def as_json(self) -> dict[str, Json]:
        """For the operator and the run folder."""
        plain: dict[str, Json] = TypeAdapter(Status).dump_python(self, mode="json")
        return plain

    @staticmethod
    def read(content: Mapping[str, object]) -> Status:
        """As `as_json` wrote it."""
        try:
            return TypeAdapter(Status).validate_python(content)
        except ValidationError as error:
            raise IntegrityError(
                "the status of a run cannot be read; install the same version of Suture at every party"
            ) from error
