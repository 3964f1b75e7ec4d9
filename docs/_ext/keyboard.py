"""What scrolls sideways on a narrow screen can be reached by the keyboard, and captions are
headings of a level."""

import re
from typing import Any

from sphinx.application import Sphinx

_CAPTION = '<p class="caption" role="heading"'

_SCROLLS = re.compile(r'<(pre|div class="table-wrapper[^"]*")>')


def make_reachable(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Put code and tables into the order of the tab key; state the level of the captions of lists
    of pages."""
    del app, pagename, templatename, doctree
    if "body" in context:
        body = _SCROLLS.sub(r'<\1 tabindex="0">', context["body"])
        context["body"] = body.replace(_CAPTION, f'{_CAPTION} aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the writing of pages."""
    app.connect("html-page-context", make_reachable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
