"""What scrolls sideways on a narrow screen can be reached and scrolled by the keyboard."""

import re
from typing import Any

from sphinx.application import Sphinx

_SCROLLS = re.compile(r'<(pre|div class="table-wrapper[^"]*")>')


def make_reachable(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Put code and tables into the order of the tab key."""
    del app, pagename, templatename, doctree
    if "body" in context:
        context["body"] = _SCROLLS.sub(r'<\1 tabindex="0">', context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the writing of pages."""
    app.connect("html-page-context", make_reachable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
