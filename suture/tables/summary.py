"""What an import read, kept, changed and left out: every row accounted for, every decision one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from suture.errors import some_of

LONGEST_VALUE = 40


def shown(value: object) -> str:
    """A value from a table, safe to print: quoted, without control characters, not endless."""
    text = str(value)
    return repr(text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}...")


def listed(values: list[str], most: int = 5) -> str:
    """The first few of some names, and how many more there are."""
    return some_of([shown(value) for value in values], most)


@dataclass(frozen=True)
class Line:
    """One thing that was noticed, and what was done about it."""

    subject: str
    """The table, column or owner it is about."""
    found: str
    done: str
    """Begins with `kept`, `dropped`, `changed` or `look`; the last asks the reader to decide."""
    count: int = 0


@dataclass(frozen=True)
class Account:
    """Where the rows of one table went: `read` is `kept` plus everything in `dropped`."""

    table: str
    source: str
    read: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass
class Summary:
    """Collects accounts and lines while tables are read."""

    accounts: list[Account] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Sizes of what was made: nodes, edges, owners, classes, ..."""

    def note(self, subject: str, found: str, done: str, count: int = 0) -> None:
        """Add one line."""
        self.lines.append(Line(subject, found, done, count))

    def account(self, table: str, source: str, read: int, dropped: Mapping[str, int]) -> None:
        """Write down where a table's rows went."""
        gone = {reason: int(count) for reason, count in dropped.items() if count}
        self.accounts.append(Account(table, source, int(read), int(read) - sum(gone.values()), gone))

    def to_json(self) -> dict[str, Any]:
        """All of it, for summary.json."""
        return {
            "facts": self.facts,
            "tables": [asdict(account) for account in self.accounts],
            "lines": [asdict(line) for line in self.lines],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Summary:
        """Read `to_json` back."""
        return cls(
            [Account(**account) for account in content["tables"]],
            [Line(**line) for line in content["lines"]],
            dict(content["facts"]),
        )

    def text(self) -> str:
        """All of it, for people."""
        rows = [f"{name}: {value}" for name, value in self.facts.items()]
        rows.append("")
        for account in self.accounts:
            gone = "".join(f", {count:,} {reason}" for reason, count in account.dropped.items())
            rows.append(f"{account.table} ({account.source}): {account.read:,} rows read, {account.kept:,} kept{gone}")
        if self.lines:
            rows.append("")
        rows += [f"{line.subject}: {line.found}: {line.done}" for line in self.lines]
        return "\n".join(rows)
