"""`sample_until`: is what it stops at as accurate as was asked, and does stopping when errors look
small bias the mean?

    python -m benchmarks.control.stopping
    python -m benchmarks.control.stopping --models

Four chains of an autoregression (.5 on the normal scale) with log gamma margins, batches of 250
draws of each, until the error of the mean of the second coordinate is a fraction of its posterior
standard deviation, ``asked``, that takes some thousands of draws. ``plain`` has no control variate;
``first order`` and ``second degree`` gain about 10 and 1,000.

``draws`` : mean over the runs, and ``from``, ``to`` the least and the most.
``rmse/asked`` : root mean squared error over what was asked. ``fixed`` : the same of runs of as
many draws, the mean number of the runs that stopped, planned with hindsight. ``bias/se`` : mean
error over its standard error. ``in 50 %``, ``in 95 %`` : share of normal intervals of the reported
error that hold the truth.

With ``--models``, three models sampled by NUTS until the error of the mean of every parameter is
``asked``, in its standard deviations. ``error/asked`` : root mean squared error over parameters and
runs, over what was asked, and ``worst`` the largest; of eight schools against quadrature, else
against one long run. ``fixed`` : the same of runs of as many draws at once, planned with hindsight.
CPU seconds are medians of whole runs, with warm-up and compilation. ``plain draws`` : what plain
means would need for the same error of the worst parameter, by its reported gain.

Targets: rmse/asked at most 1.1, bias/se within ±3, at least 92 % in 95 %.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import unconstrain_fn
from scipy.special import gammaincinv, ndtr, polygamma, psi
from scipy.stats import norm

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.control._pools import logistic_data, logistic_model
from mcmcpost.stopping import BATCH, METHOD, numpyro_batches, until
from models import lotka_volterra

SHAPE = 4.0
CORRELATION = 0.5
MIX = np.array([[1.0, 0.5], [0.0, 1.0]])


class Case(NamedTuple):
    """A method, and the error that is asked, in standard deviations."""

    method: mp.control.AbstractControlVariate
    asked: float


CASES = {
    "plain": Case(mp.PlainMean(), 0.024),
    "first order": Case(mp.ZeroVariance(1), 0.008),
    "second degree": Case(mp.ZeroVariance(2), 0.0006),
}
TRUTH = np.array([psi(SHAPE), psi(SHAPE)]) @ MIX
SPREAD = np.sqrt(polygamma(1, SHAPE) * (MIX**2).sum(axis=0))


def sampler(rng: np.random.Generator) -> Callable[[int], xarray.DataTree]:
    """Return a function that returns so many batches of draws more of four stationary chains."""
    last = rng.normal(size=(4, 2))

    def draw(number: int) -> xarray.DataTree:
        nonlocal last
        z = rng.normal(size=(4, number * BATCH, 2))
        for i in range(z.shape[1]):
            last = z[:, i] = CORRELATION * last + np.sqrt(1 - CORRELATION**2) * z[:, i]
        u = np.log(gammaincinv(SHAPE, ndtr(z)))
        scores = np.linalg.solve(MIX, (SHAPE - np.exp(u)).reshape(-1, 2).T).T.reshape(u.shape)
        return mp.from_arrays(u @ MIX, scores, names=["a", "b"])

    return draw


def run(name: str, case: Case, runs: int) -> dict[str, Any]:
    """Return the row of a case."""
    asked, truth = case.asked * SPREAD[1], TRUTH[1]
    errors, reported, draws = [], [], []
    for replicate in range(runs):
        found = until(
            sampler(generator(name, replicate)),
            ["b"],
            case.method,
            asked,
            False,
            400_000,
            progress=False,
        )
        errors.append(found.estimate.mean[0] - truth)
        reported.append(found.estimate.mcse[0])
        draws.append(4 * found.tree["posterior"].sizes["draw"])
    batches = max(round(np.mean(draws) / 4 / BATCH), 1)
    fixed = [
        mp.expectation(
            sampler(generator(f"{name}, fixed", replicate))(batches), ["b"], case.method
        ).mean[0]
        - truth
        for replicate in range(runs)
    ]
    z = np.abs(np.array(errors) / np.array(reported))
    return {
        "case": name,
        "asked": case.asked,
        "draws": int(np.mean(draws)),
        "from": min(draws),
        "to": max(draws),
        "rmse/asked": float(np.sqrt(np.mean(np.square(errors))) / asked),
        "fixed": float(np.sqrt(np.mean(np.square(fixed))) / asked),
        "bias/se": float(np.mean(errors) / np.std(errors) * np.sqrt(runs)),
        "in 50 %": float(np.mean(z < norm.ppf(0.75))),
        "in 95 %": float(np.mean(z < norm.ppf(0.975))),
    }


class Model(NamedTuple):
    """A program, its arguments, and the error that is asked of the mean of every parameter, in
    standard deviations.

    start : constrained values near the mode. long_run, method : how many draws give the truth, and
        how; none where it is known.
    """

    asked: float
    program: Callable[..., None]
    arguments: dict[str, Any]
    start: dict[str, Any] | None
    long_run: int
    method: str

    def sampler(self, batch: int) -> MCMC:
        """Return NUTS with 4 chains and so many draws of each in a batch."""
        return MCMC(
            NUTS(self.program, dense_mass=self.start is not None),
            num_warmup=500,
            num_samples=batch,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )

    def batches(self, key: jax.Array, batch: int) -> Callable[[int], xarray.DataTree]:
        """Return a function that returns so many batches of draws more."""
        start_key, chain_key = jax.random.split(key)
        starts = None
        if self.start is not None:
            constrained = {name: jnp.asarray(value) for name, value in self.start.items()}
            centre = unconstrain_fn(self.program, (), self.arguments, constrained)
            keys = dict(zip(centre, jax.random.split(start_key, len(centre)), strict=True))
            starts = {
                name: value + 0.05 * jax.random.normal(keys[name], (4, *jnp.shape(value)))
                for name, value in centre.items()
            }
        return numpyro_batches(self.sampler(batch), chain_key, (), self.arguments, starts)

    def truth(self) -> dict[str, float]:
        """Return the means of all parameters."""
        if not self.long_run:
            return _eight_schools.means()
        tree = self.batches(jax.random.key(2_000), self.long_run // 4)(1)
        estimate = mp.expectation(tree, method=self.method)
        return dict(zip(estimate.names, estimate.mean.tolist(), strict=True))


MODELS = {
    "eight schools": Model(0.005, _eight_schools.model, {}, None, 0, ""),
    "logistic d=20": Model(0.002, logistic_model, logistic_data(), None, 40_000, "zv2"),
    "hare–lynx": Model(
        0.0005, lotka_volterra.model, lotka_volterra.data(), lotka_volterra.init(), 40_000, "zv3"
    ),
}


def run_model(name: str, model: Model, runs: int) -> dict[str, Any]:
    """Return the row of a model."""
    truth = model.truth()
    stopped: list[tuple[np.ndarray, float, int, float]] = []
    for replicate in range(runs):
        since = time.process_time()
        sampled = until(
            model.batches(jax.random.key(replicate), BATCH),
            None,
            METHOD,
            model.asked,
            True,
            400_000,
            progress=False,
        )
        seconds = time.process_time() - since
        assert sampled.reached
        estimate, sizes = sampled.estimate, sampled.tree["posterior"].sizes
        worst = int(np.argmax(estimate.mcse / estimate.sd))
        stopped.append(
            (
                _standardised(estimate, truth),
                seconds,
                4 * sizes["draw"],
                4 * sizes["draw"] * estimate.gain[worst],
            )
        )
    errors, seconds, draws, plain = (np.array(column) for column in zip(*stopped, strict=True))
    fixed_errors, fixed_seconds = [], []
    length = round(draws.mean() / 4)
    for replicate in range(runs):
        since = time.process_time()
        tree = model.batches(jax.random.key(1_000 + replicate), length)(1)
        estimate = mp.expectation(tree, method=METHOD)
        fixed_seconds.append(time.process_time() - since)
        fixed_errors.append(_standardised(estimate, truth))
    return {
        "model": name,
        "parameters": len(truth),
        "asked": model.asked,
        "draws": int(draws.mean()),
        "from": int(draws.min()),
        "to": int(draws.max()),
        "error/asked": _rms(errors) / model.asked,
        "worst": float(np.abs(errors).max() / model.asked),
        "CPU s": float(np.median(seconds)),
        "fixed": _rms(fixed_errors) / model.asked,
        "fixed CPU s": float(np.median(fixed_seconds)),
        "plain draws": int(np.median(plain)),
    }


def _rms(errors: Any) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _standardised(estimate: Any, truth: dict[str, float]) -> np.ndarray:
    """Return the errors of the means, in posterior standard deviations."""
    return np.array(
        [
            (mean - truth[name]) / sd
            for name, mean, sd in zip(estimate.names, estimate.mean, estimate.sd, strict=True)
        ]
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--runs 4")
    parser.add_argument("--runs", type=int, help="by default 200, and 6 of models")
    parser.add_argument("--models", nargs="*", choices=[*MODELS], help="by default all")
    args = parser.parse_args()
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if args.models is not None:
            chosen, runs = args.models or [*MODELS], args.runs or 6
            for name in chosen:
                rows.append(run_model(name, MODELS[name], runs))
                emit(
                    "stopping_models",
                    "sampling real models until an error is reached",
                    rows,
                    final=name == chosen[-1],
                    runs=runs,
                )
            return
        args.runs = args.runs or 200
        for name, case in CASES.items():
            rows.append(run(name, case, args.runs))
            emit(
                "stopping",
                "sampling until an error is reached",
                rows,
                final=name == [*CASES][-1],
                runs=args.runs,
            )


if __name__ == "__main__":
    main()
