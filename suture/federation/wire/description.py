"""What an owner tells of its graph before any run: as much as everybody must know, and nothing of any node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from suture.config.strict import strict
from suture.core.storage import Json
from suture.errors import ConfigError, DataError
from suture.federation.wire.bounds import MOST_FEATURES
from suture.federation.wire.reasons import BadReply
from suture.graph.data import MASKS, MOST_CLASSES
from suture.graph.target import Kind
from suture.settings import Count
from suture.tables.schema import Schema, difference, schema_from


@dataclass(frozen=True)
class Description:
    """One owner's graph, or what those of all owners have in common."""

    features: Count
    classes: Count
    """Classes, labels or numbers that are predicted."""
    kind: Kind = "class"
    directed: bool | None = None
    weighted: bool | None = None
    """Whether edges have a direction, have weights; None: there are no edges."""
    masks: tuple[str, ...] = ()
    """Masks that mark labelled nodes."""
    schema: dict[str, Any] | None = None
    """What the owners agreed on before they imported; None: the graph came another way."""

    def as_json(self) -> dict[str, Json]:
        """For the wire."""
        return asdict(self)

    @staticmethod
    def read(content: Mapping[str, object]) -> Description:
        """Check what an owner told."""
        try:
            told = strict(Description, content, "description")
            told.check()
        except (ConfigError, DataError) as error:
            raise BadReply(str(error)) from error
        return told

    def check(self) -> None:
        """Refuse what no graph has, and what its own schema denies."""
        if self.features > MOST_FEATURES or self.classes > MOST_CLASSES:
            raise ConfigError(
                f"description speaks of {self.features:,} features and {self.classes:,} classes, at most {MOST_FEATURES:,} "
                f"and {MOST_CLASSES:,} are used"
            )
        if not set(self.masks) <= set(MASKS):
            raise ConfigError(f"description.masks may be {', '.join(MASKS)}")
        schema = self.agreement
        if schema is not None and len(schema.feature_names) != self.features:
            raise ConfigError("description.features are not as many as those of its schema")

    @property
    def agreement(self) -> Schema | None:
        """The schema."""
        return None if self.schema is None else schema_from(self.schema)


def in_common(told: Mapping[str, Description]) -> Description:
    """What all owners' graphs are like; owners whose graphs do not fit together are named."""
    (first, mine), *others = told.items()
    for name, theirs in others:
        _check_pair(first, mine, name, theirs)
    return replace(
        mine,
        classes=max(one.classes for one in told.values()),
        directed=_same("direction", {name: one.directed for name, one in told.items()}),
        weighted=_same("weights", {name: one.weighted for name, one in told.items()}),
        masks=tuple(dict.fromkeys(name for one in told.values() for name in one.masks)),
    )


def fitting(told: Mapping[str, Description]) -> tuple[dict[str, Description], dict[str, str]]:
    """(the owners whose graphs fit together, the others with the reason), if the former are more than half of them all."""
    groups: list[tuple[Description, dict[str, Description]]] = []
    for owner, mine in told.items():
        for place, (common, members) in enumerate(groups):
            with contextlib.suppress(DataError):
                groups[place] = (in_common({next(iter(members)): common, owner: mine}), {**members, owner: mine})
                break
        else:
            groups.append((mine, {owner: mine}))
    common, most = max(groups, key=lambda group: len(group[1]))
    if 2 * len(most) <= len(told):
        return dict(told), {}
    odd: dict[str, str] = {}
    for owner in told.keys() - most.keys():
        try:
            in_common({next(iter(most)): common, owner: told[owner]})
        except DataError as error:
            odd[owner] = str(error)
    return most, odd


def without_few_masks(told: Mapping[str, Description]) -> tuple[dict[str, Description], list[str]]:
    """The descriptions without masks, and who had some, if these are fewer than half of the owners; else as they are.

    Where anybody has masks nobody draws who trains: one owner that tells of masks would leave all others without a node to
    train on.
    """
    having = [owner for owner, one in told.items() if one.masks]
    if not having or 2 * len(having) >= len(told):
        return dict(told), []
    return {owner: replace(one, masks=()) for owner, one in told.items()}, having


def _check_pair(first: str, mine: Description, name: str, theirs: Description) -> None:
    alike = "import all owners' tables with one schema.json"
    if (mine.schema is None) != (theirs.schema is None):
        has, lacks = (first, name) if mine.schema else (name, first)
        raise DataError(f"owner {has}'s graph was imported with a schema, and {lacks}'s has none; {alike}")
    one, two = mine.agreement, theirs.agreement
    if one is not None and two is not None and (differs := difference(two, one, scaling=True)) is not None:
        raise DataError(f"owner {name}'s tables were prepared otherwise than {first}'s: {differs}; {alike}")
    if mine.features != theirs.features:
        raise DataError(
            f"owners must have the same features: {first} has {mine.features}, {name} has {theirs.features}; "
            "prepare their files alike"
        )
    if mine.kind != theirs.kind:
        raise DataError(f"owner {name}'s labels are of the kind {theirs.kind!r} and {first}'s of the kind {mine.kind!r}")
    if mine.kind != "class" and mine.classes != theirs.classes:
        raise DataError(f"owner {name} has {theirs.classes} columns to predict, {first} {mine.classes}; prepare them alike")


def _same(what: str, told: Mapping[str, bool | None]) -> bool | None:
    """What those say who have edges."""
    known = {name: value for name, value in told.items() if value is not None}
    if len(set(known.values())) > 1:
        has, lacks = (next(name for name, value in known.items() if value is wanted) for wanted in (True, False))
        raise DataError(f"edges of owner {has} have {what}, those of {lacks} have none; prepare them alike")
    return next(iter(known.values()), None)
