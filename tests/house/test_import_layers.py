"""Imports point one way: the rows, wings and doors of the design, enforced on the source."""

import ast
import functools
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mcmcpost"

MAIN_HOUSE = (
    ("core",),
    ("trace", "stein"),
    ("scores", "solve"),
    ("control",),
    ("evidence",),
    ("trees",),
    ("sample", "examples"),
    ("sums",),
    ("over_chunks",),
    ("distributions",),
    ("expectations",),
    ("sensitivity", "evidences", "stein_rules", "stopping"),
)
LAYERS = (*MAIN_HOUSE, ("tasks", "ladders", "gp"), ("__init__",), ("app",), ("__main__",))
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
WINGS = ("tasks", "ladders", "gp", "app")
"""The main house imports none of them, since they are in rows below; `app` alone imports others,
and by their doors."""
DOOR = 15
TREES = ("xarray", "arviz", "arviz_base", "arviz_stats", "arviz_plots")
NOT_OURS = ("models", "benchmarks", "notebooks", "tests")
HEAVY = (*TREES, "numpyro", "diffrax", "matplotlib", "jinja2", "typer")


class Import(NamedTuple):
    """One imported name; `typing_only` under ``if TYPE_CHECKING``, `lazy` inside a function."""

    name: str
    line: int
    typing_only: bool
    lazy: bool


