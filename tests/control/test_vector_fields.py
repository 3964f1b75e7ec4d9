"""Polynomial vector fields: mean zero, span beside gradients, exactness on bent normals, and what
`auto` does with them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from chain_cases import ar1

import mcmcpost as mp
from mcmcpost.control.features.families import controls_of, from_json, polynomials, vector_fields


@pytest.mark.parametrize(("d", "degree"), [(1, 2), (2, 3), (3, 2), (4, 1)])
def test_with_the_gradients_they_span_all_fields_of_the_degree(rng, d, degree):
    families = [*polynomials(d, degree + 1), *vector_fields(d, degree)]
    number = sum(family.size for family in families)
    assert number == d * math.comb(d + degree, degree)
    # A field is told by what it is along random scores at random points.
    x, s = rng.normal(size=(2, 4 * number, d))
    controls = controls_of(families, x, s)[:, 1:]
    assert np.linalg.matrix_rank(controls) == number


def test_controls_are_divergence_and_product_with_the_score(rng):
    (family,) = vector_fields(3, 2)[1:]
    x, s = rng.normal(size=(2, 7, 3))

    def control(point, score, exponents, direction):
        def entry(z):
            return jnp.prod(z**exponents)

        return jax.grad(entry)(point)[direction] + entry(point) * score[direction]

    expected = [
        [
            control(point, score, exponents, direction)
            for exponents, direction in zip(family.exponents, family.directions, strict=True)
        ]
        for point, score in zip(x, s, strict=True)
    ]
    assert family.controls(x, s) == pytest.approx(np.array(expected), abs=1e-12)
    again = from_json(family.to_json())
    assert (again.controls(x, s) == family.controls(x, s)).all()


def test_they_are_few_where_interactions_are_few():
    families = vector_fields(4, 2, max_interaction=2)
    for family in families:
        for exponents, direction in zip(family.exponents, family.directions, strict=True):
            monomial = exponents.copy()
            monomial[direction] += 1
            assert np.count_nonzero(monomial) == 2


def funnel(rng, shape, phi=0.0, d=3):
    """Return draws and scores of v ~ N(0, 1) and x | v ~ N(0, exp(v)), as effects beside their log
    variance."""
    u = ar1(rng, (*shape, d), phi) if phi else rng.normal(size=(*shape, d))
    v, x = u[..., :1], np.exp(u[..., :1] / 2) * u[..., 1:]
    of_v = -v - (d - 1) / 2 + 0.5 * (x**2).sum(axis=-1, keepdims=True) * np.exp(-v)
    return np.concatenate([v, x], axis=-1), np.concatenate([of_v, -x * np.exp(-v)], axis=-1)


def bent(rng, shape, d=4):
    """Return draws and scores of a normal bent by a quadratic."""
    u = rng.normal(size=(*shape, d))
    x = u.copy()
    x[..., 1:] += 0.4 * (u[..., :1] ** 2 - 1)
    scores = -u
    scores[..., 0] += 0.8 * u[..., 0] * u[..., 1:].sum(axis=-1)
    return x, scores


@pytest.mark.parametrize(
    ("target", "method", "exact"),
    [
        (bent, "vf2", ["x[0]", "x[1]", "x[3]"]),
        (bent, "vf1", ["x[0]"]),
        (funnel, "vf1", ["x[0]"]),
        (funnel, "vf2", ["x[0]", "x[1]", "x[2]"]),
        (funnel, "auto", ["x[0]", "x[1]", "x[2]"]),
    ],
)
def test_means_of_bent_normals_are_exact(rng, target, method, exact):
    x, scores = target(rng, (4, 250))
    found = mp.expectation(mp.from_arrays(x, scores), exact, method)
    assert found.mean == pytest.approx(np.zeros(len(exact)), abs=1e-11)
    assert all(status == "on_trust" for status in found.status)
    # Gradients alone do not reach them.
    gradients = mp.expectation(mp.from_arrays(x, scores), exact, "zv3")
    assert (gradients.mcse > 1e-4).all()


@pytest.mark.parametrize("target", [bent, funnel])
def test_the_distribution_of_what_they_control_exactly_is_exact(rng, target):
    """Of the normal coordinate, whose mean the scores do not control."""
    x, scores = target(rng, (4, 250), d=3)  # one shape, compiled once
    tree, levels = mp.from_arrays(x, scores), np.array([0.05, 0.3, 0.5, 0.95])
    points = scipy.stats.norm.ppf(levels)
    found = mp.distribution(tree, ["x[0]"])
    assert found.cdf(points).mean[0] == pytest.approx(levels, abs=1e-11)
    assert found.quantile(levels).mean == pytest.approx(points, abs=1e-11)
    assert found.pdf(points).mean[0] == pytest.approx(scipy.stats.norm.pdf(points), abs=1e-11)
    # As a mean, the step of an event is somewhere between two draws.
    event = mp.expectation(tree, x[..., :1] < 1.0)
    assert event.method[0].startswith("FunctionOf(VectorFields")
    assert event.mean[0] == pytest.approx(scipy.stats.norm.cdf(1.0), abs=4 * event.mcse[0])
    assert event.gain[0] > 100


def test_a_density_along_a_field_that_turns_is_a_kernel_estimate(rng):
    """Controls that are nearly zero have fields that are not: E[v·∇h | h] is then mostly error."""
    x, scores = funnel(rng, (4, 250))
    found = mp.distribution(mp.from_arrays(x, scores), ["x[0]"])
    (marginal,) = found.marginals
    (label, *_), points = marginal.fields, np.array([-1.0, 0.0, 1.0])
    field, counts = marginal.fields[label], found.problem.counts
    turning = field._replace(along=field.along + 1e3 * rng.normal(size=counts.shape))
    assert turning.is_wild(counts)
    assert not field.is_wild(counts)
    plain = found._replace(marginals=(marginal._replace(fields={label: turning}),)).pdf(points)
    assert [str(status) for status in plain.status[0]] == ["plain"] * 3
    assert plain.mean == pytest.approx(plain.mean_plain)


def test_they_are_the_same_in_any_affine_coordinates(rng):
    x, scores = funnel(rng, (4, 250))
    turn, shift = rng.normal(size=(3, 3)) + 2 * np.eye(3), np.array([1.0, -2.0, 30.0])
    values = np.exp(x[..., 0] / 3)
    trees = [
        mp.from_arrays(x, scores, values[..., None], value_names=["f"]),
        mp.from_arrays(
            x @ turn.T + shift, scores @ np.linalg.inv(turn), values[..., None], value_names=["f"]
        ),
    ]
    one, other = (mp.expectation(tree, ["f"], "vf2") for tree in trees)
    assert one.mean == pytest.approx(other.mean, rel=1e-9)
    # How few draws make up a coordinate, which enlarges errors, is counted in the trace's own.
    assert one.mcse == pytest.approx(other.mcse, rel=0.1)


def test_sums_that_add_have_them(rng):
    x, scores = funnel(rng, (4, 500))
    first, second = (
        mp.from_arrays(x[part], scores[part], names=["v", "a", "b"])
        for part in (slice(0, 2), slice(2, 4))
    )
    sums = mp.moments(first, method="vf2")
    found = mp.expectation(sums + mp.moments(second, like=sums), ["v", "a"])
    assert found.mean == pytest.approx(np.zeros(2), abs=1e-5)
    assert (found.gain > 1e6).all()


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_auto_takes_them_with_honest_errors(phi):
    """Of the funnel: exp(v/2) + x, which is not exact."""
    z, gains = [], []
    for seed in range(24):
        x, scores = funnel(np.random.default_rng([seed, 51]), (4, 500), phi)
        values = np.exp(x[..., 0] / 2) + x[..., 1]
        tree = mp.from_arrays(x, scores, values[..., None], value_names=["f"])
        found = mp.expectation(tree, ["f"], mp.Auto(kernel=False))
        assert found.method == ("VectorFields(degree=2)",)
        z.append((found.mean[0] - np.exp(1 / 8)) / found.mcse[0])
        gains.append(found.gain[0])
    assert np.mean(np.square(z)) < 1.6, z
    assert np.median(gains) > 100, gains
