"""Throughput of a Matérn-3/2 kernel product on one core, as ratios of one run, and on all devices.

    python -m benchmarks.linops.kernel_product
    python -m benchmarks.linops.kernel_product --peers PYTHON  # with torch, pykeops and gpytorch
    JAX_NUM_CPU_DEVICES=2 python -m benchmarks.linops.kernel_product --devices
    taskset -c 0 python -m benchmarks.linops.kernel_product --stein

CPU seconds of the fastest of five calls, so that a shared machine matters little; ``--devices``
takes wall seconds of one core (every thread of one device held on it), of one device, whose program
uses several, and of all devices. ``sgemm`` is the product with a dense matrix of the same size, in
the same precision. Targets: 2.6 times the broadcast product in fp64, 8 times KeOps and GPyTorch in
fp32, 0.9 of gemm at 65 right-hand sides; two cores 1.7 times one. ``--stein`` multiplies Stein
kernels (d = 8, one right-hand side, fp64) in tiles of several sizes.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks._command import Command
from benchmarks._table import emit
from mcmcpost.stein import (
    InverseMultiquadric,
    Matern32,
    Matern52,
    RationalQuadratic,
    SquaredExponential,
    stein_operator,
)
from mcmcpost.stein.products import KernelTile, TileOperator

CASES = ((8, 1), (26, 65))
TILES = (128, 256, 512)
STEIN = {
    "squared exponential": SquaredExponential(4.0),
    "Matérn-5/2": Matern52(4.0),
    "inverse multiquadric": InverseMultiquadric(4.0),
    "inverse multiquadric, exponent given": InverseMultiquadric(4.0, 0.5),
    "rational quadratic": RationalQuadratic(4.0),
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--size 2048")
    parser.add_argument("--size", type=int, default=8_192)
    parser.add_argument(
        "--peers", default=None, help="an interpreter with torch, pykeops and gpytorch"
    )
    parser.add_argument("--devices", action="store_true", help="one device against all of them")
    parser.add_argument("--stein", action="store_true", help="Stein kernels by tile size")
    args = parser.parse_args()
    if args.stein:
        emit(
            "kernel_product_stein",
            "Stein kernel products, million entries/s",
            stein(args),
            size=args.size,
            d=8,
        )
        return
    rows = [row for d, k in CASES for row in (devices if args.devices else single)(args, d, k)]
    name = "kernel_product_devices" if args.devices else "kernel_product"
    emit(name, "kernel products, Matérn-3/2", rows, size=args.size, devices=jax.device_count())


def data(n: int, d: int, k: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(n, d)), dtype), jnp.asarray(rng.normal(size=(n, k)), dtype)


def one_device(x: jax.Array) -> TileOperator:
    return TileOperator(KernelTile(Matern32(jnp.ones((), x.dtype))), x, jnp.ones(len(x), x.dtype))


@jax.jit
def broadcast(x: jax.Array, v: jax.Array) -> jax.Array:
    """The product as one would write it: all differences of 64 rows at a time, broadcast."""

    def block(rows: jax.Array) -> jax.Array:
        r = jnp.sqrt(3 * jnp.sum((rows[:, None] - x[None]) ** 2, -1))
        return ((1 + r) * jnp.exp(-r)) @ v

    return jax.lax.map(block, x.reshape(-1, 64, x.shape[1])).reshape(len(x), -1)


def fastest(call: Callable[[], object], clock: Callable[[], float]) -> float:
    jax.block_until_ready(call())
    best = np.inf
    for _ in range(5):
        start = clock()
        jax.block_until_ready(call())
        best = min(best, clock() - start)
    return best


def single(args: argparse.Namespace, d: int, k: int) -> list[dict[str, Any]]:
    n, rows, peers = args.size, [], {}
    if args.peers:
        command = [args.peers, "-m", "benchmarks.linops._product_peers", str(n), str(d), str(k)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        peers = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        if done.returncode:
            print(done.stderr)
    for name, dtype in (("fp64", np.float64), ("fp32", np.float32)):
        x, v = data(n, d, k, dtype)
        dense = jnp.asarray(np.random.default_rng(1).normal(size=(n, n)), dtype)
        operator = one_device(x)
        seconds = {
            "ours": fastest(lambda operator=operator, v=v: operator.matmul(v), time.process_time),
            "broadcast": fastest(lambda x=x, v=v: broadcast(x, v), time.process_time),
            "gemm": fastest(lambda dense=dense, v=v: dense @ v, time.process_time),
        } | {peer.split()[0]: value for peer, value in peers.items() if peer.endswith(name)}
        for who, value in seconds.items():
            rows.append(
                {
                    "d": d,
                    "right-hand sides": k,
                    "precision": name,
                    "who": who,
                    "cpu s": value,
                    "million entries/s": n * n / value / 1e6,
                    "who / ours": value / seconds["ours"],
                }
            )
    return rows


def stein(args: argparse.Namespace) -> list[dict[str, Any]]:
    x, v = data(args.size, 8, 1, np.float64)
    rows = []
    for name, kernel in STEIN.items():
        row: dict[str, Any] = {"kernel": name}
        for block in TILES:
            operator = stein_operator(kernel, x, -x, block=block)
            cpu = fastest(lambda operator=operator: operator.matmul(v), time.process_time)
            row[f"tiles of {block}"] = args.size**2 / cpu / 1e6
        rows.append(row)
    return rows


def hold(cores: set[int]) -> None:
    """Keep every thread of this process on some of the cores (Linux)."""
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def devices(args: argparse.Namespace, d: int, k: int) -> list[dict[str, Any]]:
    x, v = data(args.size, d, k, np.float64)
    alone, mesh = one_device(x), Mesh(np.array(jax.devices()), ("devices",))
    shared = TileOperator(alone.tile, x, alone.diagonal(), mesh=mesh)
    gap = float(jnp.abs(alone.matmul(v) - shared.matmul(v)).max())
    device = fastest(lambda: alone.matmul(v), time.perf_counter)
    every = fastest(lambda: shared.matmul(v), time.perf_counter)
    cores = os.sched_getaffinity(0)
    hold({min(cores)})
    core = fastest(lambda: alone.matmul(v), time.perf_counter)
    hold(cores)
    return [
        {
            "d": d,
            "right-hand sides": k,
            "one core s": core,
            "one device s": device,
            "all s": every,
            "core / all": core / every,
            "device / all": device / every,
            "difference": gap,
        }
    ]


if __name__ == "__main__":
    main()
