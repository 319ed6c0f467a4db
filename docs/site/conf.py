"""The site that `make docs` builds: README and docs/*.md as they lie in the repository, and a reference of the docstrings.

The source folder is the repository itself, so a link means the same here as where the files are read. Nothing is fetched,
neither while building nor by a browser: no external fonts or scripts, the theme uses the reader's own fonts.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

from pygments.lexers import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import docstrings  # noqa: E402
import reference  # noqa: E402

project = "Suture"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
copyright = "The Suture authors"

root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/reference/*.md", "examples/*.md"]
exclude_patterns = [
    ".*",
    "runs",
    "site",
    "build",
    "suture",
    "tests",
    "benchmarks",
    "docs/site",
    "**/__pycache__",
    "*.egg-info",
]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# A type variable such as S is documented where it is defined, in more than one room; that is no broken link.
suppress_warnings = ["ref.python"]
# Options such as `--json` are written in plain words too: leave dashes and quotes as they were typed.
smartquotes = False

html_theme = "furo"
html_title = "Suture"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

CHAPTERS = {
    "Start": ["python", "command-line"],
    "Your data": ["own-data", "assess", "predict", "metrics"],
    "Use": ["data", "partitions", "protocols", "reproducibility", "results", "performance"],
    "Methods": ["fedsage", "feddep", "fedpub", "fedggr", "fedgls"],
    "Between owners": ["federation", "privacy", "threat-model"],
    "Develop": ["add-a-method", "architecture"],
}


def chapters() -> str:
    """The sidebar, as Markdown; a page that no chapter names is under More."""
    named = {page for pages in CHAPTERS.values() for page in pages}
    more = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if path.stem not in named)
    lists = {title: [f"docs/{page}" for page in pages] for title, pages in CHAPTERS.items()}
    lists["Use"].append("examples/README")
    lists["Develop"] += [path.stem for path in sorted(ROOT.glob("*.md")) if path.stem != root_doc]
    lists["Reference"] = [f"docs/reference/{name}" for name in reference.SECTIONS]
    lists["More"] = [f"docs/{page}" for page in more]
    trees = [
        ["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""] for title, pages in lists.items() if pages
    ]
    return "\n".join(line for tree in [[""], *trees] for line in tree)


def _add_sidebar(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += chapters()


def _add_index(app: Sphinx, failure: Exception | None) -> None:
    """A folder on a web server opens with its index.html."""
    if failure is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Hook in the sidebar, the reference and docstrings in Markdown."""
    app.connect("config-inited", lambda app, config: reference.write(ROOT / "docs" / "reference"))
    app.connect("source-read", _add_sidebar)
    app.connect("build-finished", _add_index)
    app.add_lexer("rooms", TextLexer)  # the plan of the house, which a test reads
    docstrings.setup(app)
