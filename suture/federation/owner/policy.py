"""An owner's policy: what it takes part in and what may leave it. A TOML file that the owner alone writes.

methods = ["fedavg", "fedprox"]        # every registered one if absent
forbid_fields = ["loss", "signature"]  # message fields that must not leave, by name or path prefix
max_rounds = 200                       # iterations of one run
total_rounds = 1000                    # iterations of all runs together
spare_asks = 8                         # steps of a run beyond its iterations, where some begin anew
max_message_bytes = 50_000_000
total_bytes = 10_000_000_000           # of everything that leaves, in all runs together
evaluations = "exact"                  # "exact", "rounded", "noised" or "off"; if absent, exact, but off with [privacy]
max_evaluations = 200                  # tests of one run; what is asked beyond them is told nothing
max_numbers = 100_000_000              # kept of one run: weights and moments
max_local_epochs = 10_000              # in one step
require_secure_aggregation = false
min_secure_members = 3                 # no sum of fewer owners is opened; with two, each can subtract itself
secure_with = ["clinic-b"]             # owners without whom no sum is opened, whoever is said to be lost
secure_colluders = 0                   # owners that may side with the coordinator; more of them allow fewer to get lost
secure_regroup = false                 # the same sum again, of other owners; it tells of who is in one of the two only
losses = false                         # zero in place of losses; if absent, told, but not with [privacy]
weighting = ["uniform", "rounded"]     # what may be told of its size (training.weighting); anything if absent
statistics = true                      # sums over its nodes, which some runs need first; if absent, not with [privacy]
[matching]                             # private matching of ids, before runs that stitch known links
allowed = true                         # if absent, yes, but not with [privacy]
only_with = ["clinic-b"]               # whose questions are answered; everybody's if absent
max_ids = 1_000_000                    # that may be asked for, in all matchings together
times = 100                            # matchings in which anything is answered, in all
required = false                       # no run that compares hashes of ids openly
[privacy]                              # if present, only runs that promise it, within this budget for all of them together
epsilon = 8.0                          # for training nodes: only runs with DP-SGD
edge_epsilon = 4.0                     # for edges: only runs with noised sums (model.kind=gap) or drawn edges (feddep)
delta = 1e-5
edge_delta = 0.3                       # of edge_epsilon; delta if absent, which is too little for drawn edges
evaluation_sigma = 20.0                # noise of evaluations = "noised", which then cost epsilon too
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from suture.config.strict import strict
from suture.core.message import UNDECLARED, Kind, Message
from suture.core.storage import disk_errors
from suture.errors import ConfigError
from suture.federation.owner.account import Caps
from suture.federation.owner.cost import Cost, Noise, edges_shown, noised_few
from suture.federation.owner.matching import MatchingRules
from suture.federation.owner.scores import Evaluations, without_losses
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.terms import Terms
from suture.method import Method
from suture.methods import DOOR, Methods
from suture.privacy.accountant import EDGES_OTHERWISE, TELLING, dp_sgd_epsilon
from suture.privacy.disclosure import EVALUATION_STEP
from suture.privacy.gdp import composed_mu, gaussian_epsilon
from suture.settings import Count, Positive, Weighting


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that all runs together may cost an owner's training nodes, or its edges, or each of both."""

    epsilon: Positive | None = None
    """For a training node: DP-SGD, and the sums of GAP at node level."""
    edge_epsilon: Positive | None = None
    """For an edge, in both directions: the sums of GAP at either level, and edges drawn once."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    edge_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of `edge_epsilon`; absent: `delta`. Drawn edges are a promise of delta alone, which must be at least their share."""
    evaluation_sigma: Positive = 20.0
    """Noise on the counts of `evaluations = "noised"`; see `suture.federation.owner.scores`."""

    @property
    def uncovered(self) -> frozenset[str]:
        """Kinds that nothing covers: for nodes all that is made of single ones, for edges what may count these itself."""
        return TELLING if self.epsilon is not None else EDGES_OTHERWISE


