"""One device, four emulated devices and two processes give the same numbers."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CASE = Path(__file__).parent / "device_case.py"


def start(processes: int, rank: int, port: int, devices: int) -> subprocess.Popen[str]:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(CASE), str(processes), str(rank), str(port)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_devices_and_processes_give_the_same_numbers():
    alone = result(start(1, 0, 0, 1))
    four = result(start(1, 0, 0, 4))
    port = free_port()
    pair = [start(2, rank, port, 1) for rank in range(2)]
    two = [result(process) for process in pair]
    assert [case["devices"] for case in (alone, four, *two)] == [1, 4, 2, 2]
    assert [case["automatic"] for case in (alone, four, *two)] == [1, 1, 2, 2]
    for other in (four, *two):
        for name in ("matern", "stein"):
            for got, wanted in zip(other[name], alone[name], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-10)
