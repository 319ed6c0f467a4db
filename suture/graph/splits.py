"""Which nodes train, validate and test: over the whole graph, and as each client sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import ConfigError, DataError, PartitionError, some_of, unknown
from suture.graph.data import MASKS, labelled, single_split, splits_in
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
    notes: tuple[str, ...] = ()
    """What was assumed."""


def given_masks(data: Data) -> tuple[str, ...]:
    """Names of the masks that mark any labelled node."""
    known = labelled(data)
    return tuple(name for name in MASKS if data.get(name) is not None and bool(data[name][known].any()))


def make_split(
    data: Data, partition: Partition, settings: SplitSettings, seed: int, among_all: Collection[str] | None = None
) -> Split:
    """Draws or reads the roles; nodes without a label have none. Every client must be left with a training node.

    With `auto`, clients may be left without: an owner may have no labels, and be served all the same. Where `data` is one
    owner's alone, `among_all` are the masks that any owner has, so that all decide alike.
    """
    members, known = [nodes.numpy() for nodes in partition.members], labelled(data).numpy()
    masks = among_all if among_all is not None else [name for name in MASKS if data.get(name) is not None]
    notes: list[str] = []
    if settings.scope in ("given", "auto"):
        data = _of_several(data, settings.number, seed, notes)
    if settings.scope == "client" or (settings.scope == "auto" and not masks):
        client_roles = _drawn_inside(data, partition.ids, members, known, settings, seed)
        roles = _combined(int(data.num_nodes), members, client_roles)
    else:
        roles = _whole_graph(data, known, settings, seed)
        validates = bool((roles == Role.VAL).any()) if among_all is None else MASKS[1] in among_all
        if settings.scope == "auto" and not validates and (roles == Role.TRAIN).any():
            roles = _completed(roles, partition, settings, seed, notes)
        client_roles = [roles[nodes] for nodes in members]
    if settings.scope != "auto":
        _check_training_nodes(partition, client_roles, settings)
    elif among_all is None:
        _check_roles(roles, known)
    notes += _notes(partition, roles, client_roles, known, settings, bool(masks))
    return Split(torch.from_numpy(roles), tuple(torch.from_numpy(part) for part in client_roles), tuple(notes))


def _of_several(data: Data, number: int, seed: int, notes: list[str]) -> Data:
    """The graph with one split, where its masks hold several."""
    count = splits_in(data)
    if number >= max(count, 1):
        held = f"{count} splits, numbered from 0" if count else "one split"
        raise ConfigError(f"split.number is {number}, but the given masks hold {held}; set a smaller one, or -1")
    if not count:
        return data
    number = number if number >= 0 else seed % count
    notes.append(f"of the {count} given splits, number {number} is used")
    return single_split(data, number)


def _drawn_inside(
    data: Data, ids: Sequence[str], members: list[NDArray[np.int64]], known: NDArray[np.bool_], settings: SplitSettings,
    seed: int,
) -> list[Roles]:  # fmt: skip
    """Every client draws the roles of its own nodes."""
    _check_fractions(settings)
    labels = _strata(data)
    return [
        _drawn(labels[nodes], known[nodes], settings, stream(seed, f"split/client/{name}"))
        for name, nodes in zip(ids, members, strict=True)
    ]


def _notes(
    partition: Partition, roles: Roles, client_roles: list[Roles], known: NDArray[np.bool_], settings: SplitSettings,
    given: bool,
) -> Iterator[str]:  # fmt: skip
    """What was assumed."""
    if settings.scope == "auto" and given:
        train, val, test = (int((roles == role).sum()) for role in (Role.TRAIN, Role.VAL, Role.TEST))
        yield f"the given masks are used: {train:,} labelled nodes train, {val:,} validate, {test:,} test"
    elif settings.scope == "auto":
        shares = " / ".join(f"{100 * share:g}" for share in (settings.train, settings.val, settings.test))
        yield f"no masks were given: each owner's labelled nodes are drawn to train / validate / test, {shares} %"
    if not known.all():
        yield f"{int((~known).sum()):,} of {len(known):,} nodes have no label: they pass messages, and are predicted"
    bare = _without_training(partition, client_roles)
    if bare:
        yield f"no training node: {some_of(bare)}; served, not learnt from"


def _whole_graph(data: Data, known: NDArray[np.bool_], settings: SplitSettings, seed: int) -> Roles:
    if settings.scope == "given":
        return _given(data, MASKS)
    if settings.scope == "auto":
        return _given(data, tuple(name for name in MASKS if data.get(name) is not None))
    if settings.scope == "global":
        _check_fractions(settings)
        return _drawn(_strata(data), known, settings, stream(seed, "split/global"))
    raise unknown("split scope", settings.scope, ["auto", "global", "client", "given"])


def _strata(data: Data) -> NDArray[np.int64]:
    """The class of every node; numbers and several labels are not told apart."""
    return data.y.numpy() if not data.y.is_floating_point() else np.zeros(int(data.num_nodes), dtype=np.int64)


def _completed(roles: Roles, partition: Partition, settings: SplitSettings, seed: int, notes: list[str]) -> Roles:
    """Given masks, with what they lack: as nobody validates, a part of each client's training nodes does."""
    share = settings.val / (settings.train + settings.val)
    roles = roles.copy()
    for name, members in zip(partition.ids, partition.members, strict=True):
        training = members.numpy()[roles[members.numpy()] == Role.TRAIN]
        drawn = stream(seed, f"split/validation/{name}").permutation(training)
        roles[drawn[: round(share * len(drawn))]] = Role.VAL
    notes.append(f"no validation mask was given: {100 * share:g} % of each owner's training nodes validate instead")
    return roles


