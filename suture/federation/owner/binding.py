"""Binds an owner to the data with which it has opened a run: a run does not go on with other data without a word.

The coordinator is told an HMAC of the data under a random key that stays here, one for each run. So it can tell that the
data are those of before, and nothing else: not what they are, though it may have a guess, nor whether
another run had the same.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from suture.core.storage import make_folder, read_json, write_json
from suture.errors import IntegrityError
from suture.federation.wire.names import CENSUS, MATCHING
from suture.federation.wire.reasons import Code, Refused

BINDING = "binding.json"


def bind(runs: Path, run: str, fingerprint: str) -> str:
    """What the coordinator is told of the data in this run; refused if the run was opened with other data before.

    What is exchanged before a run belongs to it, so all of it is bound together.
    """
    path = runs / run.removesuffix(CENSUS).removesuffix(MATCHING) / BINDING
    if not path.exists():
        key = secrets.token_bytes(32)
        make_folder(path.parent)
        write_json(path, {"key": key.hex(), "data": _told(key, fingerprint)})
    kept = read_json(path, "record of the data of a run")
    try:
        key, before = bytes.fromhex(str(kept["key"])), str(kept["data"])
    except (KeyError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged; the run cannot go on with this owner") from error
    told = _told(key, fingerprint)
    if not hmac.compare_digest(told, before):
        raise Refused(
            "it has opened this run with other data than it has now; start it again with the data of before, "
            "or order a new run",
            Code.CHANGED,
        )
    return told


def _told(key: bytes, fingerprint: str) -> str:
    return hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()
