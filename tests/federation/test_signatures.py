"""What a step declares, read through generic bases: as strict as if every class had written it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from suture.core.message import Message, Model, Nothing, Record
from suture.errors import IntegrityError
from suture.federation.wire.signatures import Signature, read, signature
from suture.method import Clients, Method, Scores, step
from suture.methods import METHODS

V = TypeVar("V", bound=Record)
S = TypeVar("S", bound=Record)
D = TypeVar("D", bound=Message)
U = TypeVar("U", bound=Message)


@dataclass(frozen=True)
class Thin(Message):
    """A message of its own."""


@dataclass(frozen=True)
class Reply(Message):
    """A reply of its own."""


class Base(Method[V, S], Generic[V, S, D, U]):
    """Declares its step once, for whatever is sent down and up."""

    @step
    def local_update(self, clients: Clients[S], down: D) -> tuple[S, U]:
        """Not run here."""
        raise NotImplementedError

    @step
    def fixed(self, clients: Clients[S], down: D) -> tuple[S, Nothing]:
        """One type is a variable, the other is not."""
        raise NotImplementedError


class Models(Base[V, S, Model, U], Generic[U, V, S]):
    """Binds one variable, and hands the others on in another order."""


class Bound(Models[Reply, Nothing, Nothing]):
    """Binds the rest."""


class Further(Bound):
    """A subclass that says nothing."""


class Direct(Base[Nothing, Nothing, Thin, Reply]):
    """Binds everything at once."""


class Written(Direct):
    """Writes its step out."""

    @step
    def local_update(self, clients: Clients[Nothing], down: Thin) -> tuple[Nothing, Scores]:  # type: ignore[override]
        """Another reply."""
        raise NotImplementedError


class Open(Base[Nothing, Nothing, Any, Message]):  # type: ignore[type-var]
    """Leaves the types open."""


class Bare(Base):  # type: ignore[type-arg]
    """Binds nothing at all."""


@pytest.mark.parametrize(
    ("method", "name", "message", "reply"),
    [
        (Direct, "local_update", Thin, Reply),
        (Direct, "fixed", Thin, Nothing),
        (Bound, "local_update", Model, Reply),
        (Bound, "fixed", Model, Nothing),
        (Further, "local_update", Model, Reply),
        (Written, "local_update", Thin, Scores),
        (Written, "fixed", Thin, Nothing),
        (Open, "local_update", None, None),
        (Bare, "local_update", None, None),
        (Bare, "fixed", None, Nothing),
        (Direct, "evaluate", None, Scores),
    ],
)
def test_type_variables_are_what_a_class_binds_them_to(
    method: type[Method[Any, Any]], name: str, message: type[Message] | None, reply: type[Message] | None
) -> None:
    assert signature(method, name) == Signature(message, reply)


def test_another_type_than_the_bound_one_is_refused() -> None:
    declared = signature(Bound, "local_update").reply
    assert isinstance(read(Reply(("a",)).pack(), declared, {"Thin": Thin}), Reply)
    with pytest.raises(IntegrityError, match="expected a Reply"):
        read(Thin(("a",)).pack(), declared, {"Thin": Thin})


@pytest.mark.parametrize("name", list(METHODS))
def test_every_step_of_every_method_declares_its_reply(name: str) -> None:
    """Only what is deployed for a test may be any message the method knows."""
    for step_name in METHODS[name].steps():
        declared = signature(METHODS[name], step_name)
        assert declared.reply is not None, step_name
        assert (declared.message is None) == (step_name == "evaluate"), step_name
