"""Sphinx settings of the site: `make docs` builds it to build/docs.

The source folder is the root of the repository, so a link means the same on the site as in a checkout. A page may hold
the line ``<!-- generated: NAME -->``: `reference.NAME()` fills it from the code. Mermaid blocks become the pictures
that `site/drawings.py` made. No page loads anything from another host: the build fails if one does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "site")]

import drawings  # noqa: E402
import reference  # noqa: E402

from peers.version import VERSION  # noqa: E402

project = "gossipdp"
release = VERSION
html_title = f"gossipdp {VERSION}"

extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "docs/index"
include_patterns = ["docs/**.md", "simulations/**.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
exclude_patterns = [
    ".*",
    "docs/claims",
    "build",
    "dist",
    "runs",
    "mutants",
    "gossipdp",
    "peers",
    "tests",
    "**/__pycache__",
]
highlight_language = "none"
smartquotes = False  # they turn the dashes of options into one

html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_extra_path = ["site/index.html"]
html_copy_source = False
html_show_copyright = False

GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
LOADED = re.compile(r"""<(?:script|img|iframe)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//""")


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put generated text and drawings into the source of a page."""
    text = GENERATED.sub(lambda match: getattr(reference, match[1])(), source[0])
    if name == "simulations/results/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    source[0] = drawings.replace(text, "../" * name.count("/") + "_static/drawings")


def unlink(app: Sphinx, page: nodes.document) -> None:
    """Turn links to folders, and to files that the site does not hold, into plain text."""
    here = (Path(app.srcdir) / app.env.docname).parent
    for node in list(page.findall(lambda each: isinstance(each, nodes.Element) and "reftarget" in each)):
        target = here / str(node["reftarget"]).partition("#")[0]
        if target.suffix != ".md" and target.exists():
            node.replace_self(node.children)


def check(app: Sphinx, error: Exception | None) -> None:
    """Fail if a built page loads a script, a style or a picture from another host."""
    found = [str(page) for page in Path(app.outdir).rglob("*.html") if LOADED.search(page.read_text("utf-8"))]
    if found and not error:
        raise ExtensionError(f"these pages load something from another host: {', '.join(found)}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    app.connect("doctree-read", unlink, priority=100)  # before Sphinx collects what pages offer for download
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