@dataclass(frozen=True)
class Policy:
    """What an owner accepts; the defaults accept every registered method."""

    methods: tuple[str, ...] | None = None
    """Methods it takes part in; absent: all."""
    forbid_fields: tuple[str, ...] = ()
    """Fields of replies that must not leave, such as `loss` or `params.layer2`."""
    max_rounds: Count | None = None
    """Iterations of one run."""
    total_rounds: Count | None = None
    """Iterations of all runs together."""
    spare_asks: Annotated[int, Field(ge=0)] = 8
    """Steps without noise that a run may ask for beyond what its iterations need: some may begin anew."""
    max_message_bytes: Count | None = None
    """The largest reply."""
    total_bytes: Count | None = None
    """Everything that leaves, in all runs together."""
    evaluations: Evaluations | None = None
    """How exactly test scores are told; absent: exactly, but not at all under a privacy budget."""
    max_evaluations: Count | None = None
    """Models tested in one run; of more nothing is told. Absent: twice as many as there are iterations, and `spare_asks`."""
    max_numbers: Count = 100_000_000
    """Numbers that are kept of one run: weights and their moments, four bytes each."""
    max_local_epochs: Count = 10_000
    """Epochs of one step."""
    require_secure_aggregation: bool = False
    """Refuse runs in which the coordinator would see this owner's own update."""
    min_secure_members: Annotated[int, Field(ge=2)] = 3
    """Secure aggregation: no sum of fewer owners is opened. With two, each can subtract itself."""
    secure_with: tuple[str, ...] = ()
    """Secure aggregation: owners without whom no sum is opened, so that nobody can say that they were lost."""
    secure_colluders: Annotated[int, Field(ge=0)] = 0
    """Secure aggregation: against how many owners that side with the coordinator it holds."""
    secure_regroup: bool = False
    """Secure aggregation: whether what was opened for some owners may be opened again for others. The two sums differ by
    what those have added who are in one of them only."""
    statistics: bool | None = None
    """Whether sums over its nodes (of features, classes, edge weights) may leave before a run that needs them; absent: yes,
    unless there is a privacy budget, as they leave without noise."""
    losses: bool | None = None
    """Whether losses leave; where not, zero stands in their place. Absent: yes, unless there is a privacy budget."""
    weighting: tuple[Weighting, ...] | None = None
    """What runs may ask to be told of its size, of the values of `training.weighting`; absent: anything."""
    privacy: Budget | None = None
    """Refuse runs that do not hide what it is for, and those with which all runs would cost more than this."""
    matching: MatchingRules = field(default_factory=MatchingRules)
    """What it answers when others ask which ids it holds."""

    @property
    def scores(self) -> Evaluations:
        """How exactly test scores are told."""
        return self.evaluations or ("exact" if self.privacy is None else "off")

    @property
    def tells_losses(self) -> bool:
        """Whether losses leave."""
        return self.privacy is None if self.losses is None else self.losses

    @property
    def tells_statistics(self) -> bool:
        """Whether sums over its nodes leave."""
        return self.privacy is None if self.statistics is None else self.statistics

    @property
    def held_back(self) -> str:
        """What a coordinator is told of what it will not be told; empty: nothing is held back."""
        losses = [] if self.tells_losses and self.scores == "exact" else ["losses"]
        scores = {"exact": [], "rounded": ["exact scores"], "noised": ["scores without noise"], "off": ["scores"]}
        return " and ".join([*scores[self.scores], *losses])

    def caps(self, terms: Terms, method: Method[Any, Any]) -> Caps:
        """How often a run is answered: what its plan can need, and what the policy spares or allows."""
        tests = 2 * terms.rounds + self.spare_asks if self.max_evaluations is None else self.max_evaluations
        asks = terms.rounds * method.asks_per_iteration
        return Caps(asks, self.spare_asks, tests, self.total_bytes, noised_few(method))

    def noise_of_tests(self) -> tuple[Noise, ...]:
        """What the scores of one run cost."""
        if self.scores != "noised" or self.privacy is None or self.max_evaluations is None:
            return ()
        return ((self.privacy.evaluation_sigma, 1.0, self.max_evaluations),)

    def check(self, terms: Terms, cost: Cost, earlier: Sequence[Cost]) -> None:
        """Refuse terms that this owner does not accept; `earlier` is what its other runs have cost."""
        if self.require_secure_aggregation and not terms.secure:
            raise Refused("the policy requires secure aggregation, and this run has none", Code.POLICY)
        if terms.is_census:
            self._check_statistics()
        if terms.is_matching:
            self._check_matching()
        spent_rounds = sum(other.rounds for other in earlier)
        if self.total_rounds is not None and spent_rounds + terms.rounds > self.total_rounds:
            raise Refused(
                f"the policy's budget of {self.total_rounds} iterations is exceeded: {spent_rounds} are spent, "
                f"{terms.rounds} more are asked",
                Code.BUDGET,
            )
        if not terms.is_before_run:
            self._check_run(terms, cost, earlier)

    def _check_run(self, terms: Terms, cost: Cost, earlier: Sequence[Cost]) -> None:
        if self.methods is not None and terms.method not in self.methods:
            raise Refused(f"the policy allows {', '.join(self.methods) or 'no method'}, not {terms.method}", Code.POLICY)
        if self.weighting is not None and terms.training.weighting not in self.weighting:
            raise Refused(
                f"the policy allows training.weighting {' or '.join(self.weighting) or 'of no kind'}, "
                f"this run has {terms.training.weighting}",
                Code.POLICY,
            )
        if self.max_rounds is not None and terms.rounds > self.max_rounds:
            raise Refused(f"the policy allows {self.max_rounds} iterations a run, asked are {terms.rounds}", Code.POLICY)
        if self.privacy is not None and self.privacy.epsilon is not None:
            _check_nodes(self.privacy.epsilon, self.privacy.delta, cost, earlier)
        if self.privacy is not None and self.privacy.edge_epsilon is not None:
            _check_edges(self.privacy.edge_epsilon, self.privacy.edge_delta or self.privacy.delta, cost, earlier)

    def check_method(self, terms: Terms, method: Method[Any, Any]) -> None:
        """Refuse a method that tells, as it is set, what this owner keeps to itself or hides by noise."""
        if self.privacy is not None and self.privacy.epsilon is not None and (why := method.beyond_dp_sgd()):
            raise Refused(f"the policy has a privacy budget, and {method.name} {why}", Code.POLICY)
        tested = self.caps(terms, method)
        if (why := method.tells_scores()) and (self.scores != "exact" or tested.tests < tested.asks):
            raise Refused(f"the policy keeps scores back, and {method.name} {why}", Code.POLICY)

    def _check_statistics(self) -> None:
        needed = "this run needs them first (to standardise features, to weigh classes or edges, or to choose a metric)"
        if self.statistics is False:
            raise Refused(f"the policy forbids statistics to leave, and {needed}", Code.POLICY)
        if self.statistics is None and self.privacy is not None:
            raise Refused(
                f"the policy has a privacy budget, statistics would leave without noise, and {needed}; "
                "its owner can allow them with statistics = true",
                Code.POLICY,
            )

    def _check_matching(self) -> None:
        if self.matching.allowed is False:
            raise Refused("the policy forbids matching of ids, and this run stitches links by it", Code.POLICY)
        if self.matching.allowed is None and self.privacy is not None:
            raise Refused(
                "the policy has a privacy budget, and no noise covers which ids are held, which matching tells whoever asks "
                "for them; its owner can allow it with allowed = true in [matching]",
                Code.POLICY,
            )

    def told(self, reply: Message) -> Message:
        """A step's reply as it may leave: under a privacy budget without losses, which no noise covers."""
        return reply if self.tells_losses else without_losses(reply)

    def permit(self, step: str, reply: Message) -> None:
        """Refuse to send what the policy forbids."""
        for path in reply.tensors():
            for name in self.forbid_fields:
                if path == name or path.startswith(f"{name}."):
                    raise Refused(f"the policy forbids {name} to leave, and a reply to {step} holds {path}", Code.POLICY)
            kind = type(reply).kind_of(path) or UNDECLARED
            if kind == Kind.STATISTICS and not self.tells_statistics:
                raise Refused(
                    f"the policy lets no statistics leave, and {path} of a reply to {step} is of that kind; its owner can "
                    "allow them with statistics = true",
                    Code.POLICY,
                )
            if self.privacy is not None and step != EVALUATION_STEP and kind in self.privacy.uncovered:
                raise Refused(f"the policy has a privacy budget, and {path} ({kind}) would leave without noise", Code.POLICY)
        if self.max_message_bytes is not None and (size := sum(reply.nbytes())) > self.max_message_bytes:
            raise Refused(
                f"the policy allows replies of {self.max_message_bytes} bytes, one to {step} has {size}", Code.POLICY
            )


