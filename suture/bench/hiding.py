"""A prepared graph without its test: for whoever must choose without having seen it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suture.errors import ConfigError
from suture.graph.splits import Role, Split
from suture.runs.prepare import Prepared


def without_test(prepared: Prepared) -> Prepared:
    """The same graph, cut and pieces, in which no node and no pair is for testing: nothing is measured on them.

    They are still there, as nodes and links that nobody trains on are: messages pass over them as before.
    """
    cut, clients = prepared.cut, prepared.clients
    if prepared.task.link and any(cut.partition.graphless):
        raise ConfigError("links of clients without edges are held out anew by methods; set partition.graphless_fraction=0")
    split = Split(_hidden(cut.split.roles), tuple(map(_hidden, cut.split.client_roles)))
    pairs = None if clients.pairs is None else replace(clients.pairs, role=_hidden(clients.pairs.role))
    pieces = replace(clients, role=_hidden(clients.role), pairs=pairs)
    return replace(prepared, cut=replace(cut, split=split), clients=pieces)


def _hidden(role: Tensor) -> Tensor:
    return torch.where(role == Role.TEST, torch.zeros_like(role) + int(Role.NONE), role)
