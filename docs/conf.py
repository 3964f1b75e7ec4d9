"""Configuration of the documentation: Sphinx, from the docstrings, with nothing loaded from the
network."""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mcmcpost"
author = "mcmcpost developers"
version = release = installed("mcmcpost")
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "docstrings",
    "keyboard",
    "mathml",
    "source_path",
]
if "READTHEDOCS" in os.environ:  # .ci/run builds without a network
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "arviz_base": ("https://python.arviz.org/projects/base/en/stable/", None),
        "arviz_stats": ("https://python.arviz.org/projects/stats/en/stable/", None),
        "jax": ("https://docs.jax.dev/en/latest/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
        "xarray": ("https://docs.xarray.dev/en/stable/", None),
    }
exclude_patterns = ["_build", "methods/_*"]
default_role = "py:obj"
add_module_names = False
maximum_signature_line_length = 100
python_display_short_literal_types = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
myst_heading_slug_func = "slugs.slug"
myst_dmath_double_inline = True

doctest_global_setup = """
import warnings

import jax
import numpy as np

import mcmcpost
import mcmcpost as mp

warnings.simplefilter("error")
jax.config.update("jax_enable_x64", True)
# The examples are small: compiling them is what costs.
jax.config.update("jax_disable_most_optimizations", True)
rng = np.random.default_rng(0)
"""
doctest_test_doctest_blocks = ""
trim_doctest_flags = True

html_theme = "furo"
html_title = f"mcmcpost {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}
