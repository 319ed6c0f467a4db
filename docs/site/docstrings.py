"""Docstrings are in Markdown, as all documents are; autodoc expects reStructuredText. A directive lets MyST read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Markdown(SphinxDirective):
    """`.. markdown::` with Markdown as its content."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parse the content as a page of its own, and hand over what is in it."""
        page = new_document(self.state.document.current_source, self.state.document.settings)
        MystParser().parse("\n".join(self.content), page)
        return list(page.children)


def keep_boxes(text: str) -> str:
    """Indent the paragraphs whose line breaks mean something (an algorithm box, a sketch of calls), so that they stay."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(re.sub("^", "    ", block, flags=re.MULTILINE) if _is_box(block) else block for block in blocks)


def _is_box(block: str) -> bool:
    first, *others = block.splitlines() or [""]
    is_list_or_section = re.match(r"\s*[-*] |\w+:$", first) or any(line.startswith("- ") for line in others)
    return not is_list_or_section and not first.startswith("    ") and any(line.startswith(" ") for line in others)


def _read_as_markdown(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    # A dataclass, a tuple or an alias without a docstring has one of Python's making, which says nothing.
    of_python = (f"{name.rsplit('.', 1)[-1]}(", "Alias for field number", "alias of")
    if not any(lines) or "\n".join(lines).startswith(of_python):
        lines.clear()
        return
    lines[:] = [".. markdown::", "", *_indented(keep_boxes("\n".join(lines)).splitlines()), ""]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"   {line}".rstrip() for line in lines]


def show_bounds() -> None:
    """Let `Annotated[int, Field(ge=1)]` be shown as it is written; pydantic's own form of it is three times as long."""

    def written(bounds: FieldInfo) -> str:
        values = {name: value for bound in bounds.metadata for name, value in asdict(bound).items()}
        return f"Field({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    FieldInfo.__repr__ = written


def _simplify(
    app: Sphinx, what: str, name: str, thing: object, options: object, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """A default that has no short form is three dots."""
    return re.sub(r"<factory>|<function .*?<lambda>>|<object object at \w+>", "...", arguments or "") or arguments, returned


def setup(app: Sphinx) -> None:
    """Add the directive, and put every docstring into one."""
    show_bounds()
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", _read_as_markdown)
    app.connect("autodoc-process-signature", _simplify)