@functools.cache
def imports(source: str) -> tuple[Import, ...]:
    def walk(node: ast.AST, typing_only: bool, lazy: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                yield from (
                    Import(alias.name, node.lineno, typing_only, lazy) for alias in node.names
                )
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                yield from (
                    Import(f"{module}.{alias.name}", node.lineno, typing_only, lazy)
                    for alias in node.names
                )
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for child in node.body:
                    yield from walk(child, True, lazy)
                for child in node.orelse:
                    yield from walk(child, typing_only, lazy)
            case ast.expr():  # half of the nodes, and no expression imports
                return
            case _:
                inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for child in ast.iter_child_nodes(node):
                    yield from walk(child, typing_only, inside)

    return tuple(walk(ast.parse(source), False, False))


def component(target: str) -> str:
    """Return the row entry that the dotted name belongs to; names re-exported by the package belong
    to `__init__`."""
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
            edge = ROW[home] >= ROW["trees"]
            statistics = home == "core" and lazy and name.startswith("arviz_stats.base")
            own_methods = (
                home in ("control", "evidence") and (lazy or typing_only) and top == "xarray"
            )
            if not (edge or statistics or own_methods):
                found.append(f"{home}:{line} imports {top}")
        elif top == "mcmcpost":
            target = component(name)
            if target == home:
                continue
            if ROW[target] >= ROW[home]:
                found.append(f"{home}:{line} imports {name} from its own row or a row below")
            elif target in WINGS and is_inside(name):
                found.append(f"{home}:{line} imports {name} past the door of {target}")
    return found


def outside_violations(source: str) -> list[str]:
    """Return what the imports of a notebook break: names of the package or of a sub-package
    only."""
    return [
        f"line {line} imports {name}"
        for name, line, *_ in imports(source)
        if name.startswith(".") or is_inside(name)
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


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circle(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Return modules, given as (name, source), that import each other when they are imported, or
    none."""
    sources = dict(sources)

    def imported(source: str) -> Iterator[str]:
        for name, _, typing_only, lazy in imports(source):
            while not (typing_only or lazy) and name:
                if name in sources:
                    yield name
                    break
                name = name.rpartition(".")[0]

    try:
        TopologicalSorter({name: {*imported(source)} for name, source in sources.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


MODULES = sorted(PACKAGE.rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_import_only_from_rows_above_and_through_doors(path):
    assert violations(home_of(path), path.read_text()) == []


def test_no_modules_import_each_other():
    assert circle((dotted(path), path.read_text()) for path in MODULES) == []


def test_a_folder_has_at_most_fifteen_modules():
    """More are two subjects, or fragments of one."""
    sizes = {
        folder: len({*folder.glob("*.py")} - {folder / "__init__.py"})
        for folder in {p.parent for p in MODULES}
    }
    assert {str(folder): size for folder, size in sizes.items() if size > 15} == {}


def test_a_module_has_at_most_seven_hundred_lines():
    """Lines of at most 100 columns with something on them."""
    sizes = {
        path.relative_to(PACKAGE).as_posix(): sum(map(bool, path.read_text().split("\n")))
        for path in MODULES
    }
    assert {path: size for path, size in sizes.items() if size > 700} == {}


def test_no_file_class_or_function_has_the_name_of_another():
    """Names of one file, those that begin with an underscore, may be used again in another."""
    files = Counter(path.stem for path in MODULES)
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    )
    twice = [name for kind in (files, names) for name, number in kind.items() if number > 1]
    assert twice == ["__init__"]


@pytest.mark.parametrize("wing", WINGS)
def test_a_door_has_few_names(wing):
    assert len(importlib.import_module(f"mcmcpost.{wing}").__all__) <= DOOR


def test_the_public_names_of_a_wing_come_through_its_door():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    modules = [
        node.module for node in stub.body if isinstance(node, ast.ImportFrom) and node.module
    ]
    assert [module for module in modules if module.split(".")[0] in WINGS and "." in module] == []


def test_notebooks_import_public_names_only():
    """Tests and benchmarks may reach inside."""
    found = {str(path): outside_violations(path.read_text()) for path in NOTEBOOKS}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("stein", "from mcmcpost.solve import Cholesky"),
        ("stein", "import mcmcpost.solve"),
        ("stein", "def f():\n    from mcmcpost.control import Auto"),
        ("trace", "from mcmcpost.scores import check_scores"),
        ("solve", "from mcmcpost.scores import check_scores"),
        ("control", "from mcmcpost import expectation"),
        ("control", "import mcmcpost"),
        ("evidence", "from mcmcpost.tasks import VectorValued"),
        ("evidence", "def f():\n    from mcmcpost.ladders import sample_ladder"),
        ("expectations", "if TYPE_CHECKING:\n    from mcmcpost.tasks import JointEstimate"),
        ("trees", "from mcmcpost.app import html_report"),
        ("ladders", "from mcmcpost.gp import IterativeGP"),
        ("app", "from mcmcpost.gp.iterative_gp import IterativeGP"),
        ("app", "from mcmcpost.ladders import lanes"),
        ("trees", "import mcmcpost.app"),
        ("control", "import xarray as xr"),
        ("control", "def f():\n    import arviz"),
        ("solve", "def f():\n    import xarray"),
        ("scores", "def f():\n    from arviz_stats.base import array_stats"),
        ("core", "from arviz_stats.base import array_stats"),
        ("core", "def f():\n    import arviz"),
        ("trees", "from models import lotka_volterra"),
        ("trees", "from ._files import load_tree"),
        ("novel", "import numpy"),
    ],
)
def test_a_planted_violation_is_caught(home, source):
    assert len(violations(home, source)) == 1


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("scores", "from mcmcpost.trace import Trace"),
        ("control", "from mcmcpost.control.least_squares import Basis\nimport numpy"),
        ("app", "import mcmcpost\nif TYPE_CHECKING:\n    import xarray"),
        ("app", "from mcmcpost.tasks import JointEstimate"),
        ("app", "from mcmcpost.evidence.ladder import PATH_POWER"),
        ("gp", "from mcmcpost.gp.actions import BlockActions"),
        ("core", "def f():\n    from arviz_stats.base import array_stats"),
        ("app", "import arviz_plots"),
        ("control", "def f():\n    import xarray"),
        ("evidence", "if TYPE_CHECKING:\n    import xarray"),
        ("__init__", "from mcmcpost.trees import load_tree"),
    ],
)
def test_what_the_table_allows_passes(home, source):
    assert violations(home, source) == []


def test_a_planted_circle_is_found():
    first, second = ("a", "from b import x"), ("b", "import a.y")
    assert {*circle([first, second])} == {"a", "b"}
    assert circle([first, ("b", "def f():\n    import a")]) == []


@pytest.mark.parametrize(
    "source",
    [
        "from mcmcpost.core.mcse import mcse_mean",
        "from mcmcpost.control import auto",
        "from mcmcpost.control.auto import Auto",
        "import mcmcpost.evidences",
    ],
)
def test_a_private_name_in_a_notebook_is_caught(source):
    assert len(outside_violations(source)) == 1


def test_only_a_budget_that_the_user_gives_in_seconds_reads_a_clock():
    """`LBFGS` and `Adam` take `max_seconds`, infinite by default; nothing else may depend on the
    time.

    The command line measures times to tell and to record them.
    """
    clocks = ("time", "timeit", "datetime")
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for imported in imports(path.read_text())
        if imported.name.partition(".")[0] in clocks
    }
    assert reading == {"solve/search.py", "app/edge.py"}


def test_importing_stays_light():
    """The package loads nothing that computes or draws, and its command line no more than Typer for
    its help."""
    loaded = f"print(*[m for m in {('jax', 'numpy', *HEAVY)} if m in sys.modules])"
    code = (
        f"import sys, mcmcpost\n{loaded}\nimport mcmcpost.app.command_line\n{loaded}\nimport "
        f"mcmcpost.trees\n{loaded}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "typer", "jax numpy typer"]
