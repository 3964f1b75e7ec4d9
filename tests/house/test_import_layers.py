"""Imports point one way: the layer table of the design, enforced on the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mcmcpost"

LAYERS = (
    ("_core",),
    ("trace", "scores", "kernels", "linops"),
    ("stein", "linsolve"),
    ("hyper",),
    ("gp", "control"),
    ("evidence", "surrogate", "optimize"),
    ("io", "report"),
    ("api",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
SIDEWAYS = {("linops", "kernels"), ("scores", "trace")}
TREES = ("xarray", "arviz", "arviz_base", "arviz_stats", "arviz_plots")
NOT_OURS = ("models", "benchmarks", "notebooks", "tests")
HEAVY = (*TREES, "numpyro", "diffrax", "matplotlib", "jinja2", "typer")


class Import(NamedTuple):
    """One imported name; `typing_only` under ``if TYPE_CHECKING``, `lazy` inside a function."""

    name: str
    line: int
    typing_only: bool
    lazy: bool


def imports(source: str) -> Iterator[Import]:
    def walk(node: ast.AST, typing_only: bool, lazy: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                yield from (Import(alias.name, node.lineno, typing_only, lazy) for alias in node.names)
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                yield from (Import(f"{module}.{alias.name}", node.lineno, typing_only, lazy) for alias in node.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for child in node.body:
                    yield from walk(child, True, lazy)
                for child in node.orelse:
                    yield from walk(child, typing_only, lazy)
            case _:
                inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                for child in ast.iter_child_nodes(node):
                    yield from walk(child, typing_only, inside)

    yield from walk(ast.parse(source), False, False)


def component(target: str) -> str:
    """Return the row entry that the dotted name belongs to; names re-exported by the package belong to `__init__`."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROW else "__init__"


def violations(home: str, source: str) -> list[str]:
    """Return what the imports of one module of the package break; `home` is its row entry."""
    if home not in ROW:
        return [f"{home} is in no layer"]
    found = []
    for name, line, typing_only, lazy in imports(source):
        top = name.split(".")[0]
        if name.startswith("."):
            found.append(f"{home}:{line} relative import {name}")
        elif top in NOT_OURS:
            found.append(f"{home}:{line} imports {top}")
        elif top in TREES:
            edge = ROW[home] >= ROW["io"]
            statistics = home == "_core" and lazy and name.startswith("arviz_stats.base")
            own_methods = home in ("control", "evidence") and (lazy or typing_only) and top == "xarray"
            if not (edge or statistics or own_methods):
                found.append(f"{home}:{line} imports {top}")
        elif top == "mcmcpost":
            target = component(name)
            if target != home and ROW[target] >= ROW[home] and (home, target) not in SIDEWAYS:
                found.append(f"{home}:{line} imports {name} from its own row or a row below")
    return found


def outside_violations(source: str) -> list[str]:
    """Return what the imports of a benchmark or a notebook break: names of the package or of a sub-package only."""
    return [
        f"line {line} imports {name}" for name, line, *_ in imports(source) if name.startswith(".") or is_inside(name)
    ]


def is_inside(name: str) -> bool:
    """Whether a dotted name lies in a module that is not a package, or is such a module."""
    top, *parts = name.split(".")
    place = PACKAGE
    for part in parts if top == "mcmcpost" else []:
        if part.startswith("_") or (place / f"{part}.py").exists():
            return True
        place /= part
    return False


def home_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(PACKAGE.rglob("*.py"))
OUTSIDE = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "notebooks").rglob("*.py")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_import_only_from_rows_above(path):
    assert violations(home_of(path), path.read_text()) == []


def test_a_folder_has_at_most_fifteen_modules():
    """More are two subjects, or fragments of one."""
    sizes = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in MODULES}}
    assert {str(folder): size for folder, size in sizes.items() if size > 15} == {}


def test_benchmarks_and_notebooks_import_public_names_only():
    found = {str(path): outside_violations(path.read_text()) for path in OUTSIDE}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("kernels", "from mcmcpost.stein import SteinKernel"),
        ("kernels", "import mcmcpost.stein"),
        ("kernels", "def f():\n    from mcmcpost.control import Auto"),
        ("kernels", "from mcmcpost.linops import gram"),
        ("trace", "from mcmcpost.scores import check_scores"),
        ("stein", "from mcmcpost.linsolve import Cholesky"),
        ("control", "from mcmcpost import expectation"),
        ("control", "import mcmcpost"),
        ("io", "from mcmcpost.report import html"),
        ("io", "import mcmcpost.cli"),
        ("control", "import xarray as xr"),
        ("control", "def f():\n    import arviz"),
        ("gp", "def f():\n    import xarray"),
        ("scores", "def f():\n    from arviz_stats.base import array_stats"),
        ("_core", "from arviz_stats.base import array_stats"),
        ("_core", "def f():\n    import arviz"),
        ("io", "from models import lotka_volterra"),
        ("io", "from ._files import load_tree"),
        ("novel", "import numpy"),
    ],
)
def test_a_planted_violation_is_caught(home, source):
    assert len(violations(home, source)) == 1


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("linops", "from mcmcpost.kernels import gram"),
        ("scores", "from mcmcpost.trace import Trace"),
        ("control", "from mcmcpost.control.least_squares import Basis\nimport numpy"),
        ("cli", "import mcmcpost\nif TYPE_CHECKING:\n    import xarray"),
        ("_core", "def f():\n    from arviz_stats.base import array_stats"),
        ("report", "import arviz_plots"),
        ("control", "def f():\n    import xarray"),
        ("evidence", "if TYPE_CHECKING:\n    import xarray"),
        ("__init__", "from mcmcpost.io import load_tree"),
    ],
)
def test_what_the_table_allows_passes(home, source):
    assert violations(home, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from mcmcpost._core.mcse import mcse_mean",
        "from mcmcpost.control import auto",
        "from mcmcpost.control.auto import Auto",
        "import mcmcpost.api.evidence",
    ],
)
def test_a_private_name_in_a_benchmark_is_caught(source):
    assert len(outside_violations(source)) == 1


def test_only_a_budget_that_the_user_gives_in_seconds_reads_a_clock():
    """`LBFGS` and `Adam` take `max_seconds`, infinite by default; nothing else may depend on the time.

    The command line measures times to tell and to record them.
    """
    clocks = ("time", "timeit", "datetime")
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for imported in imports(path.read_text())
        if imported.name.partition(".")[0] in clocks
    }
    assert reading == {"hyper/optimisers.py", "cli/progress.py"}


def test_importing_stays_light():
    """The package loads nothing that computes or draws, and its command line no more than Typer for its help."""
    loaded = f"print(*[m for m in {('jax', 'numpy', *HEAVY)} if m in sys.modules])"
    code = f"import sys, mcmcpost\n{loaded}\nimport mcmcpost.cli.app\n{loaded}\nimport mcmcpost.io\n{loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "typer", "jax numpy typer"]
