"""The house docstrings as numpydoc and reST read them, and a directive for the public names of a
package.

``name : what it is`` is an entry of a definition list here, where numpydoc would take the words for
    a type; bars and
asterisks in formulas are themselves, where reST would take them for markup.
"""

import importlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_ENTRY = re.compile(r"^([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) : (.*)$")
_CODE = re.compile(r"(``.*?``|`[^`]*`)")
_UNDERLINE = re.compile(r"^(=+|-+)( +=+)*$")
_FIELD_DOCSTRING = re.compile(r"^Alias for field number \d+$")


def escape(line: str) -> str:
    """Escape bars and asterisks outside of code."""
    parts = _CODE.split(line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts
    )


def entries(lines: list[str]) -> list[str]:
    """Turn each ``name : text`` at the margin, with its indented continuation, into an entry of a
    definition list."""
    result: list[str] = []
    inside = False
    for line in lines:
        found = _ENTRY.match(line)
        if found:
            if result and result[-1].strip() and not inside and not _UNDERLINE.match(result[-1]):
                result.append("")
            result += [found[1], f"    {escape(found[2])}"]
            inside = True
            continue
        if inside and line.strip() and not line.startswith("    "):
            result.append("")
        inside = inside and line.startswith("    ")
        result.append(line if _UNDERLINE.match(line) else escape(line))
    return result


def process(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Rewrite a docstring before numpydoc sees it."""
    del app, what, name, thing, options
    lines[:] = entries(lines)


def skip(
    app: Sphinx, what: str, name: str, thing: object, skipped: bool, options: object
) -> bool | None:
    """Leave out the fields of named tuples, which their class's docstring describes, and borrowed
    functions."""
    del app, what, name, skipped, options
    borrowed = not (getattr(thing, "__module__", None) or "mcmcpost").startswith("mcmcpost")
    return (
        True if borrowed or _FIELD_DOCSTRING.match(getattr(thing, "__doc__", None) or "") else None
    )


class Public(SphinxDirective):
    """Document every name in ``__all__`` of a package that no package named before it has.

    The arguments are the package and those whose names are left out.
    """

    required_arguments = 1
    optional_arguments = 10

    def run(self) -> list[nodes.Node]:
        """Return the sections of functions and classes."""
        package, *others = self.arguments
        module = importlib.import_module(package)
        known = {
            id(getattr(other, n))
            for other in map(importlib.import_module, others)
            for n in other.__all__
        }
        lines = []
        for name in sorted(module.__all__, key=str.lower):
            thing = getattr(module, name)
            if id(thing) in known or not callable(thing):
                continue
            kind = "autoclass" if isinstance(thing, type) else "autofunction"
            lines += [
                f".. {kind}:: {package}.{name}",
                *(["   :members:"] if kind == "autoclass" else []),
                "",
            ]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect before numpydoc."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-skip-member", skip)
    app.add_directive("public", Public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
