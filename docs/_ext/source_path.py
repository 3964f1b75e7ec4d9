"""The role `src`, a path of this repository that must exist; and source pages without links back.

Sphinx keeps one package name for each source file, so where names of one file are documented in two
packages its links from the source back to the documentation are wrong.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
_BACK = re.compile(r'<a class="viewcode-back"[^>]*>.*?</a>')
logger = logging.getLogger(__name__)


def source_role(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Inliner,
    options: object = None,
    content: object = None,
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Return the path as a literal; a path that does not exist is a warning, which the strict build
    refuses."""
    del name, lineno, options, content
    if not (ROOT / text).exists():
        logger.warning(
            "no file %s in the repository",
            text,
            location=inliner.document.current_source,
            type="src",
        )
    return [nodes.literal(rawtext, text, classes=["path"])], []


def drop_links_back(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Remove the links of a highlighted source to what documents it."""
    del app, templatename, doctree
    if pagename.startswith("_modules/") and "body" in context:
        context["body"] = _BACK.sub("", context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both."""
    app.add_role("src", source_role)
    app.connect("html-page-context", drop_links_back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
