"""What should run on an accelerator: its speed, its memory, and its error beside float64 on the
CPU.

    python -m benchmarks.gpu                          # prints the table of the accelerator at hand
    python -m benchmarks.gpu --record                 # and keeps it as results/gpu.json
    python -m benchmarks.gpu --pieces sums            # one piece: its own peak of memory
    python -m benchmarks.gpu --small                  # seconds on one core of a CPU

Four pieces, each on the default device of JAX. It needs JAX, NumPyro and diffrax, neither ArviZ nor
an installation of this package: run it from the root of a clone.

- ``sampling``: the Lotka–Volterra posterior of the hare–lynx counts, an ODE solve in each gradient:
  scores of draws, and NUTS, every chain in one program. Seconds of NUTS are those of the whole run,
  warm-up and compilation too, and draws/s are kept ones. The error is that of scores at random
  points.
- ``sums``: draws of independent normals and their scores, made on the device block by block; for
  each fold the Gram matrix φᵀφ of the controls φ = (1, s, 1 + z s) and φᵀf of the quantities f =
  z², all that a fit of control variates reads. A block is summed in the precision of the row,
  blocks are added in float64. The error is that of one block.
- ``products``: a Matérn-3/2 kernel and a Stein kernel times 65 right-hand sides, never stored.
- ``solves``: `IterativeGP` at fixed hyper-parameters: preconditioned conjugate gradients for the
  mean and the samples. The error is that of the mean, at a tolerance of 1e-8 on 1,000 rows.

GFLOP/s count the multiplications and additions of matrix products alone: 2q(q + p) of a draw, and
of an entry 2k times the right-hand sides and half of its own inner products, as a tile serves its
mirror image. Seconds are of a second call, with nothing to compile, except for sampling. The peak
of memory is the device's own, since the start of the process; a CPU tells none.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy, unconstrain_fn

from benchmarks._command import Command
from benchmarks._table import emit
from mcmcpost.gp import IterativeGP
from mcmcpost.solve import ConjugateGradients
from mcmcpost.stein import Matern32, SquaredExponential, gram, stein_gram, stein_operator
from mcmcpost.stein.products import TileOperator, kernel_operator
from models import lotka_volterra

FOLDS, QUANTITIES, RIGHT_HAND_SIDES, CHECKED_ROWS = 5, 16, 65, 1_000
NOISE = 0.1
"""Variance of the observations of the Gaussian process, whose amplitude is one."""


class Sizes(NamedTuple):
    """How large each piece is; by default for an accelerator, of whose memory a few gigabytes are
    enough."""

    chains: int = 1_024
    num_warmup: int = 20
    num_samples: int = 20
    depth: int = 4
    scores: int = 1 << 16
    draws: float = 1e8
    dimension: int = 200
    block: int = 1 << 17
    product_rows: int = 1 << 18
    solve_rows: int = 1 << 16


SMALL = Sizes(
    chains=2,
    num_warmup=2,
    num_samples=2,
    scores=64,
    draws=1e5,
    dimension=20,
    block=1 << 13,
    product_rows=1_024,
    solve_rows=1_024,
)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--small")
    parser.add_argument(
        "--small", action="store_true", help="sizes for a CPU, whatever the other options say"
    )
    parser.add_argument("--pieces", nargs="+", choices=PIECES, default=list(PIECES))
    for field, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--record", action="store_true", help="keep the table as results/gpu.json")
    args = parser.parse_args()
    sizes = (
        SMALL if args.small else Sizes(**{field: getattr(args, field) for field in Sizes._fields})
    )
    device = jax.devices()[0]
    rows: list[dict[str, Any]] = []
    for name in args.pieces:
        for row in PIECES[name](sizes):
            stats = device.memory_stats() or {}  # None on a CPU
            peak = stats["peak_bytes_in_use"] / 1e9 if "peak_bytes_in_use" in stats else "not told"
            rows.append({"device": device.device_kind, "piece": name} | row | {"peak GB": peak})
            print(rows[-1], flush=True)  # a run that is stopped has shown what it had
    emit(
        "gpu" if args.record else None, "What should run on an accelerator", rows, **sizes._asdict()
    )


def sampling(sizes: Sizes) -> Iterator[dict[str, Any]]:
    # A step of an ODE is a few small kernels, and their launches are the cost on a GPU, however
    # many chains share them. Eight derivatives carried forward take one loop over the steps: 20 ms
    # at 512 draws on an H100, where the way back, with its checkpoints, takes 74.
    # Draws take 70 to 95 steps, and all chains wait for the slowest: a proposal that needs more
    # than 128 is rejected, as one beyond the model's own cap is.
    arguments = lotka_volterra.data() | {"adjoint": diffrax.ForwardMode(), "max_steps": 128}
    start = lotka_volterra.init()
    centre = unconstrain_fn(lotka_volterra.model, (), arguments, start)
    # Near the mode, as chains in lockstep wait for the one that is lost; see
    # `mcmcpost.app.source.JITTER`.
    start_key, chain_key = jax.random.split(jax.random.key(0))
    keys = dict(zip(centre, jax.random.split(start_key, len(centre)), strict=True))

    def points(count: int) -> dict[str, jax.Array]:
        return {
            name: x + 0.05 * jax.random.normal(keys[name], (count,)) for name, x in centre.items()
        }

    def score(point: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return jax.jacfwd(lambda z: -potential_energy(lotka_volterra.model, (), arguments, z))(
            point
        )

    def scores(at: Any) -> np.ndarray:
        # A new function each time: programs are remembered by function, not by device.
        return _flat(jax.jit(jax.vmap(lambda point: score(point)))(at))

    starts = points(sizes.chains)
    on_device = scores(starts)
    with jax.default_device(jax.devices("cpu")[0]):
        on_cpu = scores(jax.tree.map(lambda part: np.asarray(part)[:CHECKED_ROWS], starts))
    error = _relative(on_device[:, :CHECKED_ROWS], on_cpu)
    compiled = jax.jit(jax.vmap(score))
    many = points(sizes.scores)
    seconds = _second_call(lambda: compiled(many))
    yield _row(f"scores, {sizes.scores:,} draws", "float64", seconds, error, draws=sizes.scores)
    mcmc = MCMC(
        # Trees of few leapfrogs: one chain with a small step would hold up all others.
        NUTS(
            lotka_volterra.model,
            dense_mass=True,
            max_tree_depth=sizes.depth,
            forward_mode_differentiation=True,
        ),
        num_warmup=sizes.num_warmup,
        num_samples=sizes.num_samples,
        num_chains=sizes.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    since = time.perf_counter()
    mcmc.run(chain_key, **arguments, init_params=jax.tree.map(jnp.asarray, starts))
    jax.block_until_ready(mcmc.get_samples())
    seconds = time.perf_counter() - since
    kept = sizes.chains * sizes.num_samples
    yield _row(f"NUTS, {sizes.chains:,} chains", "float64", seconds, error, draws=kept)


def _flat(tree: dict[str, jax.Array]) -> np.ndarray:
    return np.stack([np.asarray(leaf) for leaf in tree.values()])


@partial(jax.jit, static_argnames=("block", "dimension", "dtype"))
def _draws(key: jax.Array, block: int, dimension: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Return a block of draws, of standard deviations from 1 to 3, and their scores."""
    scales = jnp.linspace(1, 3, dimension, dtype=dtype)
    draws = scales * jax.random.normal(key, (block, dimension), dtype)
    return draws, -draws / scales**2


