"""One sentence for everything that is not a bug of ours."""

from __future__ import annotations

import typer

from suture.commands.stopping import Halt
from suture.errors import SutureError

OUT_OF_MEMORY = ("can't allocate memory", "out of memory")


def sentence(error: BaseException) -> str | None:
    """What to tell the user; None if the error is a bug."""
    match error:
        case SutureError():
            return str(error)
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
