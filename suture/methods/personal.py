"""Personal rows on the server: what it keeps of each client, and what a client gets that it has not heard from yet.

A server is made before it is known who will take part, clients are sampled, and owners may come late. So a table of the
server, any record, has a row for each client it knows, sorted by name, and before them the row of `NEWCOMER`, which stands
for everybody else:

    init_server         Table((NEWCOMER,), ...)                one row, and nobody is known
    hand something out  looked_up(table, cohort.ids)           newcomers get the first row
    after a round       heard(table, news)                     rows of the clients in `news` are replaced or added

A method whose rows hang together, such as clusters, gives everybody a row before its first round: `enrolled(table, ids)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from suture.core.message import Record
from suture.core.tree import Tree

T = TypeVar("T", bound=Record)
NEWCOMER = ""
"""In place of a client's id. No client can be called so, and it is sorted before all of them."""


def positions(table: Record, ids: Sequence[str]) -> list[int]:
    """The rows of these clients; the first for one that has none."""
    row = {name: k for k, name in enumerate(table.ids)}
    return [row.get(name, 0) for name in ids]


def looked_up(table: T, ids: Sequence[str]) -> T:
    """The rows of these clients, under their names."""
    return table.take(positions(table, ids), ids)


def heard(table: T, news: T) -> T:
    """The table in which these clients have these rows."""
    stay = [name for name in table.ids if name not in set(news.ids)]
    return type(table).concat([table.select(stay), news]).select(sorted((*stay, *news.ids)))


def enrolled(table: T, ids: Sequence[str]) -> T:
    """A table of exactly these clients; those that had no row get the newcomers'."""
    return looked_up(table, sorted(ids))


def written_over(old: Tree, new: Tree, places: Tensor, rows: int) -> Tree:
    """The tree [`rows`, ...] with the rows of `new` in these places; an entry that it did not have is zero elsewhere."""
    out = Tree()
    for name, value in new.items():
        kept = old[name].to(value.device) if name in old else value.new_zeros(rows, *value.shape[1:])
        out[name] = kept.index_copy(0, places.to(value.device), value)
    return out
