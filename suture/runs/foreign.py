"""What `suture trust` would let in."""

from __future__ import annotations

from pathlib import Path

from suture.config.toml import read_toml
from suture.core.trusted import Code, code_at
from suture.errors import ConfigError
from suture.runs.folder import RUN, codes_of, is_comparison
from suture.runs.handed import codes_in


def codes_named_by(what: str | Path) -> tuple[Code, ...]:
    """The code that a run folder (with the runs in it) or a TOML file names; or what `FILE.py:NAME` itself leads to."""
    path = Path(what)
    if path.is_dir():
        runs = [place.parent for place in sorted(path.glob(f"*/{RUN}"))] if is_comparison(path) else []
        return tuple({code.spelling: code for place in (path, *runs) for code in codes_of(place)}.values())
    if path.suffix == ".toml":
        read_toml(path)  # or one sentence that says why it cannot be read
        return codes_in(path)
    code = code_at(str(what))
    if not code.file:
        raise ConfigError(f"{what} leads to no file; give a run folder, a .toml file, FILE.py:NAME or MODULE:NAME")
    return (code,)
