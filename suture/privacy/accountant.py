r"""What a run's guarantees are worth: epsilon and delta of every client, and what they mean in words.

Mechanisms that are accounted for; a method says which of them it uses (`Method.mechanisms`).

DP-SGD (`privacy.mechanisms`) hides whether one training node's loss was in the sums a client trained on. Its steps are
composed by Opacus's accountants: Renyi (RDP) always, and the tighter numerical one (PRV) where there is anything to tighten.

GAP (`suture.nn.aggregates`) hides one edge, or one node, in sums over neighbours that are computed once. All that a client
sends is made of them, so that at edge level it covers everything but what counts edges in another way (a census, say). Its
hops are Gaussian mechanisms, composed exactly (`privacy.gdp`); at node level together with the steps of DP-SGD, which
cover the node's own loss.

NFDP, the noise-free edge-LDP of FedDEP (Zhang et al., SDM 2024, theorem 3.1), hides whether one edge is in a node's list of
D neighbours, of which d are sampled. One draw is (epsilon, delta)-private with

    without replacement, d < D    ln((D + 1) / (D + 1 - d)),  d / D                            theorem B.1
    with replacement              d ln((D + 1) / D),          1 - ((D - 1) / D)^d              theorem B.2

k = L N draws (L layers, N epochs) compose (theorem B.3, Kairouz et al.), and r amplifies (theorem B.4). The paper prints

    delta~ = (1 - delta)^k (1 - delta')         where its own source has    1 - (1 - delta)^k (1 - delta').

Printed, more training makes delta smaller; correctly, delta grows to one. Both are computed here.

Where all that leaves was computed from edges that were drawn once, with probability q (`graph.drawn`), there is nothing to
compose: an edge changes nothing unless it was drawn, which is (0, q), for the edge in both directions and at any degree.

Other decisions:
- D is the real degree of each node. The paper's D is a minimum, but it inserts numbers above the mean degree of its graphs.
  A node without neighbours counts as one with a single neighbour: the one it would have in a list that differs by an edge.
- The paper takes theorem B.2 where d >= D, as if neighbours were then drawn with replacement. Without replacement such a
  node gives all of its neighbours every time, so its delta is one.
- Where edges have weights, a drawn neighbour counts by what all of them weigh together (`suture.nn.sampler`), so that also
  those who were not drawn are seen: nothing is promised.
- DP-SGD covers the weights. Where a client also sends, without noise, something made of single nodes (embeddings, say),
  its promise is as good as none.
- A verdict on NFDP is on what is composed, before amplification: r thins out what others generate from prototypes, but the
  prototypes themselves have left the client by then.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from suture.core.message import UNDECLARED, Kind
from suture.graph.batch import GraphBatch
from suture.method import Method
from suture.privacy.disclosure import Disclosure
from suture.privacy.gdp import composed_mu, gaussian_epsilon
from suture.privacy.mechanisms import (
    DrawnEdges,
    NoisyGradients,
    NoisyLinks,
    NoisyMeans,
    NoisyRows,
    NoisySums,
    SampledNeighbours,
)

SLACK = 1e-5
"""delta' of the composition of NFDP, and the delta at which DP-SGD's epsilon is read off."""
TELLING = frozenset(
    {
        *(Kind.EMBEDDINGS, Kind.PREDICTIONS, Kind.FEATURES, Kind.EDGES, Kind.ADDRESSES),
        *(Kind.PROTOTYPES, Kind.GRADIENTS, UNDECLARED),
    }
)
"""Kinds that are made of single nodes, or could be."""
EDGES_OTHERWISE = frozenset({Kind.EDGES, Kind.ADDRESSES, Kind.PREDICTIONS, Kind.STATISTICS, UNDECLARED})
"""Kinds that may be made of edges without the layers of a network."""
VACUOUS_EPSILON, VACUOUS_DELTA = 20.0, 0.5
LARGE_DELTA = 1e-3
"""Above it delta is no remote chance, and is told beside epsilon."""
QUANTILES = (0.0, 0.25, 0.5, 0.75)
"""Nodes by degree for which NFDP is spelled out; the first is the worst."""


@dataclass(frozen=True)
class Bound:
    """(epsilon, delta)."""

    epsilon: float
    delta: float

    @property
    def vacuous(self) -> bool:
        """Whether it promises nothing anybody could rely on."""
        return not (self.epsilon <= VACUOUS_EPSILON and self.delta < VACUOUS_DELTA)

    def in_words(self) -> str:
        """A verdict for people who do not read epsilons."""
        if self.delta >= VACUOUS_DELTA:
            return f"no meaningful protection: with a probability of up to {self.delta:.3g} nothing at all is hidden"
        if self.vacuous:
            return f"no meaningful protection: what is seen may be e^{self.epsilon:.3g} times as likely with a record as not"
        strength = "strong" if self.epsilon <= 1 else "moderate" if self.epsilon <= 5 else "weak"
        factor = math.exp(self.epsilon)
        if self.delta > LARGE_DELTA:
            otherwise = f"otherwise nothing seen is more than {factor:.3g} times as likely with a record as without"
            return f"weak protection: with a probability of up to {self.delta:.3g} nothing is hidden, {otherwise}"
        return f"{strength} protection: nothing seen is more than {factor:.3g} times as likely with a record as without"


NOTHING = Bound(math.inf, 1.0)
"""No promise at all."""


@dataclass(frozen=True)
class ClientFacts:
    """What an account needs to know of a client: its training examples, and how many nodes have which degree."""

    client: str
    train: int
    degrees: Mapping[int, int]
    weighted: bool = False
    """Whether its edges have weights."""

    def as_json(self) -> dict[str, object]:
        """For a run folder."""
        degrees = {str(degree): nodes for degree, nodes in self.degrees.items()}
        return {"client": self.client, "train": self.train, "degrees": degrees, "weighted": self.weighted}

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> ClientFacts:
        """Back from a run folder."""
        degrees = {int(degree): int(nodes) for degree, nodes in line["degrees"].items()}
        return ClientFacts(str(line["client"]), int(line["train"]), degrees, bool(line.get("weighted", False)))

    def degree_at(self, quantile: float) -> int:
        """The degree that this share of nodes does not exceed; the lowest at 0."""
        wanted, seen = quantile * sum(self.degrees.values()), 0
        for degree in sorted(self.degrees):
            seen += self.degrees[degree]
            if seen >= max(wanted, 1):
                return degree
        return 0


def facts_of(graph: GraphBatch) -> tuple[ClientFacts, ...]:
    """The facts of every client."""
    degree, facts = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes), []
    bounds = graph.segments.bounds
    for k, name in enumerate(graph.ids):
        values, counts = torch.unique(degree[bounds[k] : bounds[k + 1]], return_counts=True)
        histogram = dict(zip(values.tolist(), counts.tolist(), strict=True))
        facts.append(ClientFacts(name, int(graph.num_train[k]), histogram, graph.edge_weight is not None))
    return tuple(facts)


# NFDP


def one_draw(degree: int, fanout: int, *, replace: bool) -> Bound:
    """Theorems B.1 and B.2 for the sampling that is really done."""
    neighbours = max(degree, 1)
    if replace:
        return Bound(fanout * math.log1p(1 / neighbours), 1 - ((neighbours - 1) / neighbours) ** fanout)
    drawn = min(fanout, neighbours)
    return Bound(math.log((neighbours + 1) / (neighbours + 1 - drawn)), drawn / neighbours)


def one_draw_as_printed(degree: int, fanout: int) -> Bound:
    """Lemma B.1: theorem B.1 where d < D, theorem B.2 otherwise."""
    return one_draw(degree, fanout, replace=fanout >= degree)


def composed_epsilon(epsilons: Sequence[float], times: int, slack: float) -> float:
    """Kairouz, Oh and Viswanath (ICML 2015), theorem 3.5: each of `epsilons` spent `times` times; theorem B.3 if equal."""
    total = times * sum(epsilons)
    squares = times * sum(e * e for e in epsilons)
    drift = times * sum(e * math.tanh(e / 2) for e in epsilons)  # (e^x - 1) / (e^x + 1)
    tail = min(math.log(math.e + math.sqrt(squares) / slack), math.log(1 / slack))
    return min(total, drift + math.sqrt(2 * squares * tail))


def composed(draws: Sequence[Bound], times: int, slack: float = SLACK) -> Bound:
    """Theorem B.3 as its source has it."""
    kept = math.prod((1 - draw.delta) ** times for draw in draws) * (1 - slack)
    return Bound(composed_epsilon([draw.epsilon for draw in draws], times, slack), 1 - kept)


def composed_as_printed(draws: Sequence[Bound], times: int, slack: float = SLACK) -> Bound:
    """Lemma B.2 and theorem 3.1, without "1 -"."""
    kept = math.prod((1 - draw.delta) ** times for draw in draws) * (1 - slack)
    return Bound(composed_epsilon([draw.epsilon for draw in draws], times, slack), kept)


def amplified(bound: Bound, rate: float) -> Bound:
    """Theorem B.4 with its brackets put right: ln(1 + r (e^epsilon - 1)), r delta."""
    if rate == 0:
        return Bound(0.0, 0.0)
    return Bound(bound.epsilon + math.log(rate + (1 - rate) * math.exp(-bound.epsilon)), rate * bound.delta)


# DP-SGD

History = list[tuple[float, float, int]]
"""Steps of DP-SGD as accountants want them: (noise multiplier, sampling rate, number of steps)."""


def dp_sgd_epsilon(history: History, delta: float = SLACK) -> tuple[float, float | None]:
    """(RDP, PRV), the latter None where the former is vacuous already."""
    from opacus.accountants import PRVAccountant, RDPAccountant  # seconds to import, and few runs need them

    spent = [entry for entry in history if entry[1] > 0 and entry[2] > 0]
    if not spent:
        return 0.0, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        renyi = RDPAccountant()
        renyi.history = list(spent)
        upper = float(renyi.get_epsilon(delta=delta))
        if not upper <= VACUOUS_EPSILON:
            return upper, None
        numerical = PRVAccountant()
        numerical.history = list(spent)
        return upper, float(numerical.get_epsilon(delta=delta))


def history_of(used: Sequence[NoisyGradients], facts: ClientFacts, times: Mapping[str, int]) -> History:
    """All that a client did; `times` is how often each step of the method was asked of it."""
    history = []
    for mechanism in used:
        size = min(mechanism.batch_size or facts.train, facts.train)
        if size:
            steps = times.get(mechanism.step, 0) * mechanism.epochs * -(-facts.train // size)
            history.append((mechanism.sigma, size / facts.train, steps))
    return history


# The account of a run


@dataclass(frozen=True)
class Guarantee:
    """What one mechanism promises one client."""

    client: str
    mechanism: str
    """DP-SGD, GAP, NFDP, Gaussian means, Gaussian rows or Gaussian sums."""
    hides: str
    bound: Bound
    """What counts: composed correctly, for the client's worst node."""
    detail: Mapping[str, Bound]
    """The same bound by other ways of accounting."""
    by_degree: tuple[tuple[float, int, Bound], ...] = ()
    """NFDP: (share of nodes up to this degree, degree, composed bound)."""
    uncovered: tuple[str, ...] = ()
    """What else is sent, without any noise."""

    @property
    def vacuous(self) -> bool:
        """Whether it promises nothing anybody could rely on."""
        return self.bound.vacuous or not TELLING.isdisjoint(self.uncovered)

    def in_words(self) -> str:
        """A verdict for people who do not read epsilons."""
        beside = ", ".join(self.uncovered)
        if self.vacuous and not self.bound.vacuous:
            return f"no meaningful protection: the weights are protected, but sent without noise beside them are {beside}"
        return self.bound.in_words() + (f"; not covered: {beside}" if beside else "")

    def as_json(self) -> dict[str, object]:
        """For `suture privacy --json`."""
        return {
            "client": self.client,
            "mechanism": self.mechanism,
            "hides": self.hides,
            "epsilon": _finite(self.bound.epsilon),
            "delta": self.bound.delta,
            "vacuous": self.vacuous,
            "in_words": self.in_words(),
            "not_covered": list(self.uncovered),
            "other_accounts": {
                name: {"epsilon": _finite(other.epsilon), "delta": other.delta} for name, other in self.detail.items()
            },
            "by_degree": [
                {"quantile": q, "degree": d, "epsilon": _finite(b.epsilon), "delta": b.delta} for q, d, b in self.by_degree
            ],
        }


