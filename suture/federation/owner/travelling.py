"""What of a model may leave an owner: the entries that the method itself hands out, whatever a coordinator has named.

Methods send back what they were handed, by its names. Personal layers, own models and own generators are entries of the same
trees, so a message that names them would be answered with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from suture.core.message import Kind, Message
from suture.errors import some_of
from suture.federation.wire.reasons import Code, Refused
from suture.method import Method, Task

Entries = Mapping[str, frozenset[str]]
"""By the name of a field that holds a tree: the names in it."""


def entries_handed_out(method: Method[Any, Any], task: Task) -> Entries:
    """The trees that a server of this method begins with: all that it can hand out."""
    server = method.init_server(task)
    trees = {one.name: getattr(server, one.name) for one in dataclasses.fields(server)}
    return {name: frozenset(tree) for name, tree in trees.items() if isinstance(tree, dict)}


def check_entries(method: Method[Any, Any], reply: Message, known: Entries) -> None:
    """Refuse to tell more of a network than its part that travels."""
    for field, names in known.items():
        tree = getattr(reply, field, None)
        if not isinstance(tree, dict) or type(reply).kind_of(field) != Kind.WEIGHTS:
            continue
        if more := [name for name in tree if name not in names]:
            raise Refused(f"{method.name} keeps {some_of(more)} at its owner, and a message named them", Code.UNDECLARED)
