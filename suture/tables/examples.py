"""Tables of two worked examples, made up here: fraud between banks, and contacts in hospitals.

In both, the label depends on a node's own columns and on those of its neighbours, also of neighbours at another owner, so
that training together and mending the boundary can help. The same seed gives the same files, byte for byte.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suture.core.storage import disk_errors
from suture.errors import DataError, unknown

BANKS = ("north", "south", "west")
HOSPITALS = ("elm", "oak", "pine", "yew")
GRAPHLESS = "yew"
"""The hospital that keeps no record of contacts."""
FRAUD_SHARE, INFECTED_SHARE, UNLABELLED = 0.048, 0.15, 0.3
_FIRST_DAY = datetime.date(2021, 1, 1)


@dataclass(frozen=True)
class World:
    """N nodes in groups that cross owners, edges [2, E] mostly inside a group, and who owns whom."""

    owner: np.ndarray
    edges: np.ndarray
    own_N: np.ndarray
    """What a node's own columns tell of its label."""
    shown_N: np.ndarray
    """What its columns tell of its neighbours' labels."""
    label: np.ndarray


def write_example(name: str, out: Path, seed: int = 0) -> list[str]:
    """Write the tables of an example to a new folder, one folder for each owner; returns lines that say what to do next."""
    if name not in _EXAMPLES:
        raise unknown("example", name, _EXAMPLES)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already; choose another folder")
    with disk_errors("write", out):
        return _EXAMPLES[name](out, np.random.default_rng(seed))


def _world(
    rng: np.random.Generator, nodes: int, owners: int, group: int, loyalty: float, degree: float, share: float
) -> World:
    """Groups of nodes that know each other; `loyalty` is the share of a group that is with one owner."""
    groups = nodes // group
    member = rng.permutation(np.arange(nodes) % groups)
    home = rng.integers(0, owners, groups)[member]
    owner = np.where(rng.random(nodes) < loyalty, home, rng.integers(0, owners, nodes))
    order = np.argsort(member, kind="stable")
    begin = np.searchsorted(member[order], np.arange(groups))
    size = np.bincount(member, minlength=groups)
    source = rng.integers(0, nodes, int(nodes * degree / 2))
    inside = order[begin[member[source]] + (rng.random(source.size) * size[member[source]]).astype(np.int64)]
    target = np.where(rng.random(source.size) < 0.9, inside, rng.integers(0, nodes, source.size))
    edges = np.unique(np.stack([source, target])[:, source != target], axis=1)
    shown = rng.normal(0, 0.6, nodes) + rng.normal(0, 1, groups)[member]
    own = rng.normal(0, 1, nodes)
    ends = np.concatenate([edges, edges[::-1]], axis=1)
    around = np.bincount(ends[0], shown[ends[1]], nodes) / np.maximum(np.bincount(ends[0], minlength=nodes), 1)
    score = own + 1.5 * around + rng.normal(0, 0.4, nodes)
    return World(owner, edges, own, shown, score > np.quantile(score, 1 - share))


def _fraud(out: Path, rng: np.random.Generator) -> list[str]:
    world = _world(rng, 15_000, len(BANKS), group=25, loyalty=0.55, degree=6.0, share=FRAUD_SHARE)
    nodes = world.label.size
    country = rng.choice(["DE", "FR", "NL", "PL", "IT"], nodes, p=[0.4, 0.25, 0.15, 0.12, 0.08])
    label = np.where(rng.random(nodes) < UNLABELLED, "", np.where(world.label, "yes", "no"))
    balance = np.exp(7 + rng.normal(0, 1, nodes))
    columns = {
        "account": [f"{BANKS[owner]}-{number:05d}" for number, owner in enumerate(world.owner)],
        "night_share": _decimals(1 / (1 + np.exp(-world.own_N + rng.normal(0, 0.3, nodes)))),
        "cash_share": _decimals(1 / (1 + np.exp(-world.shown_N + rng.normal(0, 0.3, nodes)))),
        "balance": _decimals(balance, 2, rng.random(nodes) < 0.05),
        "products": [str(value) for value in rng.poisson(2, nodes) + 1],
        "business": [str(bool(value)).lower() for value in rng.random(nodes) < 0.2],
        "country": list(country),
        "opened": _days(rng.integers(0, 1500, nodes)),
        "fraud": list(label),
    }
    amount = _decimals(np.exp(4 + rng.normal(0, 1, world.edges.shape[1])), 2)
    for number, bank in enumerate(BANKS):
        _write(out / bank / "accounts.csv", columns, np.flatnonzero(world.owner == number))
        paid = np.flatnonzero(world.owner[world.edges[0]] == number)  # a transfer is known to the bank of who pays
        _write(
            out / bank / "transfers.csv", _ends(columns["account"], world.edges, "payer", "payee") | {"amount": amount}, paid
        )
    return [
        f"wrote accounts and transfers of {', '.join(BANKS)} to {out}: {nodes:,} accounts, "
        f"{100 * FRAUD_SHARE:.1f} % of them fraud, {100 * UNLABELLED:.0f} % unlabelled",
        f"next: suture import {out}-graph --nodes '{out}/{{owner}}/accounts.csv' --edges '{out}/{{owner}}/transfers.csv' "
        "--id account --label fraud --source payer --target payee --weight amount",
    ]


