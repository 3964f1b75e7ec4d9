"""The Savage–Dickey ratio: exact conjugate truths, calibration of its error, agreement with two
bridges."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st

import mcmcpost as mp
from mcmcpost.core.errors import REPRODUCED

X = np.stack([np.ones(10), np.linspace(-1.0, 1.0, 10)], axis=1)
Y = X @ [0.4, 0.5] + np.array([0.3, -1.2, 0.8, 0.1, -0.4, 1.5, -0.7, 0.2, -1.1, 0.6])
PRECISION = X.T @ X + np.eye(2)
MEAN = np.linalg.solve(PRECISION, X.T @ Y)


def log_evidence(design: np.ndarray) -> float:
    """Return log p(y) of y ~ N(design b, 1) with b ~ N(0, 1)."""
    return float(st.multivariate_normal(np.zeros(10), np.eye(10) + design @ design.T).logpdf(Y))


TRUTH = log_evidence(X[:, 1:]) - log_evidence(X)


@pytest.fixture
def regression(rng):
    """A trace of exact draws of the regression with both coefficients."""
    factor = np.linalg.cholesky(np.linalg.inv(PRECISION))
    draws = MEAN + rng.normal(size=(2, 250, 2)) @ factor.T
    return mp.from_arrays(draws, (MEAN - draws) @ PRECISION, names=["level", "slope"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior", [st.norm(0.0, 1.0), dist.Normal(0.0, 1.0), float(st.norm.pdf(0.0))]
)
def test_the_ratio_of_a_normal_is_exact(regression, prior):
    found = mp.savage_dickey(regression, "level", 0.0, prior)
    assert found.status in REPRODUCED
    assert abs(found.value - TRUTH) < 1e-7
    assert found.info["prior_density"] == pytest.approx(st.norm.pdf(0.0), rel=1e-6)


@pytest.mark.slow
def test_the_ratio_is_that_of_two_bridges(regression, rng, key):
    """Bridges to both models differ by it; the plain one's error is not zero, and so tests the size
    of both."""

    def density(design: np.ndarray, x: jax.Array) -> jax.Array:
        normal = -0.5 * jnp.log(2 * jnp.pi)
        return (normal - 0.5 * (Y - design @ x) ** 2).sum() + (normal - 0.5 * x**2).sum()

    precision = float(X[:, 1] @ X[:, 1] + 1.0)
    mean = float(X[:, 1] @ Y) / precision
    draws = mean + rng.normal(size=(2, 250, 1)) / np.sqrt(precision)
    alone = mp.from_arrays(draws, (mean - draws) * precision, names=["slope"])
    one, two = (
        mp.bridge_evidence(
            tree, logdensity_fn=lambda x, z=z: density(z, x), key=key, method="plain"
        )
        for tree, z in ((alone, X[:, 1:]), (regression, X))
    )
    found = mp.savage_dickey(regression, "level", 0.0, st.norm(0.0, 1.0))
    bridges = mp.compare_evidence({"point": one, "model": two})
    difference = bridges.log_bayes_factor[0, 1] - found.value
    assert abs(difference) < 4.5 * bridges.log_bayes_factor_error[0, 1]


COUNTS = np.array([3, 5, 2, 4, 6, 3])
RATE = st.gamma(2.0, scale=2.0)
POINT = 5.0
OF_RATE = float(
    st.poisson(POINT).logpmf(COUNTS).sum()
    - RATE.logpdf(POINT)
    - (
        st.poisson(POINT).logpmf(COUNTS).sum()
        - st.gamma(2.0 + COUNTS.sum(), scale=1 / (0.5 + len(COUNTS))).logpdf(POINT)
    )
)
"""log p(y|rate = 5) − log p(y): by Bayes' theorem log p(y) is log likelihood + log prior − log
posterior anywhere."""


def poisson(rng: np.random.Generator) -> object:
    """Return exact draws of the log of a Poisson rate with a gamma prior."""
    shape, inverse_scale = 2.0 + COUNTS.sum(), 0.5 + len(COUNTS)
    rate = rng.gamma(shape, 1 / inverse_scale, size=(4, 100, 1))
    return mp.from_arrays(np.log(rate), shape - inverse_scale * rate, names=["log_rate"])


def rate(draw: dict) -> jax.Array:
    return jnp.exp(draw["log_rate"])


@pytest.mark.slow
def test_the_error_of_a_ratio_is_honest(rng):
    found = [
        mp.savage_dickey(poisson(rng), "log_rate", np.log(POINT), POINT * RATE.pdf(POINT), "zv1")
        for _ in range(200)
    ]
    z = np.array([(one.value - OF_RATE) / one.mcse for one in found])
    assert abs(z.mean()) < 4.5 / np.sqrt(len(z))
    assert (z**2).sum() < st.chi2(len(z)).isf(1e-5)


@pytest.mark.slow
def test_the_density_of_a_function_of_a_draw_is_in_its_own_units(rng):
    """The same ratio, of the rate under its prior and of its logarithm under that of the
    logarithm."""
    tree = poisson(rng)
    one = mp.savage_dickey(tree, {"rate": rate}, POINT, RATE)
    other = mp.savage_dickey(tree, "log_rate", np.log(POINT), POINT * RATE.pdf(POINT))
    assert abs(one.value - OF_RATE) < 4.5 * one.mcse
    assert abs(other.value - OF_RATE) < 4.5 * other.mcse
    assert one.mcse < 0.1


def test_a_point_beyond_the_draws_has_no_ratio(regression):
    found = mp.savage_dickey(regression, "level", 8.0, st.norm(0.0, 1.0), "plain")
    assert np.isnan(found.value)
    assert found.status is mp.Status.UNDEFINED
    assert "at 8 is" in found.info["reason"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"point": np.inf}, "`point`, a number in"),
        ({"quantity": None}, "one quantity, got level, slope"),
        ({"quantity": "lvel"}, "level"),
        ({"prior": 0.0}, "prior, a number`, a number in"),
        ({"prior": "normal"}, "prior, a number"),
        ({"prior": st.uniform(1.0, 2.0)}, r"exp logpdf\(0\)`, a number in \(0, ∞\), got 0.0"),
        ({"prior": dist.Normal(jnp.zeros(2), 1.0)}, r"exp log_prob\(0\)"),
    ],
)
def test_bad_input_is_said(regression, changes, words):
    arguments = {"quantity": "level", "point": 0.0, "prior": 0.4} | changes
    with pytest.raises((mp.InputError, mp.InputTypeError), match=words):
        mp.savage_dickey(regression, *arguments.values())
