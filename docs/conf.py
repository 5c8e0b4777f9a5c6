"""Sphinx makes a site of the manual, from the pages that are read in the checkout: bin/docs."""

from __future__ import annotations

import re

project = "dedupindex"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
# The README and CONTRIBUTING are pages, too, so that links to and from them lead somewhere.
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md"]
root_doc = "docs/index"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # signatures name types that are not public
default_role = "code"  # docstrings put names between single backquotes
myst_heading_anchors = 6  # as the links in the pages name them
suppress_warnings = ["misc.highlighting_failure"]  # JSON with an ellipsis
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "dedupindex"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

_COLUMNS = re.compile(r"^( +|\S.*?  +)\S", re.MULTILINE)  # indented, or in columns


def _as_rst(*given: object) -> None:
    """Show the parts of a docstring that are indented, or in columns, as they are written."""
    lines = given[-1]
    assert isinstance(lines, list)
    parts = re.split(r"\n{2,}", "\n".join(lines).strip("\n"))
    shown = []
    for part in parts:
        if _COLUMNS.search(part) and not part.startswith(">>>"):
            part = "::\n\n" + re.sub("^", "    ", part, flags=re.MULTILINE)
        shown += [*part.split("\n"), ""]
    lines[:] = shown


def setup(app: object) -> None:
    """Register the hook with Sphinx."""
    app.connect("autodoc-process-docstring", _as_rst)  # type: ignore[attr-defined]
