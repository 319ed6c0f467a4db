"""What tests of single methods need: the small worlds of `suture.testing`, with our own methods made brief."""

from __future__ import annotations

from typing import Any

from suture import testing
from suture.method import Method
from suture.methods import own_fields
from suture.testing import world as _world

TOLERANCE = _world.TOLERANCE
World, small_world = _world.World, _world.small_world
Ending, run_to_end, ending, beginning = _world.Ending, _world.run_to_end, _world.ending, _world.beginning
assert_close, assert_same, assert_separable = _world.assert_close, _world.assert_same, _world.assert_separable

# Fields that only say for how long something is trained before the rounds.
BRIEF = {"adapt_epochs": 2, "generator_epochs": 3, "start_steps": 3, "distil_epochs": 1, "pseudo_nodes": 9}


def brief(method: type[Method[Any, Any]]) -> dict[str, Any]:
    """Hyper-parameters that make its tests short."""
    return {name: value for name, value in BRIEF.items() if name in own_fields(method)}


def small(method: type[Method[Any, Any]], **values: Any) -> Method[Any, Any]:
    """The method with two rounds of two local epochs on a small model."""
    return testing.small(method, **{**brief(method), **values})
