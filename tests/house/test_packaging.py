"""What is declared is what is used: dependencies, extras, entry point, versions."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mcmcpost

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BROUGHT = {
    "markupsafe": "jinja2",
    "arviz_base": "arviz",
    "arviz_stats": "arviz",
    "arviz_plots": "arviz",
    "pytensor": "pymc",
    "lazy_loader": "lazy-loader",
}


def distribution(requirement):
    return re.match(r"[A-Za-z0-9_-]+", requirement)[0]


def third_party(folder):
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return {BROUGHT.get(name, name) for name in names - set(sys.stdlib_module_names)}


def test_the_version_is_the_installed_one_and_that_of_the_changelog():
    """It is written in ``__init__`` alone, but for what cites it."""
    assert version("mcmcpost") == mcmcpost.__version__
    released = re.findall(
        r"^## (\d\S*) – (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    cited = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)\ndate-released: (.*)$", cited, re.MULTILINE) == released[:1]
    assert released[0][0] == mcmcpost.__version__


def test_type_checkers_are_told_that_the_package_is_typed():
    assert (ROOT / "mcmcpost" / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="mcmcpost")
    assert script.value == "mcmcpost.app:main"


def test_every_import_of_the_package_is_declared():
    declared = {distribution(requirement) for requirement in PROJECT["dependencies"]}
    optional = {
        distribution(requirement)
        for extra in ("plots", "report", "interop", "dask")
        for requirement in EXTRAS[extra]
    }
    assert third_party("mcmcpost") - declared - optional - {"mcmcpost"} <= set()


def test_every_import_of_the_models_is_declared():
    assert third_party("models") <= {
        distribution(requirement) for requirement in PROJECT["dependencies"]
    }


@pytest.mark.parametrize(
    "requirement", [r for group in (PROJECT["dependencies"], *EXTRAS.values()) for r in group]
)
def test_requirements_are_ranges(requirement):
    assert "==" not in requirement
    assert "@" not in requirement  # no hosts
    assert ">=" in requirement or requirement.startswith("mcmcpost[")


def test_python_and_license_are_stated():
    assert (ROOT / ".python-version").read_text().strip() == "3.12"
    assert PROJECT["requires-python"] == ">=3.12"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_no_lock_file_is_committed():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    assert not [
        name for name in tracked.splitlines() if name.endswith((".lock", "requirements.txt"))
    ]


def test_the_forge_and_the_hooks_run_what_a_developer_runs():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for script in ("run", "slow", "lowest"):
        assert f"run: .ci/{script}\n" in workflow
    newer = re.findall(r'python: \["(.*)"\]', workflow)
    said = [
        c.rsplit(" ", 1)[1]
        for c in PROJECT["classifiers"]
        if re.fullmatch(r".*Python :: 3\.\d+", c)
    ]
    assert said == [(ROOT / ".python-version").read_text().strip(), *newer]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    (ruff,) = (requirement for requirement in EXTRAS["test"] if requirement.startswith("ruff"))
    (hooked,) = re.findall(r"ruff-pre-commit\n    rev: v(.*)", hooks)
    assert Requirement(ruff).specifier.contains(hooked)


def test_what_is_built_is_the_package_and_its_models():
    """`.ci/run` builds it and uses it in an empty environment."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    assert build["wheel"]["force-include"] == {"models": "mcmcpost/examples"}
    assert build["sdist"]["only-include"][:2] == ["mcmcpost", "models"]
    assert {path.suffix for path in (ROOT / "models").iterdir() if path.is_file()} == {".py"}
