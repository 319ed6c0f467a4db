"""Figures as files, and the script by which pages draw them: all by Vega, which vl-convert-python brings along."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.core.storage import write_atomically
from suture.errors import ConfigError, SutureError
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
    """Vega, Vega-Lite and vega-embed as one script that needs no network; some seconds to make, 900 kB."""
    bundle: str = vega().javascript_bundle()
    # It stands inside a script element, which such a text would end.
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def whole(figure: Figure, mode: Mode = "light", start: Mapping[str, Any] | None = None, titled: bool = False) -> Spec:
    """A spec with its data in it, of a fixed width, for anything that draws Vega-Lite."""
    spec = in_mode(copy.deepcopy(figure.spec), mode)
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
