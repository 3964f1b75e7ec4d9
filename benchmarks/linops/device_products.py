"""Whether dense products of programs that span several CPU devices are right.

    python -m benchmarks.linops.device_products

Two processes, with one and with two CPU devices, each run three programs: LᵀL after the loop of a
pivoted Cholesky factor L (n = 4,000) by itself and before a product shared by the devices, and
scores of a logistic regression (5,000 rows, 60 coefficients) of 2,000 draws, a share of them on
every device. Errors are against NumPy, relative, the largest of three calls. This is why
`device_mesh` leaves several CPU devices of one process alone.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks._command import Command
from benchmarks._table import emit
from mcmcpost.stein import Matern32
from mcmcpost.stein.products import KernelTile, TileOperator, pivoted_cholesky


def main() -> None:
    parser = Command(__doc__, quick="--ranks 1000")
    parser.add_argument("--ranks", type=int, nargs="+", default=[300, 600, 1_000, 1_400])
    parser.add_argument("--child", action="store_true", help="what each process runs")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(errors(args.ranks)))
        return
    rows = []
    for devices in (1, 2):
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "benchmarks.linops.device_products", "--child"]
        command += ["--ranks", *map(str, args.ranks)]
        run = subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, check=True
        )
        rows += [{"devices": devices} | row for row in json.loads(run.stdout.splitlines()[-1])]
    emit("device_products", "relative errors of dense products on several CPU devices", rows)


def errors(ranks: list[int]) -> list[dict[str, float | str]]:
    jax.config.update("jax_enable_x64", True)
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    everywhere, shares = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("devices")),
    )
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4_000, 18)))
    operator = TileOperator(
        KernelTile(Matern32(8.0)), x, jnp.ones(len(x)), mesh=mesh if mesh.size > 1 else None
    )
    rows: list[dict[str, float | str]] = []
    for rank in ranks:

        def factor(x: jax.Array, rank: int = rank) -> tuple[jax.Array, jax.Array]:
            L = pivoted_cholesky(TileOperator(operator.tile, x, operator.diagonal()), rank)
            return L, L.T @ L

        alone = jax.jit(factor, out_shardings=everywhere)
        before = jax.jit(
            lambda x, factor=factor: (*factor(x), operator.matmul(x)), out_shardings=everywhere
        )
        for name, program in (("alone", alone), ("before a shared product", before)):
            gaps = []
            for _ in range(3):
                L, square = program(x)[:2]
                truth = np.asarray(L).T @ np.asarray(L)
                gaps += [
                    np.abs(np.asarray(copy.data) - truth).max()
                    for copy in square.addressable_shards
                ]
            rows.append(
                {"program": f"LᵀL {name}", "rank": rank, "error": float(max(gaps) / truth.max())}
            )
    features, draws = rng.normal(size=(5_000, 60)), rng.normal(size=(2_000, 60)) / 8
    score = jax.grad(lambda draw: -jnp.sum(jnp.log1p(jnp.exp(jnp.asarray(features) @ draw))))
    scores = jax.jit(jax.vmap(score), in_shardings=shares)
    truth = -(1 / (1 + np.exp(-draws @ features.T))) @ features
    gap = max(np.abs(np.asarray(scores(draws)) - truth).max() for _ in range(3))
    rows.append({"program": "scores", "rank": 60, "error": float(gap / np.abs(truth).max())})
    return rows


if __name__ == "__main__":
    main()
