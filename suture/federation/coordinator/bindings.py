"""Which data each owner has opened a run with, as far as it tells: the same text for the same data, and nothing of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import read_json, write_json
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply, Code, FederationError, Refused

BINDINGS = "owners.json"
LENGTH = 64
"""Of what an owner tells: an HMAC-SHA256 in hexadecimal."""


@dataclass
class Bindings:
    """The bindings of one run, kept in its folder if there is one."""

    path: Path | None = None
    known: dict[str, object] = field(default_factory=dict)

    @staticmethod
    def of(run: Path) -> Bindings:
        """Those that the run's folder holds."""
        path = run / BINDINGS
        return Bindings(path, read_json(path, "record of the owners' data") if path.exists() else {})

    def broken(self, opened: Mapping[str, Frame]) -> dict[str, FederationError]:
        """Owners whose data are not those they began the run with; who opens it for the first time is bound."""
        odd: dict[str, FederationError] = {}
        before = len(self.known)
        for owner, frame in opened.items():
            told = frame.header.get("data")
            if not isinstance(told, str) or len(told) != LENGTH:
                odd[owner] = BadReply("it does not say with which data it opened the run")
            elif self.known.setdefault(owner, told) != told:
                odd[owner] = Refused(
                    "it goes on with other data than it began this run with; start it again with the data of before, "
                    "then resume, or order a new run",
                    Code.CHANGED,
                )
        if self.path is not None and len(self.known) > before:
            write_json(self.path, self.known)
        return odd
