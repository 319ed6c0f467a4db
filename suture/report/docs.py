"""The docstrings below dataclass fields, which Python forgets, read from the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def field_docs(cls: type) -> dict[str, str]:
    """Name to docstring of the fields of a dataclass and its bases; the nearest class wins."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object or base.__module__ in ("abc", "typing"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        if isinstance(body, ast.ClassDef):
            docs |= _documented(body.body)
    return docs


def _documented(body: list[ast.stmt]) -> dict[str, str]:
    docs = {}
    for statement, following in pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