def account(
    method: Method[Any, Any],
    facts: Iterable[ClientFacts],
    disclosure: Disclosure,
    delta: float = SLACK,
) -> tuple[Guarantee, ...]:
    """Every client's guarantees for what it has sent so far; none if the method has no mechanism."""
    noisy = [m for m in method.mechanisms() if isinstance(m, NoisyGradients)]
    sampled = [m for m in method.mechanisms() if isinstance(m, SampledNeighbours) and m.fanouts]
    summed = [m for m in method.mechanisms() if isinstance(m, NoisySums)]
    known: dict[tuple[tuple[float, float, int], ...], tuple[float, float | None]] = {}
    found, beside = [], tuple(disclosure.beside_the_weights())
    for client in facts:
        times: Mapping[str, int] = disclosure.replies.get(client.client, {})
        if noisy:
            history = history_of(noisy, client, times)
            key = tuple(history)
            if key not in known:
                known[key] = dp_sgd_epsilon(history, delta)
            renyi, numerical = known[key]
            detail = {"RDP": Bound(renyi, delta)} | ({} if numerical is None else {"PRV": Bound(numerical, delta)})
            best = Bound(renyi if numerical is None else min(renyi, numerical), delta)
            found.append(Guarantee(client.client, "DP-SGD", "one training node's loss", best, detail, uncovered=beside))
        found += [sums_guarantee(used, client, noisy, disclosure, delta) for used in summed]
        found += [_sampling_guarantee(mechanism, client, times, delta) for mechanism in sampled]
        found += [_drawing_guarantee(m, client) for m in method.mechanisms() if isinstance(m, DrawnEdges)]
        found += [_means_guarantee(m, client, times, delta) for m in method.mechanisms() if isinstance(m, NoisyMeans)]
        for used in (m for m in method.mechanisms() if isinstance(m, NoisyRows | NoisyLinks)):
            found += _by_level(used, client, times, delta)
    return tuple(found)


