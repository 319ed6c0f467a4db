"""HTML of which nothing is unescaped but what was made here: `el("td", name, class_="number")`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any


class Html(str):
    """Text that is HTML already; every other text is escaped where it is put into an element."""

    __slots__ = ()


EMPTY = frozenset({"meta", "input", "br", "link"})


def el(name: str, /, *content: str, **attributes: object) -> Html:
    """An element; an attribute that is None is left out, `class_` is class, `data_x` is data-x."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{together(*content)}</{name}>")


def together(*content: str) -> Html:
    """One after the other, escaped where they are not HTML."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in content))


def json_script(content: Any, **attributes: object) -> Html:
    """JSON in a script element, from which no text in it can get out."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return el("script", Html(text), type="application/json", **attributes)


def hashed(text: str) -> str:
    """By which a Content-Security-Policy lets this script or style through, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
