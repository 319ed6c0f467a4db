"""Whose reply it was that could not be combined with the others'.

Replies that pass every check can still be such that a method's server fails on them, or makes NaN of them: an index out of
range, rows that do not belong to what was asked. No method has to expect that. The iteration is gone through again with the
replies as they were heard, each time as if one owner had never taken part; whoever's absence mends it is to blame. Nobody is
asked anything for it: what owners answer twice can cost their privacy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from suture.core.message import Message, Record
from suture.engines.robust import Robust
from suture.federation.wire.checks import check_finite


@dataclass
class Heard:
    """The replies to one iteration's steps, in their order, and whom each came from."""

    replies: list[Message] = field(default_factory=list)

    @property
    def owners(self) -> list[str]:
        """Everybody who has answered."""
        return sorted({owner for reply in self.replies for owner in reply.ids})


@dataclass
class Hearsay:
    """A cohort that answers what was heard, without one owner."""

    ids: tuple[str, ...]
    without: str
    heard: list[Message]
    robust: Robust | None

    def ask(self, step: Callable[..., Any], message: Any) -> Any:
        """The reply to the next step that was asked."""
        reply = self.heard.pop(0)
        rest = reply.select([owner for owner in reply.ids if owner != self.without])
        return self.robust.fold(step.__name__, rest) if self.robust else rest

    def sample(self, fraction: float) -> Hearsay:
        """Those who answered next."""
        ids = self.heard[0].ids if self.heard else self.ids
        return Hearsay(tuple(owner for owner in ids if owner != self.without), self.without, self.heard, self.robust)

    def groups(self, most: int) -> Iterator[Hearsay]:
        """Those who answered next, and next after them, until somebody has answered twice."""
        seen: set[str] = set()
        while self.heard and not seen.intersection(self.heard[0].ids):
            seen.update(self.heard[0].ids)
            yield self.sample(1)

    def report(self, **values: float) -> None:
        """Nobody watches."""

    def keep(self, **tensors: Tensor) -> None:
        """Nothing is drawn."""


def culprit(
    body: Callable[[Any, Any], Record], server: Record, ids: Sequence[str], heard: Heard, robust: Robust | None
) -> str | None:
    """The owner without whose replies the iteration can be carried out; None if there is no such owner, or not one alone."""
    if len(heard.owners) == 1:
        return heard.owners[0]
    mended = []
    for owner in heard.owners:
        try:
            check_finite(body(server, Hearsay(tuple(ids), owner, list(heard.replies), copy.deepcopy(robust))))
            mended.append(owner)
        except Exception:  # whatever it is, leaving this owner out does not mend it
            continue
    return mended[0] if len(mended) == 1 else None
