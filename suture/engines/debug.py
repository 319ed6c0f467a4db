"""The debug engine: slow, and telling. For whoever writes a method.

One client at a time, every message through bytes, and autograd's anomaly detection on, so that a breakpoint in a step sees a
single client and a backward pass that makes NaN says which operation did. NaN and infinity in a reply, or in what a client
keeps, are refused in the step they come from. Any other exception stays what it is, with a note that says client, step,
phase and round. Numbers are those of the embedded engine, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suture.core.message import Message, Record
from suture.engines.embedded import Chunk, EmbeddedCohort
from suture.errors import Place, StepError, place_of
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, Task
from suture.seam import Cohort, M, R, S, V


class DebugCohort(EmbeddedCohort[S]):
    """All clients, or a sample of them, one after the other."""

    one_by_one = True

    @staticmethod
    def _chunk(method: Method[Any, S], part: GraphBatch, task: Task) -> Chunk[S]:
        place = f"client {part.ids[0]}, init_clients, before the first round"
        with noted(place):
            chunk = EmbeddedCohort._chunk(method, part, task)
        refuse_not_finite(chunk.state, "keeps", place)
        return chunk

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None) -> V:
        """One iteration of a phase; what goes wrong between two steps goes wrong at the server."""
        place = f"the server, {body.__name__}, {self._when()}"
        with noted(place):
            after = super().carry_out(body, server, test)
        refuse_not_finite(after, "keeps", place)
        return after

    def _run(self, chunk: Chunk[S], step: Callable[[Clients[S], M], tuple[S, R]], message: M, round: int) -> R:
        place = f"client {message.ids[0]}, step {step.__name__}, {self._when()}"
        with noted(place), torch.autograd.set_detect_anomaly(True):
            reply = super()._run(chunk, step, message, round)
        refuse_not_finite(reply, "answers", place)
        refuse_not_finite(chunk.state, "keeps", place)
        return reply

    def _when(self) -> str:
        return f"phase {self._common.phase}, round {self._common.round}"


@contextmanager
def noted(place: str) -> Iterator[None]:
    """Let an exception say where it comes from; the innermost place stays."""
    try:
        yield
    except Exception as error:
        if place_of(error) is None:
            error.add_note(Place(place))
        raise


def refuse_not_finite(record: Record, does: str, place: str) -> None:
    """Raise a `StepError` that names the first tensor with NaN or infinity."""
    for path, tensor in record.tensors().items():
        if not bool(torch.isfinite(tensor).all()):
            found = "NaN" if bool(tensor.isnan().any()) else "infinity"
            what = f"it {does} {found} in {path} of its {type(record).__name__}"
            raise StepError(f"{place}: {what}; look at that step, or lower training.lr")
