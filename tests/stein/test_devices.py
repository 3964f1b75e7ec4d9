"""One device, four emulated devices and two processes give the same numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
from process_cases import run_processes

CASE = Path(__file__).parent / "device_case.py"


@pytest.mark.slow
def test_devices_and_processes_give_the_same_numbers():
    runs = run_processes(CASE, 1), run_processes(CASE, 1, devices=4), run_processes(CASE, 2)
    alone, four, *two = (json.loads(printed.splitlines()[-1]) for run in runs for printed in run)
    assert [case["devices"] for case in (alone, four, *two)] == [1, 4, 2, 2]
    assert [case["automatic"] for case in (alone, four, *two)] == [1, 1, 2, 2]
    for other in (four, *two):
        np.testing.assert_allclose(other["gradient"], alone["gradient"], rtol=1e-10)
        for name in ("matern", "stein"):
            for got, wanted in zip(other[name], alone[name], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-10)