def _contacts(out: Path, rng: np.random.Generator) -> list[str]:
    world = _world(rng, 4_000, len(HOSPITALS), group=20, loyalty=0.85, degree=8.0, share=INFECTED_SHARE)
    nodes = world.label.size
    words = np.array(["fever", "cough", "rest", "pain", "stable", "review", "tired", "transfer"])
    columns = {
        "patient": [f"P{number:05d}" for number in range(nodes)],
        "age": [str(value) for value in np.clip(rng.normal(60 + 6 * world.own_N, 12), 0, 105).astype(int)],
        "oxygen": _decimals(95 - 2 * world.own_N + rng.normal(0, 1, nodes), 1, rng.random(nodes) < 0.08),
        "coughs_per_hour": _decimals(np.exp(1 + 0.5 * world.shown_N + rng.normal(0, 0.2, nodes)), 1),
        "ward": list(rng.choice(["surgery", "medicine", "geriatrics", "intensive"], nodes, p=[0.3, 0.4, 0.2, 0.1])),
        "vaccinated": [str(bool(value)).lower() for value in rng.random(nodes) < 0.6],
        "admitted": _days(rng.integers(0, 365, nodes)),
        "note": [" ".join(words[row].tolist()) for row in rng.integers(0, words.size, (nodes, 5))],
        "infected": list(np.where(rng.random(nodes) < 0.2, "", np.where(world.label, "yes", "no"))),
    }
    minutes = [str(value) for value in rng.integers(5, 240, (world.edges.shape[1],))]
    for number, hospital in enumerate(HOSPITALS):
        _write(out / hospital / "patients.csv", columns, np.flatnonzero(world.owner == number))
        if hospital != GRAPHLESS:
            met = np.flatnonzero((world.owner[world.edges] == number).any(axis=0))  # both hospitals know a contact
            ends = _ends(columns["patient"], world.edges, "patient_a", "patient_b")
            _write(out / hospital / "contacts.csv", ends | {"minutes": minutes}, met)
    return [
        f"wrote patients and contacts of {', '.join(HOSPITALS)} to {out}: {nodes:,} patients; {GRAPHLESS} has no contacts",
        f"next: suture import {out}-graph --nodes '{out}/{{owner}}/patients.csv' --edges '{out}/{{owner}}/contacts.csv' "
        "--id patient --label infected --source patient_a --target patient_b --weight minutes",
    ]


def _ends(names: Sequence[str], edges: np.ndarray, source: str, target: str) -> dict[str, list[str]]:
    return {source: [names[one] for one in edges[0]], target: [names[one] for one in edges[1]]}


def _decimals(values: np.ndarray, digits: int = 4, absent: np.ndarray | None = None) -> list[str]:
    gone = np.zeros(values.size, dtype=bool) if absent is None else absent
    return ["" if missing else f"{value:.{digits}f}" for value, missing in zip(values, gone, strict=True)]


def _days(days: np.ndarray) -> list[str]:
    return [(_FIRST_DAY + datetime.timedelta(days=int(day))).isoformat() for day in days]


def _write(path: Path, columns: dict[str, list[str]], rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([column[row] for column in columns.values()] for row in rows)


_EXAMPLES: dict[str, Callable[[Path, np.random.Generator], list[str]]] = {"fraud": _fraud, "contacts": _contacts}
