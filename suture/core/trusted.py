"""Code that is spelled, not installed, and who let it in.

A spelling such as `fedamp.py:FedAMP` may stand in a file that somebody was handed: a run folder, a protocol. Such a file
must not run code, so only code that this user let in is run: by naming it (on the command line, in Python), or with
`suture trust`. What was let in is kept in a file of the user, by its spelling and SHA-256; other content is other code.

Nothing here runs or imports what a spelling leads to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from suture.core.storage import disk_errors, read_json, real_path, write_json
from suture.errors import ConfigError, IntegrityError, StorageError

VARIABLE = "SUTURE_TRUSTED"
"""Names another file than the one in the user's configuration folder."""
_SPELLING = re.compile(r"(?P<home>[^:\0]+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_LET_IN_HERE: set[Code] = set()
"""What this process has found to be let in. A run goes on with the code it began with while its file is edited and let in
anew elsewhere; and what the user named is run even where the user's file cannot be written."""


@dataclass(frozen=True)
class Code:
    """What a spelling leads to, as it lies on the disk."""

    spelling: str
    """With the absolute path of its file."""
    file: str
    """Where it is written; empty for a module that has no file, or is not to be found."""
    sha256: str
    """Of that file; empty if there is none."""

    def __str__(self) -> str:
        inside = f" in {self.file}" if self.file and not self.spelling.startswith(self.file) else ""
        return f"{self.spelling}{inside} (SHA-256 {self.sha256 or 'unknown: it has no file'})"


def is_spelled(text: str) -> bool:
    """Whether a text speaks of a file or a module, rather than being a name."""
    return bool(_SPELLING.fullmatch(text)) or text.endswith(".py")


def parts(spelling: str, what: str = "plug-in") -> tuple[str, str]:
    """The file or module of a spelling, and the name in it."""
    found = _SPELLING.fullmatch(spelling)
    if found is None:
        raise ConfigError(f"the {what} {spelling} must also say which name is meant, such as {spelling}:NAME")
    return found["home"], found["name"]


def absolute(spelling: str, what: str = "plug-in") -> str:
    """The spelling with the absolute path of its file, if it has one."""
    home, name = parts(spelling, what)
    return f"{real_path(Path(home))}:{name}" if home.endswith(".py") else spelling


def code_at(spelling: str, what: str = "plug-in") -> Code:
    """What a spelling leads to, found without running it."""
    home, _ = parts(spelling, what)
    path = real_path(Path(home)) if home.endswith(".py") else _file_of_module(home)
    if path is None or not path.is_file():
        return Code(absolute(spelling, what), "", "")
    with disk_errors("read", path):
        return Code(absolute(spelling, what), str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def _file_of_module(name: str) -> Path | None:
    """The file of a module; unlike `importlib.util.find_spec` this does not import the packages around it."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    folders = None
    found = None
    so_far = ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        specs = (finder.find_spec(so_far, folders) for finder in sys.meta_path)
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return None
        folders = list(found.submodule_search_locations or ())
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def trusted_file() -> Path:
    """Where this user's decisions are kept."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "suture" / "trusted.json"


def trusted() -> dict[str, str]:
    """The SHA-256 of everything that was let in, by spelling."""
    path = trusted_file()
    if not path.exists():
        return {}
    kept = read_json(path, "list of trusted code").get("trusted")
    if not isinstance(kept, dict) or not all(isinstance(sha256, str) for sha256 in kept.values()):
        raise IntegrityError(f"the list of trusted code {path} is damaged; delete it, and let in again what you trust")
    return kept


def let_in(spellings: Iterable[str]) -> tuple[Code, ...]:
    """Remember that this user lets this code in, as it is now."""
    codes = tuple(code_at(spelling) for spelling in spellings)
    remember(code for code in codes if code not in _LET_IN_HERE)
    return codes


def remember(codes: Iterable[Code]) -> None:
    """Keep codes in the user's file, or if that cannot be written for this process alone."""
    codes = tuple(codes)
    _LET_IN_HERE.update(codes)
    kept = trusted() if codes else {}
    more = {code.spelling: code.sha256 for code in codes}
    if kept | more != kept:
        with contextlib.suppress(StorageError):  # a home that is read-only keeps nobody from running code of their own
            _keep(kept | more)


def forget(what: str) -> tuple[str, ...]:
    """Take back what was let in: one spelling, or everything in a file; the spellings."""
    kept, path = trusted(), str(real_path(Path(what)))
    gone = tuple(one for one in kept if one in (what, absolute(what) if ":" in what else "") or one.startswith(f"{path}:"))
    _LET_IN_HERE.difference_update([code for code in _LET_IN_HERE if code.spelling in gone])
    _keep({spelling: sha256 for spelling, sha256 in kept.items() if spelling not in gone})
    return gone


def is_let_in(code: Code) -> bool:
    """Whether this user let in exactly this."""
    if code not in _LET_IN_HERE and trusted().get(code.spelling) == code.sha256:
        _LET_IN_HERE.add(code)
    return code in _LET_IN_HERE


def refuse_foreign(codes: Iterable[Code], place: str, allowing: str) -> None:
    """One sentence if code that was not let in would be run; `allowing` is what `suture trust` would have to be given."""
    foreign = [code for code in codes if not is_let_in(code)]
    if foreign:
        known = trusted()
        changed = ", which has changed since you let it in" if any(code.spelling in known for code in foreign) else ""
        raise ConfigError(
            f"{place} would run code that you have not let in: {'; '.join(map(str, foreign))}{changed}; "
            f"read it, and if you trust it: suture trust {allowing}"
        )


def _keep(content: dict[str, str]) -> None:
    write_json(trusted_file(), {"trusted": dict(sorted(content.items()))}, private=True)
