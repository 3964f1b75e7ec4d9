"""A matplotlib figure as inline SVG that a screen reader can name, several of which fit into one document."""

import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mcmcpost",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.transparent": True,
}
LEAST, MOST = 4.3, 6.9
"""Width on the screen of an inch of figure, in the page's type size: a narrow screen scrolls, a wide one stops."""
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


class Drawing(NamedTuple):
    """A figure of the report: what it is called, what it shows in words, and its SVG element."""

    key: str
    title: str
    description: str
    svg: str


def draw(key: str, title: str, description: str, size: tuple[float, float], plot: Callable[[Any], object]) -> Drawing:
    """Return what `plot` draws on the axes of a new figure of that size in inches, as inline SVG.

    The text stays text, every identifier starts with `key`, and the element has the role of an image with `title` and
    `description`. Equal input gives equal bytes.
    """
    from matplotlib import style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        plot(figure.subplots())
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _detach(root, key)
    _describe(root, key, title, description)
    root.set("style", f"min-width: {LEAST * size[0]:.1f}rem; max-width: {MOST * size[0]:.1f}rem")
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return Drawing(key, title, description, ElementTree.tostring(root, encoding="unicode"))


def _detach(root: ElementTree.Element, key: str) -> None:
    """Prefix every identifier and every reference to one; drop the metadata, which names vocabularies on the web."""
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{key}-{value}")
            elif name == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(name, f"#{key}-{value[1:]}")
            else:
                element.set(name, _REFERENCE.sub(rf"url(#{key}-\1)", value))


def _describe(root: ElementTree.Element, key: str, title: str, description: str) -> None:
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-description")
    for name in ("width", "height"):
        del root.attrib[name]
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        part = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{key}-{'title' if tag == 'title' else 'description'}"})
        part.text = text
        root.insert(place, part)
