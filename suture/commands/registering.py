"""How a command is registered: its docstring, then examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])


def command(group: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Register a command whose help ends with examples."""

    def register(function: F) -> F:
        # \b keeps the line breaks that follow it.
        shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)])
        return group.command(name, help=f"{inspect.cleandoc(function.__doc__ or '')}\n\n{shown}")(function)

    return register