def _sums_of(draws: Any, scores: Any, xp: Any = jnp) -> tuple[Any, Any]:
    """Return φᵀφ and φᵀf of a block, by JAX or by NumPy."""
    controls = xp.concatenate([xp.ones_like(draws[:, :1]), scores, 1 + draws * scores], axis=1)
    values = draws[:, :QUANTITIES] ** 2
    # else TensorFloat-32 on a GPU
    product = xp.matmul if xp is np else partial(jnp.matmul, precision="highest")
    return product(controls.T, controls), product(controls.T, values)


@partial(jax.jit, static_argnames=("blocks", "block", "dimension", "dtype"))
def _fold_sums(
    key: jax.Array, blocks: int, block: int, dimension: int, dtype: str
) -> tuple[jax.Array, jax.Array]:
    """Return the sums of a fold of ``blocks × block`` draws; no more than one block of them is
    there at a time."""

    def step(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        draws, scores = _draws(jax.random.fold_in(key, i), block, dimension, dtype)
        # In float32 a sum of 1e8 squares keeps three digits; its blocks, added in float64, keep
        # six.
        return jax.tree.map(
            lambda total, part: total + part.astype(float), sums, _sums_of(draws, scores)
        )

    width = 1 + 2 * dimension
    return jax.lax.fori_loop(
        0, blocks, step, (jnp.zeros((width, width)), jnp.zeros((width, QUANTITIES)))
    )


def sums(sizes: Sizes) -> Iterator[dict[str, Any]]:
    blocks = max(1, round(sizes.draws / FOLDS / sizes.block))
    width = 1 + 2 * sizes.dimension
    for dtype in ("float32", "float64"):
        shape = {"block": sizes.block, "dimension": sizes.dimension, "dtype": dtype}
        draws, scores = (np.asarray(part, float) for part in _draws(jax.random.key(1), **shape))
        exact = _sums_of(draws, scores, np)
        error = max(map(_relative, jax.jit(_sums_of)(*_draws(jax.random.key(1), **shape)), exact))
        keys = list(jax.random.split(jax.random.key(2), FOLDS))
        program = _fold_sums.lower(keys[0], blocks=blocks, **shape).compile()
        since = time.perf_counter()
        jax.block_until_ready([program(key) for key in keys])
        seconds = time.perf_counter() - since
        made = FOLDS * blocks * sizes.block
        what = f"{made:.2g} draws of {sizes.dimension}, {width} controls"
        yield _row(
            what, dtype, seconds, error, flops=2 * made * width * (width + QUANTITIES), draws=made
        )


def products(sizes: Sizes) -> Iterator[dict[str, Any]]:
    d = 26
    matern, squared = Matern32(5.0), SquaredExponential(5.0)
    cases: dict[
        str, tuple[Callable[[jax.Array], TileOperator], Callable[[np.ndarray], Any], int]
    ] = {
        # The last number: the inner product that an entry takes, in coordinates. Of a Stein entry
        # there are two.
        "Matérn-3/2": (lambda x: kernel_operator(matern, x), lambda x: gram(matern, x), d),
        "Stein": (
            lambda x: stein_operator(squared, x, -x),
            lambda x: stein_gram(squared, x, -x),
            3 * d,
        ),
    }
    for name, (operator_of, dense, length) in cases.items():
        for dtype in ("float32", "float64"):
            x, v = _rows(sizes.product_rows, d, dtype)
            small_x, small_v = _rows(CHECKED_ROWS, d, dtype)
            with jax.default_device(jax.devices("cpu")[0]):
                exact = np.asarray(dense(np.asarray(small_x, float))) @ np.asarray(small_v, float)
            error = _relative(operator_of(small_x).matmul(small_v), exact)
            operator = operator_of(x)
            seconds = _second_call(partial(operator.matmul, v))
            flops = sizes.product_rows**2 * (length + 2 * RIGHT_HAND_SIDES)
            what = f"{name}, n = {sizes.product_rows:,}, d = {d}"
            yield _row(what, dtype, seconds, error, flops=flops)


def _rows(n: int, d: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(n, d)), dtype), jnp.asarray(
        rng.normal(size=(n, RIGHT_HAND_SIDES)), dtype
    )


