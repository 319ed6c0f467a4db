"""Free tests for a method of your own: what must hold for every method, whatever it computes.

With pytest, in one line each for import and class; pytest itself is not needed by this package:

    from suture.testing import MethodTests

    class TestMine(MethodTests):
        method = Mine

Anywhere else, `suture.testing.check(Mine)` raises an `AssertionError` with a sentence. Tests need seconds, on small graphs
of four clients. `suture.testing.world` has these graphs, and what one needs to write tests of one's own with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from unittest import SkipTest

from suture.method import Method
from suture.testing.properties import PROPERTIES as PROPERTIES
from suture.testing.properties import Property as Property
from suture.testing.world import World as World
from suture.testing.world import small as small
from suture.testing.world import small_world as small_world


class MethodTests:
    """Inherit from this in a class named Test..., and name the method."""

    method: ClassVar[type[Method[Any, Any]]]
    """The method to test."""
    values: ClassVar[Mapping[str, Any]] = {}
    """Hyper-parameters for all tests, such as fewer epochs of something that is trained before the rounds."""


def _as_test(hold: Property) -> Callable[[MethodTests], None]:
    def test(self: MethodTests) -> None:
        hold(self.method, self.values)

    test.__doc__ = hold.__doc__
    return test


for _name, _property in PROPERTIES.items():
    setattr(MethodTests, f"test_{_name}", _as_test(_property))


def check(method: type[Method[Any, Any]], **values: Any) -> None:
    """Every test of `MethodTests`, one after the other; `values` are hyper-parameters."""
    for name, hold in PROPERTIES.items():
        try:
            hold(method, values)
        except SkipTest:
            continue
        except Exception as error:
            what = name.replace("_", " ")
            raise AssertionError(f"{method.__name__} fails the test `{what}`: {type(error).__name__}: {error}") from error
