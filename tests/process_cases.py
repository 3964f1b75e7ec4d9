"""Scripts that run in one process or in several of ``jax.distributed``, on one machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_processes(
    script: Path, number: int, *arguments: object, devices: int = 1, **environment: str
) -> list[str]:
    """Return what `number` processes of a script print; its last arguments are their number, its
    rank and a port."""
    port = free_port()
    place = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"} | environment
    running = [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, (*arguments, number, rank, port))],
            env=place,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(number)
    ]
    printed = []
    for process in running:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        printed.append(out)
    return printed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
