"""The map that is fitted to draws: inverse, density and scores by definition, and what it finds in
draws."""

import numpy as np
import pytest
from scipy.special import gammaln

from mcmcpost.evidence import Normal, Warp, fit_warp
from mcmcpost.evidence.warp import as_warp, control_normal, fit_normal, likelier

NAMES = ("a", "b", "c")


@pytest.fixture
def bent(rng):
    """A map with every kind of term, and five standard normals."""
    features = np.array([[0, 3], [0, 0], [0, 1]])
    shift = np.array([[0.0, 0, 0], [0.3, -0.4, 0], [0.1, 0, 0.5]])
    scale = np.array([[0.0, 0, 0], [0.6, 0, 0], [0, 0.2, -0.3]])
    shape = np.array([[0.1, 0, -0.2], [1.2, 0.8, 1], [0.5, 0, -0.7], [0.7, 1, 1.3]])
    normal = Normal(
        rng.normal(size=3), np.tril(rng.normal(size=(3, 3)), -1) + np.diag([0.5, 2.0, 1.0])
    )
    return Warp(normal, np.array([2, 0, 1]), features, shift, scale, shape), rng.normal(size=(5, 3))


def jacobian(function, point, step=1e-6):
    steps = step * np.eye(len(point))
    return np.stack(
        [(function(point + s) - function(point - s)) / (2 * step) for s in steps], axis=-1
    )


def test_the_inverse_and_the_density_are_those_of_the_map(bent):
    warp, z = bent
    np.testing.assert_allclose(warp.standardise(warp.restore(z)), z, rtol=1e-9, atol=1e-9)
    for one, density in zip(z, warp.log_density(z), strict=True):
        slope = jacobian(lambda at: warp.restore(at[None])[0], one)
        wanted = -0.5 * one @ one - 1.5 * np.log(2 * np.pi) - np.linalg.slogdet(slope)[1]
        np.testing.assert_allclose(density, wanted, rtol=1e-6)


def test_pulled_scores_are_the_slopes_of_the_density_in_z(bent):
    warp, z = bent

    def log_density(x):
        return -np.cosh(x - 0.3).sum(axis=1)

    def in_z(at):
        base = -0.5 * (at**2).sum(axis=1) - 1.5 * np.log(2 * np.pi)
        return log_density(warp.restore(at)) - warp.log_density(at) + base

    pulled = warp.pull(z, -np.sinh(warp.restore(z) - 0.3))
    for one, score in zip(z, pulled, strict=True):
        np.testing.assert_allclose(
            score, jacobian(lambda at: in_z(at[None]), one)[0], rtol=1e-5, atol=1e-6
        )


def test_a_normal_is_a_map_that_bends_nothing(rng):
    lower = np.array([[2.0, 0.0], [0.5, 0.3]])
    normal = Normal(np.array([1.0, -3.0]), lower)
    warp, z = as_warp(normal), rng.normal(size=(4, 2))
    np.testing.assert_allclose(warp.restore(z), normal.restore(z))
    np.testing.assert_allclose(warp.log_density(z), normal.log_density(z))
    np.testing.assert_allclose(warp.pull(z, np.ones((4, 2))), np.ones((4, 2)) @ lower)
    assert warp.num_fitted == 5


def test_draws_of_a_normal_bend_nothing(rng):
    points = rng.normal(size=(2_000, 3)) @ np.array(
        [[1.0, 0.4, 0.0], [0.0, 1.0, -0.8], [0.0, 0.0, 0.5]]
    )
    assert fit_warp("test", points, NAMES, 2_000.0).num_fitted == 9


def log_density_of(normal, points):
    return normal.log_density(normal.standardise(points))


