"""Ladders whose densities end where they are not zero, that lack an end, or whose first step is
coarse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import norm

import mcmcpost as mp
from mcmcpost.control import ZeroVariance
from mcmcpost.core.precision import in_float64
from mcmcpost.evidence import (
    check_ladder,
    corrected_rule,
    discretisation_errors,
    estimate_from_posterior,
    evaluate_draws,
    examine_rungs,
    geometric_ladder,
    make_ladder,
    power_ladder,
)

LEVELS = np.array([0.0, 0.3, 0.6, 1.0])


def half_normal(
    rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[tuple[np.ndarray, ...], float]:
    """Return a ladder of l(x) = x under a half-normal prior, in x itself, and its log evidence."""
    low = norm.cdf(-LEVELS)
    x = LEVELS + norm.ppf(low + rng.uniform(size=(*shape, len(LEVELS))) * (1 - low))
    return (LEVELS, x[..., None], x, np.ones((*x.shape, 1)), -x[..., None]), np.log(
        2
    ) + 0.5 + norm.logcdf(1.0)


def power_of_a_normal(rng: np.random.Generator) -> tuple[tuple[np.ndarray, ...], float]:
    """Return a ladder of l(x) = 6 log x, −∞ below zero, under a standard normal prior, and its log
    evidence."""
    levels = np.array([0.0, 0.05, 0.2, 0.5, 1.0])
    x = np.stack(
        [
            rng.normal(size=(4, 250)),
            *(np.sqrt(rng.chisquare(6 * t + 1, (4, 250))) for t in levels[1:]),
        ],
        2,
    )
    inside = x > 0
    safe = np.where(inside, x, 1.0)
    likelihood = np.where(inside, 6 * np.log(safe), -np.inf)
    arrays = (
        levels,
        x[..., None],
        likelihood,
        np.where(inside, 6 / safe, 0.0)[..., None],
        -x[..., None],
    )
    return arrays, gammaln(3.5) + 3 * np.log(2) - 0.5 * np.log(np.pi) - np.log(2)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 250), (2, 40)])
def test_no_control_variate_where_the_density_ends(rng, shape):
    """Before, the pooled path was half a nat off with an error of 1e-15."""
    arrays, truth = half_normal(rng, shape)
    with pytest.warns(
        mp.ScoreWarning, match="ends at a boundary" if shape[1] > 100 else "Stein's identity fails"
    ):
        found = mp.log_evidence(mp.ladder_from_arrays(*arrays))
    assert abs(found.value - truth) < 4.5 * found.error < 0.3
    assert found.status == ("plain" if shape[1] > 100 else "bad_scores")
    assert {e.status for e in found.estimates[1:]} == {"plain"}


@pytest.mark.slow
def test_where_the_likelihood_ends_inside_the_prior(rng):
    arrays, truth = power_of_a_normal(rng)
    with pytest.warns(
        mp.ScoreWarning,
        match=r"at t = 0: \d+ of 1000 draws of the prior have zero likelihood, and at",
    ):
        found = mp.log_evidence(mp.ladder_from_arrays(*arrays))
    assert found.status == "plain"
    assert abs(found.value - truth) < 4.5 * found.error < 0.3


def test_a_likelihood_that_ends_far_out_is_controlled(rng):
    """A prior draw in a hundred has no likelihood, as where an ODE solver fails, and the edge
    hardly shows."""
    levels = power_ladder(9, 3)
    x = levels / (1 + levels) + rng.normal(size=(4, 250, 9)) / np.sqrt(1 + levels)
    likelihood = np.where((np.abs(x) > 2.6) & (levels == 0), -np.inf, -0.5 * (x - 1) ** 2)
    ladder = make_ladder(levels, x[..., None], likelihood, (1 - x)[..., None], -x[..., None])
    check = check_ladder(ladder, examine_rungs(ladder))
    assert (check.passed, check.edge) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("end", [0, -1])
def test_a_ladder_that_lacks_an_end_has_not_converged(rng, end):
    """One gradient that is NaN leaves the rung out, and not the share of prior draws that are
    possible."""
    (levels, x, likelihood, slope, prior), truth = power_of_a_normal(rng)
    slope = slope.copy()
    slope[0, np.flatnonzero(likelihood[0, :, end] > -np.inf)[0], end] = np.nan
    text = (
        f"t = {levels[end]:g} has gradients that are not finite, and the path there is extrapolated"
    )
    with (
        pytest.warns(mp.ScoreWarning, match="have zero likelihood"),
        pytest.warns(mp.EvidenceWarning, match=text),
    ):
        found = mp.log_evidence(mp.ladder_from_arrays(levels, x, likelihood, slope, prior))
    assert found.status == "not_converged"
    assert abs(found.value - truth) < 6 * found.error < 0.5


def gaussian_means(
    levels: np.ndarray, number: int, variance: float, mean: float
) -> tuple[np.ndarray, ...]:
    """Return means and variances of the log likelihood of unit normals around x ~ N(0, variance),
    and log Z."""
    precision = 1 / variance + levels * number
    apart = levels * number * mean / precision - mean
    size = 1 + number * variance
    truth = -0.5 * np.log(size) - 0.5 * number * mean**2 / size
    moments = (
        -number / 2 * (1 / precision + apart**2),
        number**2 / 4 * (2 / precision**2 + 4 * apart**2 / precision),
    )
    return *moments, truth


@pytest.mark.parametrize(
    "levels",
    [
        np.linspace(0, 1, 9),
        np.linspace(0, 1, 31),
        geometric_ladder(9, 1e-2),
        geometric_ladder(31, 1e-2),
        geometric_ladder(17, 1e-4),
        geometric_ladder(31, 1e-4),
        power_ladder(17, 5),
        power_ladder(31, 3),
    ],
    ids=lambda levels: f"{len(levels)} from {levels[1]:.2g}",
)
@pytest.mark.parametrize(
    ("number", "variance", "mean"), [(10, 1, 0.5), (100, 10, 1.0), (1000, 100, 5.0)]
)
def test_the_corrected_rule_knows_where_the_ladder_is_coarse(levels, number, variance, mean):
    """Richardson's estimate alone was five times too small on ladders whose first step is too long,
    or forty."""
    mu, v, truth = gaussian_means(levels, number, variance, mean)
    off = abs(corrected_rule(levels).integrate(mu, v) - truth)
    assert 0.5 < discretisation_errors(levels, mu, v)["corrected"] / off < 5


@pytest.mark.slow
def test_a_degree_that_is_given_keeps_the_error_of_the_possible_share(rng):
    """Of a normal that ends at three standard deviations 0.27 % of the proposals are impossible."""
    draws = rng.normal(size=4_000)
    draws = draws[np.abs(draws) < 3][:3_200].reshape(4, 800, 1)
    evaluated = evaluate_draws(
        draws, lambda z: jnp.where(jnp.abs(z[0]) < 3, -0.5 * z[0] ** 2, -jnp.inf)
    )
    found = in_float64(estimate_from_posterior)(
        evaluated, ZeroVariance(2), key=jax.random.key(1), degree=2
    )
    path = next((e for e in found.estimates if e.method == "bridge (controlled path)"), None)
    assert path is not None
    assert path.mcse > 0.5 * np.sqrt(0.0027 / 3_200)


@pytest.mark.parametrize("value", [-np.inf, -1e80])
def test_a_rung_without_a_possible_draw_is_refused(rng, value):
    draws = rng.normal(size=(2, 20, 2, 1))
    likelihood = np.zeros((2, 20, 2))
    likelihood[:, :, 0] = value
    with pytest.raises(ValueError, match="at some draw of every rung, got none at 0"):
        mp.ladder_from_arrays([0.0, 1.0], draws, likelihood, -draws, -draws)
