"""From an owner's answer to a reply that can be combined with the others', or why it is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from suture.core.message import Message
from suture.core.metrics import metric_for
from suture.engines.robust import Robust
from suture.errors import IntegrityError, SutureError
from suture.federation.coordinator.calls import Answers, Failures
from suture.federation.wire.checks import Expectations, absurd, check_finite, check_scores, check_sizes
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply, Reason
from suture.federation.wire.signatures import read, signature, wire_types
from suture.method import Method, Scores, Task
from suture.seam import Audit


@dataclass
class ReplyChecks:
    """What a reply has to be in one run. A fault is its sender's, who is named; the others' are as good as before."""

    method: Method[Any, Any]
    task: Task
    audit: Audit
    robust: Robust | None = None
    expectations: Expectations = field(default_factory=Expectations)

    def checked(self, step: str, number: int, answers: Answers, bad: Failures) -> dict[str, Message]:
        """The replies in these answers to step `number`; those that are not what was declared are added to the failures."""
        declared, known = signature(type(self.method), step).reply, wire_types(type(self.method))
        replies: dict[str, Message] = {}
        for owner, frame in answers.items():
            try:
                reply = _answering(owner, frame, number, read(frame.body, declared, known))
                self._check_numbers(owner, step, number, reply)
                replies[owner] = reply
            except SutureError as error:
                bad[owner] = BadReply(str(error))
        odd = self.expectations.odd(step, replies) if replies else {}
        usable = {owner: reply for owner, reply in replies.items() if owner not in odd}
        if self.robust is None or step not in self.robust.steps:
            odd |= absurd(usable)
        bad |= {owner: BadReply(why) for owner, why in odd.items()}
        return {owner: reply for owner, reply in replies.items() if owner not in odd}

    def _check_numbers(self, owner: str, step: str, number: int, reply: Message) -> None:
        """Refuse absurd numbers, unless robust aggregation leaves them out and names their sender: then the run goes on."""
        try:
            check_finite(reply)
            check_sizes(reply)
            if isinstance(reply, Scores):
                check_scores(reply, metric_for(self.task.metric, "link" if self.task.link else "node"))
        except IntegrityError as error:
            if self.robust is None or step not in self.robust.steps:
                raise
            why = Reason.of(BadReply(str(error)))
            self.audit.note("reply left out", owner=owner, step=step, number=number, **why.as_json())


def _answering(owner: str, frame: Frame, number: int, reply: Message) -> Message:
    """The reply, if it is this owner's to this step."""
    if reply.ids != (owner,):
        raise BadReply(f"it answers for {', '.join(reply.ids) or 'nobody'}")
    if frame.header.get("number") != number:
        raise BadReply(f"it answers step {frame.header.get('number')!r}, asked was {number}")
    return reply