def test_scores_of_a_normal_density_give_it_exactly(rng):
    """Of 40 coordinates and 100 draws, whose own covariance is far from it."""
    d, n = 40, 100
    root, mean = rng.normal(size=(d, d)) + 3 * np.eye(d), 10 * rng.normal(size=d)
    points = mean + rng.normal(size=(n, d)) @ root.T
    scores = -(points - mean) @ np.linalg.inv(root @ root.T)
    own = fit_normal("test", points, tuple(f"x[{j}]" for j in range(d)))
    found = control_normal(own, points, scores)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.lower @ found.lower.T, root @ root.T, atol=1e-6)
    assert (np.diagonal(found.lower) > 0).all()
    assert likelier(own, found, points, float(n)) is found
    assert likelier(own, None, points, float(n)) is own
    order = rng.permutation(d)
    np.testing.assert_allclose(
        log_density_of(found.ordered(order), points[:, order]), log_density_of(found, points)
    )


@pytest.mark.parametrize("rate", [0.3, 1.0, 1.6])
def test_scores_that_are_far_from_linear_do_not_make_a_fit_worse(rng, rate):
    """Coordinates whose log scale is another: the wider it varies, the larger are their scores."""

    def draw(n):
        v, z = rng.normal(size=(n, 1)), rng.normal(size=(n, 4))
        x = z * np.exp(rate * v)
        by_v = -v[:, 0] + rate * (z**2 - 1).sum(axis=1)
        return np.concatenate([v, x], axis=1), np.column_stack([by_v, -z * np.exp(-rate * v)])

    points, scores = draw(300)
    own = fit_normal("test", points, tuple("vabcd"))
    chosen = likelier(own, control_normal(own, points, scores), points, 300.0)
    others, _ = draw(20_000)
    lost = (log_density_of(own, others) - log_density_of(chosen, others)).mean()
    assert lost < 0.1
    assert (chosen is own) == (rate > 0.5)


def funnel(z):
    """Return draws whose second coordinate is the log scale of the others."""
    return np.stack(
        [z[:, 0] * np.exp(0.7 * z[:, 1]), z[:, 1], z[:, 2] * np.exp(-0.5 * z[:, 1])], axis=1
    )


def funnel_density(x):
    z = np.stack(
        [x[:, 0] * np.exp(-0.7 * x[:, 1]), x[:, 1], x[:, 2] * np.exp(0.5 * x[:, 1])], axis=1
    )
    return -0.5 * (z**2).sum(axis=1) - 1.5 * np.log(2 * np.pi) - 0.2 * x[:, 1]


def banana(z):
    return np.stack(
        [z[:, 0], z[:, 1], 0.5 * z[:, 2] + z[:, 0] ** 2 - 0.8 * z[:, 0] * z[:, 1]], axis=1
    )


def banana_density(x):
    last = 2 * (x[:, 2] - x[:, 0] ** 2 + 0.8 * x[:, 0] * x[:, 1])
    return -0.5 * (x[:, 0] ** 2 + x[:, 1] ** 2 + last**2) - 1.5 * np.log(2 * np.pi) + np.log(2.0)


def skew(z):
    """Return logarithms of Gamma(2) variables as functions of uniforms, which normals give."""
    from scipy.stats import gamma, norm

    return np.log(gamma.ppf(norm.cdf(z), 2.0))


def skew_density(x):
    return (2.0 * x - np.exp(x)).sum(axis=1) - 3 * gammaln(2.0)


@pytest.mark.parametrize(
    ("draw", "density", "divergence"),
    [(funnel, funnel_density, 0.03), (banana, banana_density, 0.03), (skew, skew_density, 0.02)],
    ids=["funnel", "banana", "skew"],
)
def test_a_bent_posterior_is_found(draw, density, divergence, rng):
    fitted, held_out = draw(rng.normal(size=(3_000, 3))), draw(rng.normal(size=(3_000, 3)))

    def lost(warp):
        return (density(held_out) - warp.log_density(warp.standardise(held_out))).mean()

    found = lost(fit_warp("test", fitted, NAMES, 3_000.0))
    assert -0.02 < found < divergence
    assert lost(fit_warp("test", fitted, NAMES, 20.0)) > 2 * divergence, (
        "draws worth 20 show nothing significant"
    )
