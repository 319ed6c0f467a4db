"""One sentence for everything that is not a bug of ours."""

from __future__ import annotations

import typer

from suture.commands.stopping import Halt
from suture.errors import SutureError, place_of

OUT_OF_MEMORY = ("can't allocate memory", "out of memory")


def sentence(error: BaseException) -> str | None:
    """What to tell the user; None if the error is a bug of ours, or of a method that is not being debugged."""
    place = place_of(error)
    match error:
        case SutureError():
            return f"{error} ({place})" if place else str(error)
        case Exception() if place:
            about = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0].rstrip(".")
            return f"{about} ({place}); SUTURE_DEBUG=1 shows the line"
        case Halt():
            return "stopped before anything was done"
        case typer.TyperException():
            return _usage(error)
        case ImportError():
            return f"a package is missing or broken ({error}); install again with: pip install --upgrade suture-fl"
        case OSError():
            return f"cannot use {error.filename or 'a file'}: {error.strerror or error}"
    if isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
        return "memory is used up; compute fewer clients together with --chunk 1, or take a smaller model or graph"
    return None


def _usage(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".?")
    for theirs, ours in ((". Did you mean", "; did you mean"), ("(Possible options:", "(did you mean")):
        message = message.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    hint = f"; see: {context.command_path} --help" if context else ""
    return f"{message[:1].lower()}{message[1:]}{hint}"