def _check_roles(roles: Roles, known: NDArray[np.bool_]) -> None:
    if not known.any():
        raise DataError("the graph has no labels: set data.y to one class per node (import: --label COLUMN)")
    for role, name in ((Role.TRAIN, "train"), (Role.VAL, "validate"), (Role.TEST, "test")):
        if not (roles == role).any():
            raise DataError(
                f"no labelled node is left to {name}: label more nodes, or give train_mask, val_mask and test_mask "
                "(--split COLUMN) with some of each"
            )


def _drawn(labels: NDArray[np.int64], known: NDArray[np.bool_], settings: SplitSettings, rng: Generator) -> Roles:
    """Roles by a random permutation of the labelled nodes; shares that sum to 1 leave none of them without a role."""
    order = np.flatnonzero(known)
    nodes = order[rng.permutation(len(order))]
    if settings.stratified:
        return _drawn_by_class(labels, nodes, settings)
    count = len(order)
    train, val, test = np.rint(np.cumsum([settings.train, settings.val, settings.test]) * count).astype(np.int64).tolist()
    if settings.balanced:
        training = _first_of_each_class(labels[nodes], settings.train)
        # What a class leaves was last in the order of before: without a new one, small classes would only be tested.
        nodes = np.concatenate([nodes[training], rng.permutation(nodes[~training])])
        train = int(training.sum())
        val = train + round(settings.val * count)
        test = val + round((count - val) * settings.test / (1 - settings.train - settings.val))
    roles = np.full(len(labels), Role.NONE, dtype=np.int8)
    for role, start, end in zip((Role.TRAIN, Role.VAL, Role.TEST), (0, train, val), (train, val, test), strict=True):
        roles[nodes[start:end]] = role
    return roles


def _drawn_by_class(labels: NDArray[np.int64], nodes: NDArray[np.int64], settings: SplitSettings) -> Roles:
    """The nodes of every class divided by the shares, in their random order."""
    by_class = nodes[np.argsort(labels[nodes], kind="stable")]
    _, begin, size = np.unique(labels[by_class], return_index=True, return_counts=True)
    place = np.arange(len(by_class)) - np.repeat(begin, size)
    share = (place + 0.5) / np.repeat(size, size)
    ends = np.cumsum([settings.train, settings.val, settings.test])
    roles = np.full(len(labels), Role.NONE, dtype=np.int8)
    number = np.searchsorted(ends, share, side="right")
    roles[by_class] = np.where(number < 3, number + 1, Role.NONE)
    return roles


def _first_of_each_class(labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Marks equally many nodes of every class, together `share` of all; a class that has fewer gives all it has."""
    classes, class_of = np.unique(labels, return_inverse=True)
    by_class = np.argsort(class_of, kind="stable")
    starts = np.searchsorted(class_of[by_class], np.arange(len(classes)))
    place = np.empty(len(labels), dtype=np.int64)
    place[by_class] = np.arange(len(labels)) - starts[class_of[by_class]]
    return place < int(share * len(labels) / len(classes))


def _given(data: Data, masks: Sequence[str]) -> Roles:
    roles = np.full(int(data.num_nodes), Role.NONE, dtype=np.int8)
    known = labelled(data).numpy()
    for name, role in ((name, Role(MASKS.index(name) + 1)) for name in masks):
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
        roles[mask.numpy() & known] = role
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


def _without_training(partition: Partition, client_roles: list[Roles]) -> list[str]:
    pairs = zip(partition.ids, client_roles, strict=True)
    return [name for name, roles in pairs if not (roles == Role.TRAIN).any()]


def _check_training_nodes(partition: Partition, client_roles: list[Roles], settings: SplitSettings) -> None:
    bare = _without_training(partition, client_roles)
    if bare:
        change = "another split.scope" if settings.scope == "given" else "a larger split.train"
        raise PartitionError(
            f"{len(bare)} of {len(partition.ids)} clients have no training node ({some_of(bare)}; the first has "
            f"{len(client_roles[partition.ids.index(bare[0])])} nodes): use fewer clients, {change} or another seed"
        )
