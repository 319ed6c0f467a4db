"""When an expert has learnt what it can: it is then trained and sent no more, and goes on speaking as it is.

    l_e  mean over owners of the mean log-likelihood of their validation examples, weighted as models are
    a common expert settles after `patience` rounds without a better l_e

Legend: K clients, E experts, of which owners' own come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from suture.core.message import Kind
from suture.core.tree import mean
from suture.methods.averaging import Up
from suture.methods.fedgram.messages import GramServer

COMMON, OWN = "common.", "own."
"""Names of parameters begin so, and with the expert's name."""
MIXTURE = "mixture"
"""Among parameters: what each expert has to say, [K, E]; a_bar on its way, a_k in a model that predicts."""
GOING = "going"
"""Among parameters on their way down: which experts are still trained; and 1, 0 for whoever was never told, [K, E + 1]."""
BEFORE = -1e9
"""Below every l_e."""
BESIDE_EXPERTS = frozenset({MIXTURE, GOING})


@dataclass(frozen=True)
class Validated(Up):
    """Client to server: also l_ke; and 1, all of it 0 for an owner without validation examples, [K, E + 1].

    A policy that keeps losses at home makes it 0 too: nobody settles by what that owner says.
    """

    validated: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Experts(GramServer):
    """What the server keeps: also the best l_e so far, and how many rounds ago that was, [1, E]."""

    best: Tensor
    since: Tensor


def prefixes(names: Iterable[str]) -> list[str]:
    """How the names of each common expert's parameters begin, in their order."""
    found = (name.split(".")[:2] for name in names if name.startswith(COMMON))
    return list(dict.fromkeys(f"{common}.{expert}." for common, expert in found))


def idle(names: Iterable[str], going_KE: Tensor) -> tuple[str, ...]:
    """The prefixes of the experts that have settled."""
    flags: Sequence[float] = going_KE[0].tolist()
    return tuple(prefix for prefix, flag in zip(prefixes(names), flags, strict=False) if flag == 0)


def settled(server: Experts, told_KE: Tensor, weight_K: Tensor, patience: int) -> Experts:
    """The server, when it has heard how likely everybody's validation examples are in this round."""
    told = mean({"told": told_KE}, weight_K)["told"]
    experts = told.shape[1] - 1
    if experts < 2 or patience == 0 or float(told[0, -1]) == 0:
        return server
    going, best, since = (value.to(told.device) for value in (server.params[GOING], server.best, server.since))
    now = told[:, :-1] / told[:, -1:]
    since = torch.where(now > best, 0, since + 1)
    common = torch.arange(experts, device=told.device) < len(prefixes(server.params))
    left = going[:, :-1] * ~((since >= patience) & common)
    params = server.params | {GOING: torch.cat([left, going[:, -1:]], 1)}
    return replace(server, params=params, best=torch.maximum(now, best), since=since)
