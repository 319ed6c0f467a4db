"""Why something was not done: a code that programs decide by, and a sentence for people.

The code travels with the sentence wherever it goes: in the answer of an owner, in the status of a run, in audit logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from suture.core.storage import Json
from suture.errors import IntegrityError, SutureError

MOST_TEXT = 2000
"""Characters of a sentence."""


class Code(StrEnum):
    """Everything a party can be told instead of what it asked for."""

    NO_ANSWER = "no-answer"
    """A party did not answer in time, or its process is gone; it may come back."""
    NOT_OPENED = "not-opened"
    """The run has not been opened at this owner."""
    BAD_REPLY = "bad-reply"
    """A reply is not what the step declares; its sender is not asked again."""
    TOO_FEW = "too-few-owners"
    """Fewer owners are left than a round needs."""
    MALFORMED = "malformed"
    """A request cannot be read, or is not for whom it came to."""
    UNDECLARED = "undeclared"
    """A verb or a step that nobody has declared."""
    TERMS = "terms"
    """The terms of a run do not fit the owner's installation or data."""
    POLICY = "policy"
    """The owner's policy forbids it."""
    BUDGET = "budget"
    """It would cost more than the owner's policy allows all runs together."""
    CHANGED = "changed"
    """An owner's data are not those with which it began the run."""
    SECRECY = "secrecy"
    """It would tell what secure aggregation hides."""
    FAILED = "failed"
    """An error of the party's own."""
    NO_CERTIFICATE = "no-certificate"
    """A connection without a certificate."""
    UNKNOWN_CERTIFICATE = "unknown-certificate"
    """A connection with a certificate of another federation."""
    EXPIRED_CERTIFICATE = "expired-certificate"
    """A connection with a certificate that is not valid now."""
    REVOKED_CERTIFICATE = "revoked-certificate"
    """A connection with a certificate that the authority has revoked."""
    WRONG_CERTIFICATE = "wrong-certificate"
    """A certificate of this federation in another member's or another role's place."""
    NO_HANDSHAKE = "no-handshake"
    """A connection that did not become one for another reason."""
    FOREIGN_CODE = "foreign-code"
    """A job that brings code."""
    FOREIGN_CLASS = "foreign-class"
    """A job that names a class which is not one of ours."""
    NO_RIGHT = "no-right"
    """A user without the right to do this."""


class FederationError(SutureError):
    """An error that carries its code."""

    def __init__(self, text: str, code: Code) -> None:
        super().__init__(text)
        self.code = code


class Refused(FederationError):
    """An owner or the coordinator will not do what it was asked to; the text says why."""


class Unreachable(FederationError):
    """A party did not answer in time, or its process is gone."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Code.NO_ANSWER)


class AnswerLost(Unreachable):
    """A party that has nothing to do any more, and whose answer has not come: it has to be asked again."""


class BadReply(FederationError):
    """A reply that is not what the step declares: malformed, of another type or shape, oversized, or not finite."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Code.BAD_REPLY)


class TooFew(FederationError):
    """Fewer owners are left than a round needs, and nobody who could come back would change that."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Code.TOO_FEW)


@dataclass(frozen=True)
class Reason:
    """A code and its sentence, apart from any exception."""

    code: Code
    text: str

    @staticmethod
    def of(error: Exception) -> Reason:
        """Why this was raised. A sentence may quote what came from somebody else, who must not fill a log with it."""
        text = str(error)[:MOST_TEXT]
        if isinstance(error, FederationError):
            return Reason(error.code, text)
        return Reason(Code.MALFORMED if isinstance(error, IntegrityError) else Code.FAILED, text)

    def as_json(self) -> dict[str, Json]:
        """For a line of an audit log."""
        return {"code": self.code.value, "reason": self.text}


def code_named(name: object) -> Code:
    """The code of this name; one that is not known here is a failure, whatever it means elsewhere."""
    return Code(name) if isinstance(name, str) and name in set(Code) else Code.FAILED
