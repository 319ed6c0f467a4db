"""`suture trust`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from suture.core.trusted import Code, forget, remember, trusted, trusted_file
from suture.errors import ConfigError, StorageError
from suture.report import console
from suture.report.text import count
from suture.runs.foreign import codes_named_by


def trust(what: str | None, listed: bool, taken_back: str | None) -> None:
    """Let in, list or take back; exactly one of them."""
    if [what is not None, listed, taken_back is not None].count(True) != 1:
        raise ConfigError("say one thing: a run folder or file to let in, or --list, or --forget FILE")
    if what is not None:
        _let_in(what)
    elif taken_back is not None:
        _take_back(taken_back)
    else:
        _print_codes(Code(spelling, "", sha256) for spelling, sha256 in trusted().items())


def _let_in(what: str) -> None:
    codes, screen = codes_named_by(what), console.results()
    if not codes:
        screen.print(Text(f"{what} names no code of its own; there is nothing to let in"), soft_wrap=True)
        return
    _print_codes(codes)
    remember(codes)
    if any(trusted().get(code.spelling) != code.sha256 for code in codes):
        raise StorageError(f"cannot write {trusted_file()}, so nothing was let in; choose another with SUTURE_TRUSTED=FILE")
    screen.print(
        Text(f"let in: {count(len(codes), 'piece')} of code; what it imports runs with it, and is not checked"),
        soft_wrap=True,
    )


def _take_back(what: str) -> None:
    gone = forget(what)
    if not gone:
        raise ConfigError(f"nothing of {what} was let in; see: suture trust --list")
    for spelling in gone:
        console.results().print(Text(f"taken back: {spelling}"), soft_wrap=True)


def _print_codes(codes: Iterable[Code]) -> None:
    for code in codes:
        console.results().print(Text(str(code)), soft_wrap=True)
