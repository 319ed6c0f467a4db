"""The test of a round that travels with the round's last step, where the test does not depend on the step's replies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from suture.core.message import Message
from suture.federation.coordinator.calls import Answers


@dataclass
class EarlyTest:
    """Guesses from the last iteration which step is this one's last; what comes of a wrong guess is thrown away."""

    message: Message | None = None
    """What everybody is tested with after this iteration, if that is known already."""
    body: str = ""
    """Name of the iteration's body."""
    begun: int = 0
    """How often owners had been asked before it."""
    asks: dict[str, int] = field(default_factory=dict)
    """How often a body asked in its last iteration."""
    number: int = 0
    answers: Answers = field(default_factory=dict)
    """To the test that travelled with the step of this number."""

    def begin(self, body: str, number: int, message: Message | None) -> None:
        """An iteration begins, after step `number`."""
        self.message, self.body, self.begun = message, body, number

    def end(self, number: int) -> None:
        """The iteration has ended with step `number`."""
        self.asks[self.body] = number - self.begun

    def due(self, number: int) -> Message | None:
        """The test, if step `number` is the iteration's last, supposing it goes like the one before."""
        return self.message if self.asks.get(self.body) == number - self.begun else None

    def keep(self, number: int, answers: Answers) -> None:
        """The test has travelled with step `number`."""
        self.number, self.answers = number, answers

    def take(self, number: int, owners: Collection[str]) -> Answers | None:
        """The answers, if the test that travelled is the one that is wanted: once, and after that step only."""
        (before, answers), self.number, self.answers = (self.number, self.answers), 0, {}
        return answers if before == number and answers.keys() == set(owners) else None
