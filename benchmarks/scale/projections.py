"""What three large problems would cost, computed from rates that are measured here on one core.

    taskset -c 0 python -m benchmarks.scale.projections

Nothing of that size is run. Measured are the CPU seconds of

- a reduction at degree one of a generated trace in chunks (50 parameters, 5 integrands), by two
  sizes: what the tasks take, the making of the draws and the additions included, for each draw,
  and how large the sums are that a task returns. With pieces that are small, so that there are
  many: what the client takes beside the tasks, once and for each piece (tasks have to be told). Of
  both sizes as many draws are looked at, since one is four times the other;
- the gradients of the Lotka–Volterra posterior at a batch of draws, as many as one GPU has chains
  of a ladder;
- an entry of a Stein kernel matrix (8 coordinates) in a product.

Computed are the seconds of one of the workers (``worker s``) and of the client, or of what every
process does (``client s``), the gigabytes that one worker and the client send and receive over the
run, and their memory, scratch files counted. Assumed: workers are cores of this speed, and a GPU is
``--gpu`` times as fast as one of them at the batch of a ladder. Its 16 chains are too few to fill a
GPU, which waits for its next program most of the time: by default it is taken to be no faster. The
network and the reading of the store are not in the seconds.
"""

import pickle
import time
from typing import Any
from unittest.mock import patch

import dask
import jax
import jax.numpy as jnp
import numpy as np
from dask.callbacks import Callback
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_value
from numpyro.infer.util import initialize_model

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit
from benchmarks.scale.lazy_traces import BLOCK, generated
from mcmcpost import sums
from mcmcpost.control import Sums
from mcmcpost.core import arrays
from mcmcpost.stein import InverseMultiquadric, SteinTile
from mcmcpost.stein.products import TileOperator, tile_diagonal
from models import lotka_volterra

PARAMETERS, PASSES = 50, 4
"""The parameters of the trace, and how often draws or scores are read: both twice, first for every
so many."""

PIECE, TOLD = 1 << 13, (0.05, 0.2)
"""Entries of the pieces, and gigabytes of the traces, of which the client's time is measured."""

RUNGS, CHAINS, GPUS, LADDER_DRAWS, LEAPFROGS = 31, 4, 8, 4_000, 16
"""A ladder: chains of each rung, GPUs, iterations with warm-up, and gradients of an iteration."""

WEIGHTED, COORDINATES, PRODUCTS, RANK = 10_000_000, 8, 20, 100
"""Draws of Stein weights, their coordinates, products until they are good enough, and the
preconditioner's rank."""


class TaskSeconds(Callback):
    """CPU seconds of all tasks of dask, run one after the other, and the bytes of the sums that
    they return."""

    def __init__(self) -> None:
        self.seconds = self.start = 0.0
        self.last = 0
        super().__init__(pretask=self._begin, posttask=self._end)

    def _begin(self, *_: Any) -> None:
        self.start = time.process_time()

    def _end(self, _key: Any, value: Any, *_: Any) -> None:
        self.seconds += time.process_time() - self.start
        if isinstance(value, list) and isinstance(value[0], Sums):
            self.last = len(pickle.dumps(value))


def main() -> None:
    parser = Command(__doc__, quick="--gigabytes 0.05 0.2")
    parser.add_argument(
        "--gigabytes", type=float, nargs=2, default=[0.25, 1.0], help="of the measured traces"
    )
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument(
        "--gpu", type=float, default=1.0, help="cores that a GPU is taken to be worth"
    )
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = [store(args.gigabytes, args.workers), ladder(args.gpu), weights(args.workers)]
    emit("projections", "Large problems, from rates of one core", rows, gpu=args.gpu)


def store(gigabytes: list[float], workers: int) -> dict[str, Any]:
    """Return a reduction of a billion draws of a Zarr store."""
    reduced(gigabytes[0])  # compiles
    (few, some, _), (many, more, tasks) = (reduced(size) for size in gigabytes)
    in_tasks = (more[0] - some[0]) / (many - few)
    with patch.object(arrays, "LARGE", PIECE), patch.object(sums, "LARGE", PIECE):
        (few, some, _), (many, more, _) = (reduced(size, PIECE) for size in TOLD)
    told = (more[1] - some[1]) / pieces(many - few, PIECE)
    # the gate, R-hat and the estimate, of as many draws as are looked at
    once = some[1] - told * pieces(few, PIECE)
    draws = 10**9
    size = arrays.piece_size(draws * PARAMETERS, arrays.LARGE)
    number = pieces(draws, size)
    # every task returns its sums once, to a worker that adds them
    returned = tasks.last * number
    return {
        "problem": f"{draws:.0e} draws of a store, {workers} workers",
        "rate of a core": f"{1e6 * in_tasks:.2f} µs a draw, {1e3 * told:.2f} ms a piece",
        "worker s": draws * in_tasks / workers,
        "client s": once + number * told,
        "worker GB": (draws * 8 * PASSES * PARAMETERS + returned) / workers / 1e9,
        "client GB": tasks.last / 1e9,
        # of its own, the draws and scores of a piece, and one of both as it is read
        "worker memory GB": 0.3 + 3 * size * 8 / 1e9,
        "client memory GB": 2 * tasks.last / 1e9,
    }


