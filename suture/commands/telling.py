"""How a command tells what it does: on a terminal, in a pipe, or to a program as lines of JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import RenderableType

from suture.commands.complaints import sentence
from suture.commands.stopping import Halt
from suture.core.progress import listening
from suture.report import console
from suture.report.events import FORMAT, Events
from suture.report.progress import Watch, watching


@dataclass(frozen=True)
class Teller:
    """What a command says while it works, and at its end."""

    quiet: bool = False
    events: Events | None = None
    """For programs, in the place of everything that is for people."""

    def note(self, text: str) -> None:
        """A remark."""
        if self.events is not None:
            self.events.write("note", text=text)
        elif not self.quiet:
            console.notes().print(text, soft_wrap=True)

    def result(self, content: object, *shown: RenderableType) -> None:
        """What came of it: `content` for programs, or what is shown to people."""
        if self.events is not None:
            self.events.write("result", result=content)
        elif shown:
            console.results().print(*shown, sep="\n")

    @contextmanager
    def watching(self, runs: int = 1, live: bool = True) -> Iterator[Watch]:
        """Show the work that is done inside, and the rounds with which the function is called."""
        if self.events is None:
            with watching(console.notes(), runs, self.quiet, live and not _is_verbose()) as watch:
                yield watch
            return
        with listening(self.events.hear):
            yield self.events.round


def _is_verbose() -> bool:
    """A live line would be drawn over what --verbose tells."""
    return logging.getLogger("suture").isEnabledFor(logging.INFO)


@contextmanager
def telling(command: str, quiet: bool = False, lines: bool = False) -> Iterator[Teller]:
    """Tell of a command; with `lines`, also that it has failed, and why."""
    if not lines:
        yield Teller(quiet)
        return
    events = Events(sys.stdout)
    events.write("begin", format=FORMAT, command=command)
    try:
        yield Teller(quiet, events)
    except BrokenPipeError:
        raise
    except (Exception, Halt) as error:
        events.write("error", text=sentence(error) or f"a bug of Suture: {type(error).__name__}")
        raise
