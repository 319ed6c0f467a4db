"""Small imported graphs of several owners, and owners that are called directly, each with its own folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl
from identities import kit_of

from suture import api
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.owner import Owner
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import FaultSettings, order_of
from suture.tables import GraphFolder, Roles, Tables, Wishes, import_tables

OWNERS = ("north", "south", "west")
QUICK = FaultSettings(patience=0.2, step_timeout=30)
SHORT = ("rounds=4", "model.hidden=8")
ROLES = Roles(id=("account",), label=("fraud",), source=("payer",), target=("payee",), weight="amount")


def tables_of(owner: str, task: str = "classification", nodes: int = 60) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Numbers on scales of their own with gaps, categories, rare positives, unlabelled nodes, weights far from 1."""
    number = OWNERS.index(owner)
    rng = np.random.default_rng(number)
    income, risk = rng.normal(30_000 + 9_000 * number, 8_000, nodes), rng.normal(size=nodes)
    fraud = np.where(risk + rng.normal(scale=0.5, size=nodes) > 1.0, "yes", "no").astype(object)
    label: list[object] = list(fraud)
    if task == "regression":
        label = [float(one) for one in 1000 + 50 * risk + income / 100]
    if task == "multi-label":
        label = [
            f"{'late' if r > 0 else 'punctual'}{'|rich' if i > 35_000 else ''}" for r, i in zip(risk, income, strict=True)
        ]
    for unknown in range(0, nodes, 5):
        label[unknown] = None
    table = pl.DataFrame(
        {
            "account": [f"{owner[0]}-{one}" for one in range(nodes)],
            "income": [None if one % 11 == 0 else float(value) for one, value in enumerate(income)],
            "risk": risk,
            "colour": [["red", "blue", "green"][one % 3] for one in range(nodes)],
            "fraud": label,
        },
        strict=False,
    )
    ends = rng.integers(0, nodes, size=(2, 3 * nodes))
    edges = pl.DataFrame(
        {
            "payer": [f"{owner[0]}-{one}" for one in ends[0]],
            "payee": [f"{owner[0]}-{one}" for one in ends[1]],
            "amount": rng.uniform(50, 500, 3 * nodes),
        }
    )
    return table, edges


def imported(folder: Path, task: str = "classification", *, directed: bool = False) -> GraphFolder:
    """All owners in one folder; the last has no edge table."""
    parts = []
    for owner in OWNERS:
        nodes, edges = tables_of(owner, task)
        parts.append(Tables(nodes, None if owner == "west" else edges, owner=owner))
    wishes = Wishes(ROLES, task=task, directed=directed, min_count=1, keep=frozenset({"risk", "income"}))
    return import_tables(folder, parts, wishes)[0]


class Desks:
    """Owners' desks called directly; `meddle` may raise instead."""

    def __init__(self, folder: Path, data: Mapping[str, Path], policies: Mapping[str, str] | None = None) -> None:
        self.owned: dict[str, Owner] = {}
        for name, path in data.items():
            policy = None
            if policies and name in policies:
                policy = folder / f"{name}.toml"
                policy.parent.mkdir(parents=True, exist_ok=True)
                policy.write_text(policies[name])
            self.owned[name] = Owner.set_up(name, path, policy, folder / name, kit=kit_of(name))
        self.desks = {name: owner.desk() for name, owner in self.owned.items()}
        self.meddle: Callable[[str, Frame], None] = lambda owner, frame: None
        self.heard: list[tuple[str, Frame, Frame]] = []

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(self.owned)

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        frames = Frame.unpack(request).parts()
        for frame in frames:
            self.meddle(owner, frame)
        reply = self.desks[owner].answer(request)
        self.heard += [(owner, asked, told) for asked, told in zip(frames, Frame.unpack(reply).parts(), strict=False)]
        return reply

    def verbs(self) -> list[str]:
        return [str(frame.header["verb"]) for _, frame, _ in self.heard]


def planned(method: str, *overrides: str) -> api.Plan:
    return api.plan("federation", [method], seeds=[0], overrides=[*SHORT, *overrides])


def coordinator(made: api.Plan, folder: Path, desks: Desks, *, secure: bool = False) -> Coordinator:
    order = order_of(made, "run", QUICK, secure)
    return Coordinator(order, folder / "run", desks, AuditLog(folder / AUDIT, "coordinator"))


def audit_of(desks: Desks, owner: str) -> list[dict[str, object]]:
    return read_audit(desks.owned[owner].home / AUDIT)  # type: ignore[return-value]