def solves(sizes: Sizes) -> Iterator[dict[str, Any]]:
    d, kernel = 8, Matern32(2.0)

    def problem(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        points = rng.normal(size=(n, d))
        y = np.sin(2 * points[:, 0]) + np.sqrt(NOISE) * rng.normal(size=n)
        return points, (y - y.mean()) / y.std()

    def fit(points: np.ndarray, y: np.ndarray, rtol: float) -> Any:
        solver = ConjugateGradients(rtol, budget=200, rank=min(300, len(y) // 4))
        return IterativeGP(kernel=kernel, noise=NOISE, optimise=False, solver=solver).fit(points, y)

    points, y = problem(CHECKED_ROWS)
    with jax.default_device(jax.devices("cpu")[0]):
        covariance = np.asarray(gram(kernel, points))
    exact = covariance @ np.linalg.solve(covariance + NOISE * np.eye(len(y)), y)
    error = _relative(fit(points, y, 1e-8).predict(points).mean, exact)
    points, y = problem(sizes.solve_rows)
    fits: list[Any] = []
    seconds = _second_call(lambda: fits.append(fit(points, y, 1e-2)))
    columns = 1 + fits[-1].sample_weights.shape[1]
    flops = fits[-1].info["epochs"] * len(y) ** 2 * (d + 2 * columns)
    what = (
        f"IterativeGP, n = {len(y):,}, {columns} right-hand sides, {fits[-1].info['epochs']:.0f} "
        "epochs"
    )
    yield _row(what, "float64", seconds, error, flops=flops)


def _second_call(call: Callable[[], Any]) -> float:
    """Return the seconds of a second call: the first one compiles."""
    jax.block_until_ready(call())
    since = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - since


def _relative(value: Any, exact: Any) -> float:
    """Return the largest deviation, relative to the largest entry."""
    return float(
        np.abs(np.asarray(value, float) - np.asarray(exact)).max() / np.abs(np.asarray(exact)).max()
    )


def _row(
    what: str,
    precision: str,
    seconds: float,
    error: float,
    *,
    flops: float | None = None,
    draws: int | None = None,
) -> dict[str, Any]:
    return {
        "what": what,
        "precision": precision,
        "s": seconds,
        "GFLOP/s": "" if flops is None else flops / seconds / 1e9,
        "draws/s": "" if draws is None else draws / seconds,
        "relative error": error,
    }


PIECES: dict[str, Callable[[Sizes], Iterator[dict[str, Any]]]] = {
    "sampling": sampling,
    "sums": sums,
    "products": products,
    "solves": solves,
}


if __name__ == "__main__":
    main()
