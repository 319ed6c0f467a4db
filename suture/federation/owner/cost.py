"""What a run takes from an owner's budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.core.storage import Json, damaged, read_json
from suture.federation.wire.terms import Terms
from suture.method import Method
from suture.privacy.accountant import ClientFacts, history_of
from suture.privacy.mechanisms import NoisyGradients

Noise = tuple[float, float, int]
"""(noise, share of the nodes in a step, steps), as `suture.privacy.accountant` composes them."""


@dataclass(frozen=True)
class Cost:
    """What a run takes from an owner's budgets, all of it when the run is opened."""

    rounds: int
    """Iterations."""
    noise: tuple[Noise, ...] = ()
    """DP-SGD."""
    tests: tuple[Noise, ...] = ()
    """Scores with noise."""

    def as_json(self) -> dict[str, Json]:
        """For a line of the account."""
        return {
            "rounds": self.rounds,
            "noise": [list(entry) for entry in self.noise],
            "tests": [list(entry) for entry in self.tests],
        }

    @staticmethod
    def from_json(content: Any) -> Cost:
        """As `as_json` wrote it; raises what anything else makes Python raise."""
        noise, tests = (
            tuple((float(sigma), float(share), int(steps)) for sigma, share, steps in content.get(name, ()))
            for name in ("noise", "tests")
        )
        return Cost(int(content["rounds"]), noise, tests)

    @staticmethod
    def read_spent(path: Path) -> dict[str, Cost]:
        """What runs have cost, by their names, as owners of earlier versions have written it down."""
        content: dict[str, Any] = read_json(path, "record of what runs have cost") if path.exists() else {}
        try:
            return {run: Cost.from_json(cost) for run, cost in content.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(path) from error


def cost_of(terms: Terms, method: Method[Any, Any], facts: ClientFacts, tests: Sequence[Noise] = ()) -> Cost:
    """As if every noisy step were asked as often as a run can ask it: an owner does not run it more often than that."""
    noisy = noisy_steps(method)
    times = terms.rounds * method.asks_per_iteration
    return Cost(terms.rounds, tuple(history_of(noisy, facts, {one.step: times for one in noisy})), tuple(tests))


def noisy_steps(method: Method[Any, Any]) -> list[NoisyGradients]:
    """The steps that add noise."""
    return [used for used in method.mechanisms() if isinstance(used, NoisyGradients) and used.sigma > 0]
