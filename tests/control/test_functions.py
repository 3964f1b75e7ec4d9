"""Functions of one quantity: their controls have mean zero, and their regressions are those of the
textbook."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from control_cases import estimate, gaussian_trace, structure_fields

import mcmcpost as mp
from mcmcpost.control import Auto, Options, PlainMean, Sample, Subsets, ZeroVariance
from mcmcpost.control.features.families import FirstOrder, Monomials, controls_of, polynomials
from mcmcpost.control.features.quantity import (
    OUTERMOST,
    QuantityField,
    coordinate,
    coordinate_of,
    surrogates,
)
from mcmcpost.control.features.regression import Regression
from mcmcpost.control.features.structure import (
    Blocks,
    BlockSums,
    Diagonal,
    Neighbours,
    Pairs,
    SumsByGlobals,
)
from mcmcpost.control.functions import (
    MOST_STEPS,
    _steps_of,
    crossfit_functions,
    fields_of,
    marginals,
)
from mcmcpost.control.linear import linear_system, nested_fits
from mcmcpost.control.order_statistics import _ends, _influence
from mcmcpost.control.problem import make_problem
from mcmcpost.stein import polynomial_exponents
from mcmcpost.trace import make_trace

SHAPE = 3.0
SKEW = scipy.stats.loggamma(SHAPE)
"""The logarithm of a gamma variable: its score is SHAPE − eˣ, and its left tail the longer one."""

FIELDS = {
    "constant": (lambda x: x, lambda x: 0.7 + 0.0 * x),
    "linear": (lambda x: x, lambda x: 2.0 + 0.5 * x),
    "of a curved quantity": (lambda x: jnp.exp(0.5 * x) + 0.1 * x, lambda x: 1.0 + 0.2 * x**2),
}
"""A quantity h of one coordinate, and the field v."""


def skew_field(name, x):
    """Return h, ∇·v + v·s and v·∇h at draws of the log-gamma by found differentiation."""
    h, v = FIELDS[name]
    divergence, slope = jax.vmap(jax.grad(v))(x), jax.vmap(jax.grad(h))(x)
    return QuantityField(
        *(
            np.asarray(part)
            for part in (h(x), divergence + v(x) * (SHAPE - jnp.exp(x)), v(x) * slope)
        )
    )


def skew_grid():
    """Return points so dense that a sum over them, by the density, is an integral, and the
    density."""
    x = np.linspace(SKEW.ppf(1e-14), SKEW.ppf(1 - 1e-14), 40_001)
    return x, SKEW.pdf(x) / SKEW.pdf(x).sum()


@pytest.mark.parametrize("name", FIELDS)
def test_controls_of_functions_of_a_quantity_have_mean_zero(name):
    x, density = skew_grid()
    field, counts = skew_field(name, x), 1e4 * density
    # Thresholds are between points, where the rule's error at a step is of second order.
    h = np.sort(field.value)
    at = (h[[9_000, 20_000, 30_000]] + h[[9_001, 20_001, 30_001]]) / 2
    for kind in (
        lambda field: field.splines(counts),
        lambda field: field.steps(counts, at),
        lambda field: field.ramps(counts, at),
    ):
        columns = kind(field)
        size = np.sqrt(density @ columns**2)
        assert size.max() > 0.1
        assert (np.abs(density @ columns) < 1e-6 * np.maximum(size, 0.01)).all()
        wrong = kind(field._replace(along=1.1 * field.along))
        assert (np.abs(density @ wrong) > 1e-4 * size).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_splines_are_the_stein_operator_of_the_field_times_each_of_them(name, rng):
    """∇·(g v) + g v·s by automatic differentiation of a g that they span: a line, and between outer
    knots a cubic."""
    x = np.sort(SKEW.rvs(size=60, random_state=rng))
    field = skew_field(name, x)
    columns = field.splines(np.ones(60))
    h, v = FIELDS[name]
    np.testing.assert_allclose(columns.sum(axis=1), field.control, rtol=1e-9, atol=1e-9)
    for power in (1, 2, 3):
        times = lambda y, power=power: h(y) ** power * v(y)  # noqa: E731
        expected = jax.vmap(jax.grad(times))(x) + times(x) * (SHAPE - np.exp(x))
        low, high = (
            (-np.inf, np.inf)
            if power == 1
            else np.quantile(field.value, [OUTERMOST, 1 - OUTERMOST])
        )
        own = (field.value >= low) & (field.value <= high)
        assert own.sum() > 50
        found = (
            columns[own] @ np.linalg.lstsq(columns[own], np.asarray(expected)[own], rcond=None)[0]
        )
        np.testing.assert_allclose(
            found, expected[own], rtol=1e-6, atol=1e-6 * np.abs(expected).max()
        )


@pytest.mark.slow
def test_functions_that_go_on_beyond_the_draws_have_right_means():
    """Splines that end with the draws follow cos 2x to a mean that is wrong by ten errors in every
    fold alike."""
    z = []
    for r in range(12):
        x = np.random.default_rng(r).normal(size=(4, 300, 6))
        found = estimate(make_trace(x, -x), np.cos(2 * x[..., :1]), Auto(kernel=False))
        z.append((found.mean[0] - np.exp(-2.0)) / found.mcse[0])
    assert np.mean(np.square(z)) < 3


def test_the_elements_of_steps_and_ramps_have_the_one_step_that_they_are_for(rng):
    x = np.concatenate([SKEW.rvs(size=300, random_state=rng), [0.5, 0.5 + 1e-9, 1.0, 1.0 + 1e-9]])
    field, counts = skew_field("linear", x), np.ones(304)
    middle, sigma = (field.value - field.control).mean(), np.sqrt(abs(field.along.mean()))
    along, threshold = field.along[-4] / sigma, (0.5 - middle) / sigma
    # The step of g′ is that of 1{x ≤ t}, or of x 1{x > t}, and g is continuous.
    for kind, height in ((field.steps, -along), (field.ramps, threshold * along)):
        element = kind(counts, np.array([0.5 + 5e-10]))[:, 0]
        assert abs(height) > 0.1
        np.testing.assert_allclose(element[-3] - element[-4], height, rtol=1e-6)
        assert abs(element[-1] - element[-2]) < 1e-7


NAMES = ["mu", *(f"z[{i}, {j}]" for i in range(7) for j in range(2)), "log_sd"]


def polynomial_of_state(x):
    """Return a function h of several coordinates."""
    return x[0] ** 2 * x[3] + x[1] * x[2] - 0.5 * x[-1] ** 3 + x[4]


def along_all(families, draws, gradients):
    """Return the derivatives along the fields of all controls, each draw with a gradient of its
    own."""
    found = np.zeros((len(draws), sum(family.size for family in families)))
    for row, (draw, gradient) in enumerate(zip(draws, gradients, strict=True)):
        start = 0
        for family in families:
            columns, values = family.along(draw[None], gradient)
            found[row, start + columns] = values[0]
            start += family.size
    return found


@pytest.mark.slow
def test_every_family_knows_the_derivative_along_its_fields(rng):
    """v·∇h against a derivative along the field as it is written down, of named dimensions and of
    monomials."""
    d = len(NAMES)
    blocks = Blocks.of(NAMES)
    shift, scale = rng.normal(size=d), np.exp(rng.normal(size=d))
    given = (blocks.globals, blocks.blocks, shift, scale)
    pairs = Pairs(np.repeat(blocks.globals[:1], 7), blocks.blocks[1])
    families = [
        BlockSums(*given),
        SumsByGlobals(*given),
        Neighbours(*given, lags=(1, 3, 4)),
        Diagonal(d),
        pairs,
    ]
    x = rng.normal(size=(4, d))
    gradient = np.asarray(jax.vmap(jax.grad(polynomial_of_state))(x))
    found = along_all(families, (x - shift) / scale, gradient * scale)
    fields = list(structure_fields(blocks, shift, scale, d))
    assert found.shape[1] == len(fields)
    for column, field in zip(found.T, fields, strict=True):
        expected = [jax.jvp(polynomial_of_state, (row,), (field(row),))[1] for row in x]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)

    exponents = polynomial_exponents(5, 3)
    families = [FirstOrder(5), Monomials(exponents[exponents.sum(axis=1) > 1])]
    z = rng.normal(size=(4, 5))
    gradient = np.asarray(jax.vmap(jax.grad(polynomial_of_state))(z))
    found = along_all(families, z, gradient)
    ordered = np.concatenate([np.eye(5, dtype=int), families[1].exponents])
    for column, powers in zip(found.T, ordered, strict=True):
        field = jax.grad(lambda y, powers=powers: jnp.prod(y**powers))
        expected = [jax.jvp(polynomial_of_state, (row,), (field(row),))[1] for row in z]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_the_field_of_a_fit_is_that_of_its_coefficients(rng):
    """Of fits in rotated coordinates: ∇·(g v) + g v·s by found differentiation is g′ v·∇h + g c,
    fold by fold."""
    mixing = np.array([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [-0.5, 0.3, 2.0]])
    raw = SKEW.rvs(size=(4, 60, 3), random_state=rng)
    trace = make_trace(raw @ mixing.T + 5.0, (SHAPE - np.exp(raw)) @ np.linalg.inv(mixing))
    x = trace.draws
    values = np.stack([x[..., 0], x[..., 0] * x[..., 1] + 0.1 * x[..., 2] ** 2], axis=-1)
    problem = make_problem(trace, values)
    quantities = [coordinate(problem.unrotated(), 0), *surrogates(problem.unrotated(), [1])]
    assert quantities[1].explained > 1 - 1e-9
    families, labels = polynomials(3, 2), ["first", "second"]
    *_, fits = nested_fits(linear_system(problem, families), labels, (1, 2), problem)
    first, second = fields_of(fits, quantities, range(2))
    coefficients = fits.in_controls()[:, 1:]
    exponents = np.concatenate([np.eye(3, dtype=int), families[1].exponents])

    def state(z):
        return problem.shift + problem.lower @ z

    functions = (
        # A coordinate is in units of its standard deviation, and a polynomial in those of the
        # integrand.
        lambda z: (state(z)[0] - problem.shift[0]) / np.linalg.norm(problem.lower[0]),
        lambda z: (
            (state(z)[0] * state(z)[1] + 0.1 * state(z)[2] ** 2 - problem.location[1])
            / problem.scale[1]
        ),
    )
    for row in rng.integers(0, 240, size=6):
        z, s, fold = problem.draws[row], problem.scores[row], problem.labels[row]
        for j, (h, field) in enumerate(zip(functions, (first, second), strict=True)):
            theta = coefficients[fold, :, j] * problem.scale[j]

            def v(y, theta=theta):
                return jax.grad(
                    lambda u: theta @ jnp.prod(u[None] ** jnp.asarray(exponents), axis=1)
                )(y)

            np.testing.assert_allclose(field.value[row], h(z), rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(field.along[row], jax.jvp(h, (z,), (v(z),))[1], rtol=1e-6)
            g = lambda y, h=h: jnp.sin(h(y))  # noqa: E731
            product = lambda y, g=g, v=v: g(y) * v(y)  # noqa: E731
            expected = jnp.trace(jax.jacfwd(product)(z)) + product(z) @ s
            found = (
                np.cos(field.value[row]) * field.along[row]
                + np.sin(field.value[row]) * field.control[row]
            )
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def own_problem(rng, residual, weighting):
    """Return a problem with two columns that all share, a third that is their sum, and one of each
    integrand."""
    n, p = 160, 3
    trace = gaussian_trace(rng, (4, n // 4, 2))
    problem = make_problem(trace, rng.normal(size=(4, n // 4, p)))
    m = problem.num_states
    counts = problem.counts.copy()
    if weighting == "repeats":
        counts[:m] = rng.integers(1, 5, size=m)
    elif weighting == "weights":
        counts[:m] = rng.gamma(2.0, size=m)
    shared = rng.normal(size=(len(counts), 3))
    shared[:, 1] += 30.0  # far from zero, beside the constant
    shared[:, 2] = shared[:, 0] - 2.0 * shared[:, 1]
    last = rng.normal(size=(len(counts), p)) + shared[:, :1]
    last[:, 2] = 0.5 * shared[:, 0]  # nothing of its own
    values = (
        np.array([0.3, -2.0, 5.0])
        + shared[:, :1] * np.array([1.0, 0.1, 3.0])
        + last * np.array([2.0, -1.0, 0.0])
    )
    values += residual * rng.normal(size=values.shape)
    return problem._replace(values=values * (counts > 0)[:, None], counts=counts), shared, last


@pytest.mark.parametrize("weighting", ["none", "repeats", "weights"])
@pytest.mark.parametrize("residual", [1.0, 1e-6, 1e-12])
def test_regressions_without_folds_are_dense_refits(rng, residual, weighting):
    problem, shared, last = own_problem(rng, residual, weighting)
    fit = Regression(problem, shared).crossfit(problem, "own", last)
    m, k = problem.num_states, problem.folds.num_folds
    root, labels = np.sqrt(problem.counts[:m])[:, None], problem.labels[:m]
    tolerance = 1e-6 * residual + 1e-13  # the ridge, and rounding
    for j in range(3):
        design = np.concatenate([np.ones((m, 1)), shared[:m, :2] - [0.0, 30.0]], axis=1)
        if j < 2:
            design = np.concatenate([design, last[:m, [j]]], axis=1)

        def refit(rows, design=design, j=j):
            theta = np.linalg.lstsq(
                design[rows] * root[rows], problem.values[:m][rows, j] * root[rows, 0], rcond=None
            )
            # The constant is that where all columns are zero, and the second was moved.
            return theta[0], theta[0][0] - 30.0 * theta[0][2]

        tall = tolerance * 100  # its size, where the second column is zero
        np.testing.assert_allclose(fit.mean[j], refit(np.arange(m))[1], rtol=0, atol=tall)
        for fold in range(k):
            theta, constant = refit(labels != fold)
            np.testing.assert_allclose(
                fit.refits.without_fold[fold, j], constant, rtol=0, atol=tall
            )
            here = np.flatnonzero(labels == fold)
            residuals = (
                problem.values[here, j] - fit.control[here, j] - fit.refits.without_fold[fold, j]
            )
            np.testing.assert_allclose(
                residuals, problem.values[here, j] - design[here] @ theta, atol=10 * tolerance
            )
        for half, found in zip(Subsets.of(k).halves, fit.refits.halves[:, j], strict=True):
            np.testing.assert_allclose(
                found, refit(np.isin(labels, np.flatnonzero(half)))[1], rtol=0, atol=tall
            )


def test_a_column_that_only_one_fold_has_does_not_break_the_fits_without_it(rng):
    problem, shared, last = own_problem(rng, 0.1, "none")
    regression = Regression(problem, shared)
    fit = regression.crossfit(problem, "own", last * (problem.labels == 2)[:, None])
    assert np.isfinite(fit.control).all()
    alone = regression.crossfit(problem, "own")
    rest = np.flatnonzero((problem.labels != 2) & (problem.counts > 0))
    # Elsewhere that column is zero: without its fold nothing is known of it, and the others are as
    # without it.
    assert np.abs(fit.refits.without_fold[2] - alone.refits.without_fold[2]).max() < 1e-6
    assert np.isfinite(fit.control[rest]).all()


def test_the_only_draw_beyond_a_threshold_is_not_reproduced_without_its_fold(rng):
    problem, shared, last = own_problem(rng, 0.1, "none")
    shared[7] *= 30.0  # most of that draw is in the span of what all functions have
    alone = np.zeros_like(last)
    alone[7] = 1.0
    regression = Regression(problem, shared)
    fit = regression.crossfit(problem._replace(values=alone), "own", alone)
    np.testing.assert_allclose(fit.mean, 0.0, atol=1e-9)
    assert (np.abs(fit.control[7]) < 1e-5).all()  # it was one, and the error nothing


@pytest.mark.parametrize("weighting", ["none", "repeats", "weights"])
def test_the_outermost_states_are_left_out_at_either_end(rng, weighting):
    problem, shared, _ = own_problem(rng, 0.1, weighting)
    m, root = problem.num_states, np.sqrt(problem.counts)[:, None]
    value = rng.normal(size=len(problem.counts))
    # States 40 to 43 are one visit, after which three others are needed; at the other end are four
    # single ones.
    value[40:44] = 9.0
    value[[3, 20, 60]] = 8.0
    value[[10, 30, 50, 70]] = -8.0
    design = np.concatenate([np.ones((m, 1)), shared[:m, :2]], axis=1)

    def mean_without(rows):
        kept = np.setdiff1d(np.arange(m), rows)
        return np.linalg.lstsq(
            design[kept] * root[kept], problem.values[kept] * root[kept], rcond=None
        )[0][0]

    moved = [
        mean_without(rows) - mean_without([])
        for rows in ([*range(40, 44), 3, 20, 60], [10, 30, 50, 70])
    ]
    found = Regression(problem, shared).outermost(problem, value)
    np.testing.assert_allclose(found, np.hypot(*moved), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "draws"), [(1030, 500), (1032, 200), (1010, 200)])
def test_what_grows_beyond_the_draws_is_in_the_error(seed, draws):
    """The mean of exp(x) was 14, 8 and 5 errors off where no draw was far out."""
    x = np.random.default_rng(seed).normal(size=(draws, 3)).reshape(4, -1, 3)
    found = mp.expectation(mp.from_arrays(x, -x), np.exp(x[..., 0]))
    assert abs(found.mean[0] - np.exp(0.5)) < 3.0 * found.mcse[0]
    assert found.gain[0] > 20.0


def test_what_an_integrand_is_a_function_of_is_told_from_its_values(rng):
    x = SKEW.rvs(size=(4, 250, 3), random_state=rng)
    a, b, c = np.moveaxis(x, -1, 0)
    of_one = {
        "coordinate": (a, 0),
        "decreasing": (np.exp(-b), 1),
        "square": ((c - c.mean()) ** 2, 2),
        "event": (a > 1.0, 0),
        "two steps": ((b > 0.5) & (b < 1.5), 1),
        "four steps": ((np.abs(c - 1.0) < 0.3) | (np.abs(c - 1.0) > 0.8), 2),
    }
    of_two = {
        "sum": a + b,
        "product": a * c,
        "event of a sum": a + b > 2.0,
        "either": (a > 1) | (b > 1),
        "noise": None,
    }
    of_two["noise"] = rng.normal(size=a.shape)
    values = np.stack([*(value for value, _ in of_one.values()), *of_two.values()], axis=-1).astype(
        float
    )
    found = coordinate_of(make_problem(make_trace(x, SHAPE - np.exp(x)), values).unrotated())
    assert found.tolist() == [place for _, place in of_one.values()] + [-1] * len(of_two)


def test_events_of_up_to_four_steps_are_functions_of_a_coordinate(rng):
    trace = gaussian_trace(rng, (4, 250, 2))
    x = trace.draws[..., 0]
    distance = np.abs(np.abs(x) - 0.8)
    values = np.stack(
        [x > 0.3, np.abs(x) < 0.5, distance < 0.4, (distance < 0.4) | (x > 2.5)], axis=-1
    ).astype(float)
    found = estimate(trace, values, Auto(kernel=False, max_degree=2))
    assert MOST_STEPS == 4
    assert [method.startswith("FunctionOf") for method in found.method] == [True, True, True, False]
    assert (found.gain[:3] > 100).all()
    truth = scipy.stats.norm.cdf
    expected = [1 - truth(0.3), 2 * truth(0.5) - 1, 2 * (truth(1.2) - truth(0.4))]
    assert (np.abs(found.mean[:3] - expected) < 4 * found.mcse[:3]).all()


def hierarchy(rng, shape=(4, 400)):
    """Return a trace of mu, tau and z that are independent, and its coordinates."""
    mu, z = rng.normal(size=shape), rng.normal(size=shape)
    tau = np.log(rng.gamma(8.0, size=shape))
    others = rng.normal(size=(*shape, 4))
    draws = np.concatenate([np.stack([mu, tau, z], -1), others], -1)
    scores = np.concatenate([np.stack([-mu, 8.0 - np.exp(tau), -z], -1), -others], -1)
    return make_trace(draws, scores), mu, tau, z


def test_a_surrogate_has_the_values_and_the_gradient_of_what_it_stands_for(rng):
    trace, mu, tau, z = hierarchy(rng)
    effect, scaled = mu + tau * z, mu + np.exp(0.4 * tau) * z
    rough = np.sin(4.0 * (mu + z))
    values = np.stack([effect, scaled, rough, rng.normal(size=mu.shape)], axis=-1)
    problem = make_problem(trace, values).unrotated()
    scale = np.linalg.norm(problem.lower, axis=1)
    slopes = {
        0: np.stack([np.ones_like(mu), z, tau], -1),
        1: np.stack([np.ones_like(mu), 0.4 * np.exp(0.4 * tau) * z, np.exp(0.4 * tau)], -1),
    }
    for column, (unexplained, off) in {0: (1e-12, 1e-6), 1: (1e-3, 0.05)}.items():
        (found,) = surrogates(problem, [column])
        assert sorted(found.places.tolist()) == [0, 1, 2]
        assert 1 - found.explained < unexplained
        expected = (
            slopes[column].reshape(-1, 3)[:, found.places]
            * scale[found.places]
            / problem.scale[column]
        )
        error = np.linalg.norm(found.slopes[: len(expected)] - expected) / np.linalg.norm(expected)
        assert error < off
    assert surrogates(problem, [2, 3]) == [None, None]


@pytest.mark.parametrize(
    "method", [ZeroVariance(2), Auto(kernel=False, max_degree=2)], ids=["zv2", "auto"]
)
def test_functions_of_what_a_surrogate_stands_for_gain(rng, method):
    trace, mu, tau, z = hierarchy(rng)
    effect = mu + np.exp(0.4 * tau) * z
    sample = Sample.of(trace, ("effect",), effect[..., None])
    problem = sample.problem(Options())
    (marginal,) = marginals(problem, method)
    events = Sample.of(trace, ("below",), (effect <= 1.0)[..., None] * 1.0).problem_on(problem)
    at = marginal.at((np.array([1.0]) - problem.location) / problem.scale)
    plain = PlainMean().crossfit(events)
    splines = marginal.prepared(events).splines
    fit = crossfit_functions(events, [(np.arange(1), splines)], np.ones(1), steps=at)
    controlled, own = (events.values - part.control for part in (fit, plain))
    # What a cubic leaves of the quantity itself puts draws near the threshold on its other side.
    assert (own[: events.num_states] ** 2).mean() > 5 * (
        controlled[: events.num_states] ** 2
    ).mean()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_an_event_between_two_draws_has_the_error_of_the_probability_between_them():
    deviations = []
    for number in range(30):
        rng = np.random.default_rng([7, number])
        trace = gaussian_trace(rng, (4, 100, 2))
        x = trace.draws[..., 0]
        threshold = scipy.stats.norm.ppf(0.2 + 0.02 * number)
        found = estimate(trace, (x > threshold)[..., None] * 1.0, Auto(kernel=False, max_degree=2))
        below, above = x[x <= threshold].max(), x[x > threshold].min()
        between = scipy.stats.norm.cdf(above) - scipy.stats.norm.cdf(below)
        # The density there is told by the twenty draws about it, to a quarter or so.
        assert found.mcse[0] > 0.4 * between / np.sqrt(12)
        deviations.append((found.mean[0] - scipy.stats.norm.sf(threshold)) / found.mcse[0])
    assert 0.3 < np.mean(np.square(deviations)) < 2.0


def test_steps_of_an_event_lie_halfway_between_the_draws(rng):
    trace = gaussian_trace(rng, (2, 200, 1))
    x = trace.draws[..., 0]
    problem = make_problem(trace, (np.abs(x) < 1.0)[..., None] * 1.0)
    value = coordinate(problem.unrotated(), 0).value
    steps, doubt = _steps_of(problem, value)
    expected = [(x[x <= at].max() + x[x > at].min()) / 2 for at in (-1.0, 1.0)]
    np.testing.assert_allclose(problem.shift[0] + problem.lower[0, 0] * steps, expected)
    gaps = [
        np.diff(scipy.stats.norm.cdf([x[x <= at].max(), x[x > at].min()]))[0] for at in (-1.0, 1.0)
    ]
    probability = doubt * problem.scale[0]
    assert 0.4 < probability / np.sqrt(np.sum(np.square(gaps)) / 12) < 2.5


@pytest.mark.slow
def test_controls_of_functions_do_not_see_padding(rng):
    """States that are padding have no part: their number depends on nothing but blocks of
    memory."""
    x = SKEW.rvs(size=50, random_state=rng)
    field = skew_field("linear", np.concatenate([x, np.zeros(14)]))
    alone, counts = skew_field("linear", x), np.concatenate([np.ones(50), np.zeros(14)])
    at = np.array([0.3, 1.0])
    for found, expected in (
        (field.splines(counts), alone.splines(np.ones(50))),
        (field.steps(counts, at), alone.steps(np.ones(50), at)),
        (field.ramps(counts, at), alone.ramps(np.ones(50), at)),
    ):
        np.testing.assert_allclose(found[:50], expected, rtol=1e-12, atol=1e-12)
        assert not found[50:].any()


def test_controls_at_states_are_those_of_the_families(rng):
    """The first column is the constant; `fields_of` counts the others."""
    z, s = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    np.testing.assert_allclose(
        controls_of([FirstOrder(3)], z, s), np.concatenate([np.ones((5, 1)), s], axis=1)
    )


@pytest.mark.slow
def test_what_lies_beyond_a_zero_of_the_field_is_in_the_error():
    """A field of degree two vanishes beyond most draws of a logit of beta(0.15, 3), a skewed long
    tail.

    Probabilities were those of the side with most draws: mean z² was 6 and the largest 9.8 in 40
    replications.
    """
    law, levels = scipy.stats.beta(0.15, 3.0), np.array([0.3, 0.5, 0.6])
    places, rng, z, gains = scipy.special.logit(law.ppf(levels)), np.random.default_rng(5), [], []
    for _ in range(30):
        p = law.ppf(rng.random((4, 100, 1)))
        tree = mp.from_arrays(scipy.special.logit(p), 0.15 - 3.15 * p)
        found = mp.distribution(tree, "x[0]", "zv2").cdf(places)
        z.append((found.mean[0] - levels) / found.mcse[0])
        gains.append(found.gain[0])
    assert np.mean(np.square(z)) < 1.5
    assert np.abs(z).max() < 4.5
    assert np.median(gains) > 30


def test_ends_of_a_shortest_interval_move_with_the_function_as_their_derivatives_say():
    """Of a gamma distribution near the ends of its shortest interval of 0.89, and at an end of the
    draws."""
    law = scipy.stats.gamma(3.0)
    for middle in ((0.46, 5.33), (0.6, 5.42)):
        grid = np.array([np.linspace(end - 0.1, end + 0.1, 21) for end in middle])
        values, weight = law.cdf(grid).reshape(-1), np.where(np.arange(42) % 5, 1.0, 0.3)
        ends = _ends(grid, weight, values, 0.89)
        edge = np.abs(ends - grid[:, 0]) < 1e-3
        move = 1e-5 * np.concatenate([np.cos(9 * points + 1) for points in grid])
        there, back = (_ends(grid, weight, values + by, 0.89) for by in (move, -move))
        expected = (there - back) / 2
        assert np.abs(expected).max() > 1e-7
        np.testing.assert_allclose(
            move @ _influence(grid, weight, values, ends, edge), expected, rtol=0.02, atol=1e-8
        )


def test_where_no_control_lowers_the_error_functions_stay_plain(rng):
    """Scores that have nothing to do with the quantity."""
    x = rng.normal(size=(4, 100, 2))
    trace = make_trace(x, rng.normal(size=(4, 100, 2)))
    problem = make_problem(trace, x[..., :1])
    assert all(one is None or not one.fields for one in marginals(problem, Auto()))