def _check_nodes(allowed: float, delta: float, cost: Cost, earlier: Sequence[Cost]) -> None:
    if not cost.noise:
        raise Refused("the policy has a privacy budget, and this run has no DP-SGD (training.dp_sigma is 0)", Code.POLICY)
    before = [entry for other in earlier for entry in (*other.noise, *other.tests)]
    bounds = dp_sgd_epsilon([*before, *cost.noise, *cost.tests], delta)
    epsilon = min(bound for bound in bounds if bound is not None)
    if not epsilon <= allowed:
        steps = sum(entry[2] for entry in cost.noise)
        others = f" with {sum(entry[2] for entry in cost.tests)} tests" if cost.tests else ""
        others += f" with {len(earlier)} earlier runs" if before else ""
        raise Refused(
            f"the privacy budget is exceeded: {steps} steps with noise {cost.noise[0][0]:g}{others} cost epsilon "
            f"{epsilon:.3g} at delta {delta:g}, allowed is {allowed:g}",
            Code.BUDGET,
        )


def _check_edges(allowed: float, delta: float, cost: Cost, earlier: Sequence[Cost]) -> None:
    if not cost.edges and not cost.drawn:
        raise Refused(
            "the policy has a privacy budget for edges, and this run hides none (that needs model.kind=gap with gap_sigma "
            "above 0, or feddep, which draws edges once)",
            Code.POLICY,
        )
    before = [entry for other in earlier for entry in other.edges]
    others = f" with {len(earlier)} earlier runs" if before or any(other.drawn for other in earlier) else ""
    shown = edges_shown([*earlier, cost])
    mus = [composed_mu(noise, hops) for noise, _, hops in (*before, *cost.edges)]
    # What was drawn takes its part of delta; what is left of it is there for the noise.
    if shown > delta or (mus and shown == delta):
        raise Refused(
            f"the privacy budget for edges is exceeded: an edge is drawn, and seen, with probability {shown:.3g}{others}; "
            f"allowed is a delta of {delta:g} (edge_delta of the policy, edge_share of the run)",
            Code.BUDGET,
        )
    epsilon = gaussian_epsilon(math.hypot(*mus), delta - shown) if mus else 0.0
    if not epsilon <= allowed:
        hops = sum(entry[2] for entry in cost.edges)
        raise Refused(
            f"the privacy budget for edges is exceeded: {hops} noised sums{others} cost epsilon {epsilon:.3g} at delta "
            f"{delta:g}, allowed is {allowed:g}",
            Code.BUDGET,
        )


def load_policy(path: Path, door: Methods = DOOR) -> Policy:
    """Read an owner's policy file; a mistake in it is said, not ignored."""
    with disk_errors("read", path):
        text = path.read_bytes()
    try:
        content = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the policy {path} is not valid TOML: {error}") from error
    tables: dict[str, type[Any]] = {"privacy": Budget, "matching": MatchingRules}
    hints = {name: content.pop(name) for name in tables if name in content}
    policy = strict(Policy, content, "policy")
    policy = replace(policy, **{name: strict(tables[name], hint, f"policy.{name}") for name, hint in hints.items()})
    budget = policy.privacy
    if budget is not None and budget.epsilon is None and budget.edge_epsilon is None:
        raise ConfigError(f"the policy {path} has a [privacy] budget without a number: give epsilon, edge_epsilon or both")
    counted = budget is not None and budget.epsilon is not None and policy.max_evaluations is not None
    if policy.scores == "noised" and not counted:
        raise ConfigError(
            f'the policy {path} has evaluations = "noised", which are accounted for: it also needs max_evaluations and a '
            "[privacy] budget with epsilon"
        )
    for name in policy.methods or ():
        door.by_name(name)
    return policy
