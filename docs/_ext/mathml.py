"""TeX formulas as MathML at build time: a reader needs neither MathJax nor a network."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def mathml(formula: str, display: str) -> str:
    """Return the formula, with the thin space that TeX has between a logarithm and its argument."""
    return re.sub(
        r"(<mi>log</mi>)(?=<mi>)", r'\1<mspace width="0.17em"/>', convert(formula, display=display)
    )


def visit_math(self: nodes.NodeVisitor, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(self: nodes.NodeVisitor, node: nodes.math_block) -> None:
    """Write a displayed formula, which scrolls by itself where it is too wide."""
    self.body.append(f'<div class="formula" tabindex="0">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer in place of MathJax."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
