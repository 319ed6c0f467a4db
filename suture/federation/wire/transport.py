"""What has to be given to a federation: something that carries frames, and something that writes down."""

from __future__ import annotations

from typing import Protocol

from suture.core.storage import Json


class Transport(Protocol):
    """Whatever carries frames to owners. Calls to different owners may run at the same time."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Everybody there is to call."""

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        """Deliver a request and wait for its answer; raises `Unreachable`."""


class Audit(Protocol):
    """Whoever writes down what was accepted and refused."""

    def note(self, event: str, **details: Json) -> None:
        """One line."""