def sums_guarantee(
    used: NoisySums, client: ClientFacts, noisy: Sequence[NoisyGradients], disclosure: Disclosure, delta: float
) -> Guarantee:
    """What noise on sums promises: at edge level by itself, at node level with the steps of DP-SGD."""
    times: Mapping[str, int] = disclosure.replies.get(client.client, {})
    mu = composed_mu(used.multiplier, used.hops) if times else 0.0
    alone = Bound(gaussian_epsilon(mu, delta), delta)
    if not used.most:
        beside = tuple(kind for kind in disclosure.left() if kind in EDGES_OTHERWISE)
        return Guarantee(client.client, "GAP", "one edge", alone, {"exact": alone}, uncovered=beside)
    history = [*history_of(noisy, client, times), *([(used.multiplier, 1.0, used.hops)] if times else [])]
    bounds = dp_sgd_epsilon(history, delta)
    both = Bound(min(bound for bound in bounds if bound is not None), delta) if noisy else NOTHING
    hides = "one node with its loss and whom it tells"
    beside = tuple(disclosure.beside_the_weights())
    return Guarantee(client.client, "GAP", hides, both, {"sums alone": alone}, uncovered=beside)


def _sampling_guarantee(used: SampledNeighbours, client: ClientFacts, times: Mapping[str, int], slack: float) -> Guarantee:
    epochs, unit = times.get(used.step, 0) * used.epochs, "one edge in a node's list of neighbours"
    if client.weighted:
        return Guarantee(client.client, "NFDP", unit, NOTHING, {"one draw": NOTHING}, uncovered=used.uncovered)

    def correct(degree: int) -> Bound:
        return composed([one_draw(degree, fanout, replace=used.replace) for fanout in used.fanouts], epochs, slack)

    worst = client.degree_at(0.0)
    printed = composed_as_printed([one_draw_as_printed(worst, fanout) for fanout in used.fanouts], epochs, slack)
    detail = {
        "one draw": one_draw(worst, used.fanouts[0], replace=used.replace),
        "as printed": amplified(printed, used.rate),
        "amplified": amplified(correct(worst), used.rate),
    }
    degrees = [(quantile, client.degree_at(quantile)) for quantile in QUANTILES]
    by_degree = tuple((quantile, degree, correct(degree)) for quantile, degree in degrees)
    return Guarantee(client.client, "NFDP", unit, correct(worst), detail, by_degree, used.uncovered)


