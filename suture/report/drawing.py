"""Figures as files, and the script by which pages draw them: all by Vega, which vl-convert-python brings along."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.core.storage import write_atomically
from suture.errors import ConfigError, StorageError, SutureError
from suture.graph.sources.cache import cache_folder
from suture.report.figures.figure import Figure, rounded
from suture.report.theme import Mode, Spec, config, in_mode

if TYPE_CHECKING:
    from types import ModuleType

FORMATS = ("svg", "png", "pdf")
PIXELS = 2.0
"""Of a PNG for each point."""


def vega() -> ModuleType:
    """The package that draws, or a sentence."""
    try:
        import vl_convert
    except ImportError as error:
        raise SutureError("figures need vl-convert-python; install it with: pip install 'suture-fl[report]'") from error
    found: ModuleType = vl_convert
    return found


@cache
def script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that needs no network, 900 kB.

    It takes over a second to make and is the same for every page, so it is kept in the cache folder.
    """
    drawn = vega()
    kept = cache_folder() / "scripts" / f"vega-{drawn.__version__}.js"
    found = _intact(kept)
    if found is not None:
        return found
    bundle: str = drawn.javascript_bundle()
    # It stands inside a script element, which such a text would end.
    made = bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    with contextlib.suppress(StorageError):  # a disk that cannot be written to only costs time
        write_atomically(kept, f"{_digest(made)}\n{made}".encode(), durable=False)
    return made


def _intact(kept: Path) -> str | None:
    """What was kept, if it is all there and unchanged."""
    try:
        digest, _, made = kept.read_bytes().decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return made if digest == _digest(made) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def whole(figure: Figure, mode: Mode = "light", start: Mapping[str, Any] | None = None, titled: bool = False) -> Spec:
    """A spec with its data in it, of a fixed width, for anything that draws Vega-Lite."""
    spec = in_mode(copy.deepcopy(figure.titled(start)), mode)
    rows = figure.chosen(start)
    spec["datasets"] = {
        name: [{key: rounded(value) for key, value in row.items()} for row in table] for name, table in rows.items()
    }
    spec["config"] = config(mode)
    if spec.get("width") == "container":
        spec["width"] = figure.width
    if titled:
        spec["title"] = figure.title
    return {**spec, "padding": 12, "description": figure.alternative}


def write_picture(
    figure: Figure, path: Path, mode: Mode = "light", start: Mapping[str, Any] | None = None, titled: bool = False
) -> Path:
    """The figure as the file's ending says."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path} must end with {', '.join(f'.{one}' for one in FORMATS)}")
    write_atomically(path, picture(whole(figure, mode, start, titled), kind))
    return path


def picture(spec: Spec, kind: str) -> bytes:
    """A whole spec as SVG, PNG or PDF."""
    drawn = vega()
    if kind == "svg":
        text: str = drawn.vegalite_to_svg(spec, allowed_base_urls=[])
        return text.encode()
    if kind == "png":
        image: bytes = drawn.vegalite_to_png(spec, scale=PIXELS, allowed_base_urls=[])
        return image
    document: bytes = drawn.vegalite_to_pdf(spec, allowed_base_urls=[])
    return document
