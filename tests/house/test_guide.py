"""The quick starts of the guide run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = dict(
    re.findall(
        r"<!-- run:(\w+) -->\n```python\n(.*?)```",
        (ROOT / "docs/guide/start.md").read_text(),
        re.DOTALL,
    )
)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("numpyro", "stan", "arrays"), marks=pytest.mark.slow),
        pytest.param(("pymc",), marks=pytest.mark.interop),
    ],
    ids="-".join,
)
def test_a_quick_start_runs_as_it_is_printed(names):
    program = "\n".join(BLOCKS[name] for name in names)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "mean_cv" in done.stdout


def test_every_quick_start_is_run():
    assert set(BLOCKS) == {"numpyro", "stan", "arrays", "pymc"}