def _drawing_guarantee(used: DrawnEdges, client: ClientFacts) -> Guarantee:
    """An edge changes nothing unless it was drawn, whatever is computed afterwards and however often."""
    bound = Bound(0.0, used.share)
    return Guarantee(client.client, "NFDP", "one edge, in both directions", bound, {"one draw": bound})


def _means_guarantee(used: NoisyMeans, client: ClientFacts, times: Mapping[str, int], delta: float) -> Guarantee:
    told = times.get(used.step, 0)
    exact = Bound(gaussian_epsilon(composed_mu(used.sigma, told), delta), delta)
    hides = "one node's part of a mean, given the network and the groups"
    return Guarantee(client.client, "Gaussian means", hides, exact, {"exact": exact})


def _by_level(used: NoisyRows | NoisyLinks, client: ClientFacts, times: Mapping[str, int], delta: float) -> list[Guarantee]:
    """What noise on what is told over links promises each thing that it hides."""
    found = []
    for level in used.levels(times, max(client.degrees, default=0)):
        exact = Bound(gaussian_epsilon(level.mu, delta), delta)
        beside = tuple(used.uncovered)
        found.append(Guarantee(client.client, level.name, level.hides, exact, {"exact": exact}, uncovered=beside))
    return found


def worst_of(guarantees: Iterable[Guarantee]) -> Guarantee | None:
    """The weakest promise; None if there is none at all."""
    return max(guarantees, key=lambda g: (g.vacuous, g.bound.delta, g.bound.epsilon), default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
