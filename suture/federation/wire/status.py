"""Where a run stands, as the coordinator tells the operator and leaves it in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from suture.core.storage import Json
from suture.federation.wire.reasons import Reason

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
    """One run; `total` is 0 before its first round."""

    run: str
    method: str
    state: State
    time: float = 0.0
    phase: str = ""
    done: int = 0
    total: int = 0
    loss: float | None = None
    validation: float | None = None
    seconds: float = 0.0
    absent: Mapping[str, Reason] = field(default_factory=dict)
    """Owners that are lost at the moment."""
    reason: Reason | None = None
    """Why the leg ended early."""

    def as_json(self) -> dict[str, Json]:
        """For the operator and the run folder."""
        plain = {name: value for name, value in vars(self).items() if name not in ("absent", "reason")}
        absent: dict[str, Json] = {owner: reason.as_json() for owner, reason in self.absent.items()}
        return {**plain, "state": self.state.value, "absent": absent, **(self.reason.as_json() if self.reason else {})}

    @staticmethod
    def read(content: Mapping[str, object]) -> Status:
        """As `as_json` wrote it."""
        absent = content.get("absent")
        return Status(
            run=str(content["run"]),
            method=str(content["method"]),
            state=State(str(content["state"])),
            time=_number(content.get("time")) or 0.0,
            phase=str(content.get("phase", "")),
            done=int(_number(content.get("done")) or 0),
            total=int(_number(content.get("total")) or 0),
            loss=_number(content.get("loss")),
            validation=_number(content.get("validation")),
            seconds=_number(content.get("seconds")) or 0.0,
            absent={owner: Reason.read(why) for owner, why in absent.items()} if isinstance(absent, dict) else {},
            reason=Reason.read(dict(content)) if "reason" in content else None,
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
