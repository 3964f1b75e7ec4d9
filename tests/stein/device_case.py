"""A solve to run in processes with different devices: prints its solution as JSON."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np


def main(processes: int, rank: int, port: int) -> None:
    jax.config.update("jax_enable_x64", True)
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, rank)
    from mcmcpost.solve import ConjugateGradients, solve
    from mcmcpost.stein import InverseMultiquadric, Matern32, stein_operator
    from mcmcpost.stein.products import (
        Regularised,
        TileOperator,
        bilinear_gradient,
        device_mesh,
        kernel_operator,
    )

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(280, 3)), rng.normal(size=(280, 2))
    automatic = device_mesh()
    mesh = (
        jax.sharding.Mesh(np.array(jax.devices()), ("devices",)) if jax.device_count() > 1 else None
    )
    found = {"devices": jax.device_count(), "automatic": 1 if automatic is None else automatic.size}
    for name, operator in (
        ("matern", kernel_operator(Matern32(1.0), X, block=32)),
        ("stein", stein_operator(InverseMultiquadric(1.0), X, -X, block=32)),
    ):
        shared = TileOperator(
            operator.tile, operator.rows, operator.diagonal(), block=32, mesh=mesh
        )
        solution = solve(
            Regularised(shared, jnp.asarray(0.5)),
            jnp.asarray(y),
            ConjugateGradients(1e-12, 200, 30),
        )
        value = np.asarray(solution.value.addressable_data(0))
        found[name] = [value[:5].tolist(), float(np.abs(value).sum())]
    slope = bilinear_gradient(
        Matern32(jnp.array([1.0, 0.7, 1.3])), jnp.asarray(X), *sides(y), block=32, mesh=mesh
    )
    found["gradient"] = np.asarray(slope.lengthscale.addressable_data(0)).tolist()
    print(json.dumps(found))


def sides(y: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(y), jnp.asarray(y[::-1].copy())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
