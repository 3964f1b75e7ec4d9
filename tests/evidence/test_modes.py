"""Modes that no draw has visited are found by climbs of the density, and none is made up."""

import jax
import numpy as np
import pytest
from scipy.special import expit

import mcmcpost as mp
from mcmcpost.control import PlainMean, ZeroVariance
from mcmcpost.evidence import estimate_from_posterior, evaluate_rows
from mcmcpost.evidence.modes import search_modes

SHIFT = 4.0


def two_normals(share):
    """Return log density and score, over rows, of a share at +4 and the rest at −4 in all
    coordinates."""

    def values(x):
        apart = np.log([share, 1 - share]) - 0.5 * np.stack(
            [((x - m) ** 2).sum(axis=1) for m in (SHIFT, -SHIFT)], axis=1
        )
        return np.logaddexp(*apart.T) - 0.5 * x.shape[1] * np.log(2 * np.pi)

    def slopes(x):
        with np.errstate(over="ignore"):
            first = expit(np.log(share / (1 - share)) + 2 * SHIFT * x.sum(axis=1))[:, None]
        return first * (SHIFT - x) - (1 - first) * (SHIFT + x)

    return values, slopes


def search(draws, values, slopes, log_z, key):
    names = tuple(f"x[{i}]" for i in range(draws.shape[1]))
    ess = float(len(draws))
    return search_modes(draws, names, values, slopes, log_z=log_z, error=1e-3, ess=ess, key=key)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("d", [1, 5, 20])
def test_the_mode_without_draws_is_found_and_its_mass_is_known(d, share, rng, key):
    draws = SHIFT + rng.normal(size=(1000, d))
    found = search(draws, *two_normals(share), np.log(share), key)
    np.testing.assert_allclose(found.mode, -SHIFT, atol=0.1)
    truth = (1 - share) / share
    assert 0.7 * truth < found.missed < 1.05 * truth
    both = np.where(rng.random((1000, 1)) < share, SHIFT, -SHIFT) + rng.normal(size=(1000, d))
    assert search(both, *two_normals(share), 0.0, key).missed == 0.0


def funnel(x):
    return np.concatenate(
        [
            -x[:, :1] / 9 + 0.5 * (x[:, 1:] ** 2 * np.exp(-x[:, :1]) - 1).sum(axis=1)[:, None],
            -x[:, 1:] * np.exp(-x[:, :1]),
        ],
        axis=1,
    )


def funnel_values(x):
    v, y = x[:, 0], x[:, 1:]
    return -(v**2) / 18 - 0.5 * (y**2 * np.exp(-x[:, :1])).sum(axis=1) - 0.5 * y.shape[1] * v


def funnel_draws(rng):
    v = 3 * rng.normal(size=(500, 1))
    return np.concatenate([v, np.exp(v / 2) * rng.normal(size=(500, 4))], axis=1)


def ended(x):
    """A normal that ends at 2: beyond it the score is not a number."""
    return np.where(x < 2, -x, np.nan)


def ended_values(x):
    return np.where(x < 2, -0.5 * x**2, -np.inf).sum(axis=1)


def ended_draws(rng):
    draws = rng.normal(size=(2000, 1))
    return draws[draws[:, 0] < 2]


@pytest.mark.parametrize(
    ("draws", "values", "slopes", "log_z"),
    [
        (funnel_draws, funnel_values, funnel, np.log(3) + 2.5 * np.log(2 * np.pi)),
        (ended_draws, ended_values, ended, 0.5 * np.log(2 * np.pi)),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_no_mode_is_made_up(draws, values, slopes, log_z, rng, key):
    assert search(draws(rng), values, slopes, log_z, key).missed == 0.0


@pytest.mark.slow
def test_the_answer_says_what_was_looked_for(rng):
    values, slopes = two_normals(0.5)
    draws = SHIFT + rng.normal(size=(2, 50, 2))
    for method, status in (
        (PlainMean(), mp.Status.PLAIN),
        (ZeroVariance(1), mp.Status.NOT_CONVERGED),
    ):
        posterior = evaluate_rows(draws, values, slopes, ("a", "b"))
        found = estimate_from_posterior(posterior, method, key=jax.random.key(0), degree=0)
        assert found.status is status
        told = "were not looked for" if status is mp.Status.PLAIN else "start chains there"
        assert told in found.info["modes"]
        assert (found.info["modes"] in found.complaints) == (status is mp.Status.NOT_CONVERGED)


def test_a_density_that_raises_far_from_the_draws_keeps_its_bridge(rng):
    def slopes(x):
        if np.abs(x).max() > 10:
            raise RuntimeError("the solver failed")
        return -x

    posterior = evaluate_rows(
        rng.normal(size=(2, 50, 1)), lambda x: -0.5 * (x**2).sum(axis=1), slopes, ("a",)
    )
    found = estimate_from_posterior(posterior, ZeroVariance(1), key=jax.random.key(0), degree=0)
    assert found.status is not mp.Status.NOT_CONVERGED
    assert "the solver failed" in found.info["modes"]
