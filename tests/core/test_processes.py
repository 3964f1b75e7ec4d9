"""Two processes give the numbers of one, each the whole result, and the first of them writes the
files."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from process_cases import run_processes

CASE = Path(__file__).parent / "process_case.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folders of a run in one process and of one in two, which goes on from a ladder of
    the first."""
    alone, two = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("two")
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    run_processes(CASE, 1, alone, **cache)
    shutil.copy(alone / "exchange.checkpoint", two)
    run_processes(CASE, 2, two, **cache)
    return alone, two


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(folders):
    alone, *both = (
        dict(np.load(file))
        for file in (folders[0] / "0.npz", folders[1] / "0.npz", folders[1] / "1.npz")
    )
    for number, found in ((1, alone), (2, both[0]), (2, both[1])):
        assert found.pop("number_of_processes") == number
    for found in both:
        assert found.keys() == alone.keys()
        for name, wanted in alone.items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_the_first_process_writes_the_files(folders):
    written = {path.name for path in folders[1].iterdir()}
    assert written == {
        "0.npz",
        "1.npz",
        "scores.nc",
        "report.html",
        "independent.checkpoint",
        "exchange.checkpoint",
    }
