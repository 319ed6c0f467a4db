"""An owner's policy: what it takes part in and what may leave it. A TOML file that the owner alone writes.

methods = ["fedavg", "fedprox"]        # every registered one if absent
forbid_fields = ["loss", "signature"]  # message fields that must not leave, by name or path prefix
max_rounds = 200                       # iterations of one run
total_rounds = 1000                    # iterations of all runs together
max_message_bytes = 50_000_000
require_secure_aggregation = false
[privacy]                              # if present, only runs with DP-SGD within this budget
epsilon = 8.0
delta = 1e-5
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from suture.config import strict
from suture.engines.exchange import Refused
from suture.errors import ConfigError
from suture.federation.terms import Terms
from suture.message import Message
from suture.methods import method_class
from suture.settings import Count, Positive
from suture.storage import disk_errors


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that one run may cost this owner's training nodes."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


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
    max_message_bytes: Count | None = None
    """The largest reply."""
    require_secure_aggregation: bool = False
    """Refuse runs in which the coordinator would see this owner's own update."""
    privacy: Budget | None = None
    """Refuse runs without DP-SGD, or with a larger (epsilon, delta)."""

    def check(self, terms: Terms, spent_rounds: int, train_nodes: int) -> None:
        """Refuse terms that this owner does not accept."""
        if self.methods is not None and terms.method not in self.methods:
            raise Refused(f"the policy allows {', '.join(self.methods) or 'no method'}, not {terms.method}")
        if self.max_rounds is not None and terms.rounds > self.max_rounds:
            raise Refused(f"the policy allows {self.max_rounds} iterations a run, asked are {terms.rounds}")
        if self.total_rounds is not None and spent_rounds + terms.rounds > self.total_rounds:
            raise Refused(
                f"the policy's budget of {self.total_rounds} iterations is exceeded: {spent_rounds} are spent, "
                f"{terms.rounds} more are asked"
            )
        if self.require_secure_aggregation and not terms.secure:
            raise Refused("the policy requires secure aggregation, and this run has none")
        if self.privacy is not None:
            self._check_privacy(terms, train_nodes, self.privacy)

    def _check_privacy(self, terms: Terms, train_nodes: int, budget: Budget) -> None:
        sigma = float(getattr(terms.training, "dp_sigma", 0.0))
        if sigma <= 0:
            raise Refused("the policy has a privacy budget, and this run has no DP-SGD (training.dp_sigma is 0)")
        size = terms.training.batch_size or train_nodes
        steps = terms.rounds * terms.training.local_epochs * math.ceil(train_nodes / max(1, size))
        spent = gaussian_epsilon(sigma, steps, budget.delta)
        if spent > budget.epsilon:
            raise Refused(
                f"the privacy budget is exceeded: {steps} steps with noise {sigma:g} cost epsilon {spent:.3g} at delta "
                f"{budget.delta:g}, allowed is {budget.epsilon:g}"
            )

    def permit(self, step: str, reply: Message) -> None:
        """Refuse to send what the policy forbids."""
        for path in reply.tensors():
            for name in self.forbid_fields:
                if path == name or path.startswith(f"{name}."):
                    raise Refused(f"the policy forbids {name} to leave, and a reply to {step} holds {path}")
        if self.max_message_bytes is not None and (size := sum(reply.nbytes())) > self.max_message_bytes:
            raise Refused(f"the policy allows replies of {self.max_message_bytes} bytes, one to {step} has {size}")


def gaussian_epsilon(sigma: float, steps: int, delta: float) -> float:
    """An upper bound for `steps` Gaussian mechanisms: Renyi DP, converted at its best order, without amplification.

    RDP(a) = a T / (2 sigma^2), so epsilon = min over a of that plus log(1/delta) / (a - 1) = T / (2 s^2) + sqrt(2 T L) / s.
    Sampling makes it smaller in truth: an owner refuses rather too much than too little.
    """
    return steps / (2 * sigma**2) + math.sqrt(2 * steps * math.log(1 / delta)) / sigma


def load_policy(path: Path) -> Policy:
    """Read an owner's policy file; a mistake in it is said, not ignored."""
    with disk_errors("read", path):
        text = path.read_bytes()
    try:
        content = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the policy {path} is not valid TOML: {error}") from error
    hint = content.pop("privacy", None)
    policy = strict(Policy, content, "policy")
    if hint is not None:
        policy = Policy(**{**vars(policy), "privacy": strict(Budget, hint, "policy.privacy")})
    for name in policy.methods or ():
        method_class(name)
    return policy
