"""Anchors of headings: those of the results tables are the tables' names, before the colon."""

import re


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w]+", "-", heading.split(":")[0].lower()).strip("-")
