"""`sample_until`: is what it stops at as accurate as was asked, and does stopping when errors look
small bias the mean?

    python -m benchmarks.control.stopping

Four chains of an autoregression (.5 on the normal scale) with log gamma margins, batches of 250
draws of each, until the error of the mean of the second coordinate is a fraction of its posterior
standard deviation, ``asked``, that takes some thousands of draws. ``plain`` has no control variate;
``first order`` and ``second degree`` gain about 10 and 1,000.

``draws`` : mean over the runs, and ``from``, ``to`` the least and the most.
``rmse/asked`` : root mean squared error over what was asked. ``fixed`` : the same of runs of as
many draws, the mean number of the runs that stopped, planned with hindsight. ``bias/se`` : mean
error over its standard error. ``in 50 %``, ``in 95 %`` : share of normal intervals of the reported
error that hold the truth.

Targets: rmse/asked at most 1.1, bias/se within ±3, at least 92 % in 95 %.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray
from scipy.special import gammaincinv, ndtr, polygamma, psi
from scipy.stats import norm

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.stopping import BATCH, until

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


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--runs 4")
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
