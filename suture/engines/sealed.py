"""The sealed engine: the embedded one, but of steps that a method declares summable the server is shown the sum alone.

What `suture federation run --secure` does by cryptography between owners is done here by folding: a method that needs
more than it declared (`Method.sums`) fails, and what sums cost in accuracy, nothing but rounding, is seen in one process.
The ledger lists what each client would have sealed. It is an experiment: in this process nothing is hidden from anybody.
"""

from __future__ import annotations

from collections.abc import Callable

from suture.core.message import Message
from suture.core.tree import mean
from suture.engines.embedded import EmbeddedCohort
from suture.method import Clients
from suture.seam import M, R, S

SUM = ("sum",)
"""The one row of a reply that is a sum over clients."""


class SealedCohort(EmbeddedCohort[S]):
    """All clients, or a sample of them, whose summable replies nobody sees."""

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run a step on every client; one row, the weighted mean, if its sum is all that is needed."""
        reply = super().ask(step, message)
        return folded(reply) if step.__name__ in self._common.method.sums else reply


def folded(reply: R) -> R:
    """One row: the mean of every entry by the replies' weight, and the sum of the weights."""
    if not isinstance(reply, Message) or "weight" not in (tensors := dict(reply.tensors())):
        raise TypeError(f"a {type(reply).__name__} has no weight, so it cannot be summed")
    weight = tensors.pop("weight")
    row = mean(tensors, weight) | {"weight": weight.sum(0, keepdim=True)}
    return type(reply).from_tensors(SUM, {}, row)
