"""What a run takes from an owner's budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.core.storage import Json, damaged, read_json
from suture.federation.wire.terms import Terms
from suture.method import Method
from suture.privacy.accountant import ClientFacts, history_of
from suture.privacy.mechanisms import DrawnEdges, NoisyGradients, NoisyLinks, NoisyMeans, NoisyRows, NoisySums

Noise = tuple[float, float, int]
"""(noise, share of the nodes in a step, steps), as `suture.privacy.accountant` composes them."""
Drawn = tuple[float, str]
"""(probability with which an edge was drawn, fingerprint of the data): of the same data the same edges are, in any run."""


@dataclass(frozen=True)
class Cost:
    """What a run takes from an owner's budgets, all of it when the run is opened."""

    rounds: int
    """Iterations."""
    noise: tuple[Noise, ...] = ()
    """DP-SGD, and at node level the sums of GAP."""
    tests: tuple[Noise, ...] = ()
    """Scores with noise."""
    edges: tuple[Noise, ...] = ()
    """Sums over neighbours with noise (GAP), as one edge sees them."""
    drawn: tuple[Drawn, ...] = ()
    """Edges drawn once, of which alone all is computed that leaves."""

    def as_json(self) -> dict[str, Json]:
        """For a line of the account."""
        kinds = {"noise": self.noise, "tests": self.tests, "edges": self.edges, "drawn": self.drawn}
        return {"rounds": self.rounds, **{name: [list(entry) for entry in kind] for name, kind in kinds.items()}}

    @staticmethod
    def from_json(content: Any) -> Cost:
        """As `as_json` wrote it; raises what anything else makes Python raise."""
        noise, tests, edges = (
            tuple((float(sigma), float(share), int(steps)) for sigma, share, steps in content.get(name, ()))
            for name in ("noise", "tests", "edges")
        )
        drawn = tuple((float(share), str(data)) for share, data in content.get("drawn", ()))
        return Cost(int(content["rounds"]), noise, tests, edges, drawn)

    @staticmethod
    def read_spent(path: Path) -> dict[str, Cost]:
        """What runs have cost, by their names, as owners of earlier versions have written it down."""
        content: dict[str, Any] = read_json(path, "record of what runs have cost") if path.exists() else {}
        try:
            return {run: Cost.from_json(cost) for run, cost in content.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(path) from error


def cost_of(terms: Terms, method: Method[Any, Any], facts: ClientFacts, data: str, tests: Sequence[Noise] = ()) -> Cost:
    """As if every noisy step were asked as often as a run can ask it: an owner does not run it more often than that.

    `data` is the fingerprint of the owner's data.
    """
    noisy = noisy_steps(method)
    times = terms.rounds * method.asks_per_iteration
    steps = history_of(noisy, facts, {one.step: times for one in noisy})
    # Sums over neighbours are computed once, whatever is asked.
    summed = [used for used in method.mechanisms() if isinstance(used, NoisySums)]
    nodes = [(used.multiplier, 1.0, used.hops) for used in summed if used.most]
    edges = [(used.edge_multiplier, 1.0, used.hops) for used in summed]
    drawn = [(used.share, data) for used in method.mechanisms() if isinstance(used, DrawnEdges)]
    return Cost(terms.rounds, (*steps, *nodes), tuple(tests), tuple(edges), tuple(drawn))


def edges_shown(costs: Iterable[Cost]) -> float:
    """How likely an edge was drawn in any of these: of the same data once for all runs, of others each time anew."""
    largest: dict[str, float] = {}
    for share, data in (one for cost in costs for one in cost.drawn):
        largest[data] = max(share, largest.get(data, 0.0))
    return 1 - math.prod(1 - share for share in largest.values())


def noisy_steps(method: Method[Any, Any]) -> list[NoisyGradients]:
    """The steps that train with noise."""
    return [used for used in method.mechanisms() if isinstance(used, NoisyGradients) and used.sigma > 0]


def noised_few(method: Method[Any, Any]) -> dict[str, int]:
    """The steps that tell means, sums or rows with noise on them, and how often a run asks for each: once, or so many times.

    Of more answers one could take the mean.
    """
    found: dict[str, int] = {}
    for used in method.mechanisms():
        if isinstance(used, NoisyMeans):
            found[used.step] = 1
        elif isinstance(used, NoisyLinks):
            found |= dict.fromkeys(used.steps, 1)
        elif isinstance(used, NoisyRows):
            found[used.step] = used.times
    return found
