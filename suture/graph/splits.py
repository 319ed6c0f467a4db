"""Which nodes train, validate and test: over the whole graph, and as each client sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import ConfigError, DataError, PartitionError, unknown
from suture.graph.partition import Partition, stream
from suture.settings import SplitSettings

Roles = NDArray[np.int8]


class Role(IntEnum):
    """What a node is used for. Of two roles, the smaller one (NONE aside) wins on the uncut graph."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3


@dataclass(frozen=True)
class Split:
    """The role of every node.

    `roles` speaks of the uncut graph. Where clients share nodes and draw their own roles, a node that trains anywhere
    trains there, and one that validates anywhere (and trains nowhere) validates: nothing seen in training is tested.
    """

    roles: Tensor
    """int8 [N] over the whole graph."""
    client_roles: tuple[Tensor, ...]
    """int8 [N_k] per client, aligned with its members."""


def make_split(data: Data, partition: Partition, settings: SplitSettings, seed: int) -> Split:
    """Draws or reads the roles; every client must be left with a training node."""
    members = [nodes.numpy() for nodes in partition.members]
    if settings.scope == "client":
        _check_fractions(settings)
        labels = data.y.numpy()
        client_roles = [
            _drawn(labels[nodes], settings, stream(seed, f"split/client/{name}"))
            for name, nodes in zip(partition.ids, members, strict=True)
        ]
        roles = _combined(int(data.num_nodes), members, client_roles)
    else:
        roles = _whole_graph(data, settings, seed)
        client_roles = [roles[nodes] for nodes in members]
    _check_training_nodes(partition, client_roles, settings)
    return Split(torch.from_numpy(roles), tuple(torch.from_numpy(part) for part in client_roles))


def _whole_graph(data: Data, settings: SplitSettings, seed: int) -> Roles:
    if settings.scope == "given":
        return _given(data)
    if settings.scope == "global":
        _check_fractions(settings)
        return _drawn(data.y.numpy(), settings, stream(seed, "split/global"))
    raise unknown("split scope", settings.scope, ["global", "client", "given"])


def _drawn(labels: NDArray[np.int64], settings: SplitSettings, rng: Generator) -> Roles:
    """Roles by a random permutation; shares that sum to 1 leave no node without a role."""
    count = len(labels)
    nodes = rng.permutation(count)
    train, val, test = np.rint(np.cumsum([settings.train, settings.val, settings.test]) * count).astype(np.int64).tolist()
    if settings.balanced:
        training = _first_of_each_class(labels[nodes], settings.train)
        # What a class leaves was last in the order of before: without a new one, small classes would only be tested.
        nodes = np.concatenate([nodes[training], rng.permutation(nodes[~training])])
        train = int(training.sum())
        val = train + round(settings.val * count)
        test = val + round((count - val) * settings.test / (1 - settings.train - settings.val))
    roles = np.full(count, Role.NONE, dtype=np.int8)
    for role, start, end in zip((Role.TRAIN, Role.VAL, Role.TEST), (0, train, val), (train, val, test), strict=True):
        roles[nodes[start:end]] = role
    return roles


def _first_of_each_class(labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Marks equally many nodes of every class, together `share` of all; a class that has fewer gives all it has."""
    classes, class_of = np.unique(labels, return_inverse=True)
    by_class = np.argsort(class_of, kind="stable")
    starts = np.searchsorted(class_of[by_class], np.arange(len(classes)))
    place = np.empty(len(labels), dtype=np.int64)
    place[by_class] = np.arange(len(labels)) - starts[class_of[by_class]]
    return place < int(share * len(labels) / len(classes))


def _given(data: Data) -> Roles:
    roles = np.full(int(data.num_nodes), Role.NONE, dtype=np.int8)
    for name, role in (("train_mask", Role.TRAIN), ("val_mask", Role.VAL), ("test_mask", Role.TEST)):
        if name not in data:
            raise DataError(f"split.scope 'given' needs data.{name}, which is absent: use 'global' or 'client'")
        mask = data[name]
        if mask.dtype != torch.bool or tuple(mask.shape) != (data.num_nodes,):
            raise DataError(
                f"data.{name} must be one bool for each of the {data.num_nodes} nodes, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        if (roles[mask.numpy()] != Role.NONE).any():
            raise DataError(f"data.{name} shares nodes with another mask: each node may have one role")
        roles[mask.numpy()] = role
    return roles


def _combined(nodes: int, members: list[NDArray[np.int64]], client_roles: list[Roles]) -> Roles:
    """On the uncut graph a node takes the earliest of train, val and test that it has at any client."""
    nothing = np.int8(len(Role))
    roles = np.full(nodes, nothing, dtype=np.int8)
    for held, own in zip(members, client_roles, strict=True):
        roles[held] = np.minimum(roles[held], np.where(own == Role.NONE, nothing, own))
    return np.where(roles == nothing, np.int8(Role.NONE), roles)


def _check_fractions(settings: SplitSettings) -> None:
    for name in ("train", "val", "test"):
        if not getattr(settings, name) > 0:
            raise ConfigError(f"split.{name} must be > 0, got {getattr(settings, name)}")
    total = settings.train + settings.val + settings.test
    if total > 1 + 1e-9:
        raise ConfigError(f"split.train, split.val and split.test must sum to at most 1, got {total:g}")


def _check_training_nodes(partition: Partition, client_roles: list[Roles], settings: SplitSettings) -> None:
    bare = [k for k, roles in enumerate(client_roles) if not (roles == Role.TRAIN).any()]
    if bare:
        names = ", ".join(partition.ids[k] for k in bare[:5]) + (", ..." if len(bare) > 5 else "")
        change = "another split.scope" if settings.scope == "given" else "a larger split.train"
        raise PartitionError(
            f"{len(bare)} of {len(partition.ids)} clients have no training node ({names}; the first has "
            f"{len(client_roles[bare[0]])} nodes): use fewer clients, {change} or another seed"
        )