def pieces(draws: int, size: int) -> float:
    """Return in how many pieces of `size` entries so many draws are read."""
    return draws * PARAMETERS / size


def reduced(gigabytes: float, piece: int = BLOCK) -> tuple[int, np.ndarray, TaskSeconds]:
    """Return the draws of a reduction, the CPU seconds of the tasks and of the rest, and what the
    tasks returned."""
    tree, start = generated(gigabytes, PARAMETERS, piece), time.process_time()
    with dask.config.set(scheduler="synchronous"), TaskSeconds() as tasks:
        found = mp.expectation(tree, sorted(map(str, tree["posterior"].data_vars)), "zv1")
    seconds = time.process_time() - start
    return found.info["num_draws"], np.array([tasks.seconds, seconds - tasks.seconds]), tasks


def ladder(gpu: float) -> dict[str, Any]:
    """Return a ladder of an ODE with exchange at every iteration."""
    rungs = -(-RUNGS * CHAINS // GPUS)
    info = initialize_model(
        jax.random.key(0),
        lotka_volterra.model,
        init_strategy=init_to_value(values=lotka_volterra.init()),
        model_kwargs=lotka_volterra.data(),
    )
    flat, unravel = ravel_pytree(info.param_info.z)
    starts = flat + 0.05 * jax.random.normal(jax.random.key(1), (rungs, len(flat)))
    gradient = jax.jit(jax.vmap(jax.value_and_grad(lambda x: info.potential_fn(unravel(x)))))
    seconds = timed(lambda: gradient(starts)) / rungs
    d, steps = 8, LADDER_DRAWS * LEAPFROGS
    exchanged = LADDER_DRAWS * RUNGS * CHAINS * 8 * (2 * d + 2)  # draw, gradient, likelihood, prior
    records = LADDER_DRAWS / 2 * RUNGS * CHAINS * 8 * (3 * d + 4)
    return {
        "problem": f"{RUNGS} × {CHAINS} chains of an ODE, {LADDER_DRAWS} × {LEAPFROGS} gradients, "
        f"{GPUS} GPUs",
        "rate of a core": f"{1e6 * seconds:.0f} µs a gradient",
        "worker s": steps * rungs * seconds / gpu,
        "client s": 0.0,
        "worker GB": (exchanged + records) / 1e9,
        "client GB": (exchanged + records) / 1e9,
        "worker memory GB": records / 1e9,
        "client memory GB": records / 1e9,
    }


def weights(workers: int) -> dict[str, Any]:
    """Return Stein weights by conjugate gradients, tiles shared by all processes."""
    rng, size = np.random.default_rng(0), 8_192
    x = jnp.asarray(rng.normal(size=(size, COORDINATES)))
    tile, rows = SteinTile(InverseMultiquadric(4.0)), (x, -x)
    operator = TileOperator(tile, rows, tile_diagonal(tile, rows))
    right = jnp.ones((size, 1))
    seconds = timed(lambda: operator.matmul(right)) / size**2
    m = float(WEIGHTED)
    product = 2 * m * 8  # each process adds its part and gets the sum
    memory = m * 8 * (2 * COORDINATES + RANK + 6)
    return {
        "problem": f"Stein weights of {m:.0e} draws, {PRODUCTS} products, {workers} processes",
        "rate of a core": f"{1e9 * seconds:.2f} ns an entry",
        "worker s": PRODUCTS * m**2 * seconds / workers,
        "client s": m * RANK**2 * 1e-9,
        "worker GB": PRODUCTS * product / 1e9,
        "client GB": PRODUCTS * product / 1e9,
        "worker memory GB": memory / 1e9,
        "client memory GB": memory / 1e9,
    }


def timed(call: Any) -> float:
    """Return the CPU seconds of the fastest of five calls, after one that compiles."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(5):
        start = time.process_time()
        jax.block_until_ready(call())
        seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
