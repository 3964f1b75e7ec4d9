"""Kernel control variates: the definition, the folds, the matrix-free path, duplicates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chain_cases import ar1
from control_cases import estimate, gaussian_trace
from scipy.stats import norm

from mcmcpost.control import (
    REML,
    Auto,
    ControlFunctional,
    GridREML,
    SemiExact,
    Subsets,
    solve_stein_weights,
)
from mcmcpost.control.features.families import exponents_of_degree, polynomial_basis
from mcmcpost.control.kernels.choice import OwnGridREML
from mcmcpost.control.kernels.systems import (
    KernelData,
    cross_product,
    crossfit_dense,
    crossfit_iterative,
    kernel_data,
)
from mcmcpost.control.problem import make_problem
from mcmcpost.core.errors import Status
from mcmcpost.solve import ConjugateGradients
from mcmcpost.stein import InverseMultiquadric, Matern32, SquaredExponential, SteinTile, stein_gram
from mcmcpost.trace import make_trace

KERNEL = SquaredExponential(1.5)
NUGGET = 1e-4


@pytest.fixture
def problem(rng):
    x = rng.normal(size=(4, 30, 2))
    x[:, 10] = x[:, 9]
    return make_problem(make_trace(x, -x), np.cos(x) + x[..., ::-1] ** 3)


def definition(problem, design, rows, out, seen=None):
    """Return β̂ and g at `out` of the fit on `rows`, from the formulas, with plain inverses; `seen`
    are all its rows."""
    z, s = jnp.asarray(problem.draws), jnp.asarray(problem.scores)
    gram = np.asarray(stein_gram(KERNEL, z, s))
    gram = gram / gram.diagonal()[problem.counts > 0 if seen is None else seen].mean()
    inverse = np.linalg.inv(gram[np.ix_(rows, rows)] + NUGGET * np.diag(1 / problem.counts[rows]))
    basis, values = design[rows], problem.values[rows]
    gamma = np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse @ values)
    dual = inverse @ (values - basis @ gamma)
    return gamma[0], gram[np.ix_(out, rows)] @ dual + design[out][:, 1:] @ gamma[1:]


def system(problem, design):
    return kernel_data((problem.draws, problem.scores), design, problem.values, problem)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 2])
def test_the_dense_fit_and_its_folds_are_the_definition(problem, degree):
    design = polynomial_basis(problem, exponents_of_degree(2, degree))
    fit = crossfit_dense(SteinTile(KERNEL), NUGGET, system(problem, design))
    everyone = np.arange(problem.num_states)
    np.testing.assert_allclose(
        fit.mean[0], definition(problem, design, everyone, everyone)[0], rtol=1e-7
    )
    for k, (out, train) in enumerate(problem.folds.rows()):
        expected = definition(problem, design, train, out)[1]
        np.testing.assert_allclose(
            fit.control[k][problem.folds.held_out()[1][k]], expected, rtol=1e-6, atol=1e-8
        )
    for means, folds in zip(fit.refits[1:], Subsets.of(problem.folds.num_folds), strict=True):
        for found, kept in zip(means, folds, strict=True):
            rows = np.flatnonzero(kept[problem.folds.labels])
            np.testing.assert_allclose(
                found[0], definition(problem, design, rows, rows[:1])[0], rtol=1e-6
            )


def test_fits_on_some_of_the_rows_predict_the_others(problem):
    fit = SemiExact(1, KERNEL, NUGGET, max_states=100).crossfit(problem)
    problem = problem.thin(100)
    assert fit.info["num_fitted"] == 100 < problem.num_states
    design = polynomial_basis(problem, exponents_of_degree(2, 1))
    for out, train in problem.folds.rows():
        _, expected = definition(problem, design, train, out, problem.folds.everyone)
        np.testing.assert_allclose(fit.control[out], expected, rtol=1e-6, atol=1e-8)
    assert not fit.control[problem.num_states :].any()
    weight = problem.counts / problem.counts.sum()
    np.testing.assert_allclose(fit.mean, weight @ (problem.values - fit.control), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 2])
def test_the_matrix_free_fit_is_the_dense_one(problem, degree):
    design = polynomial_basis(problem, exponents_of_degree(2, degree))
    data = system(problem, design)
    dense = crossfit_dense(SteinTile(KERNEL), NUGGET, data)
    solver = ConjugateGradients(rtol=1e-11, budget=400, rank=30)
    free = crossfit_iterative(SteinTile(KERNEL), jnp.asarray(NUGGET), solver, data)
    assert bool(free.converged)
    np.testing.assert_allclose(free.mean, dense.mean, rtol=1e-6)
    np.testing.assert_allclose(free.control, dense.control, atol=1e-6)


def test_the_matrix_free_fit_never_forms_the_matrix(rng):
    trace = gaussian_trace(rng, (4, 512, 2))
    problem = make_problem(trace, trace.draws)
    design = polynomial_basis(problem, exponents_of_degree(2, 0))
    data = system(problem, design)
    solver = ConjugateGradients(rtol=1e-3, budget=5, rank=20)

    def fit(*arrays: object) -> object:
        return crossfit_iterative(
            SteinTile(KERNEL), jnp.asarray(1e-3), solver, KernelData(*arrays, data.folds)
        )

    jaxpr = jax.make_jaxpr(fit)(*data[:-1])

    def sizes(inner):
        for equation in inner.eqns:
            yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
            for value in equation.params.values():
                for sub in value if isinstance(value, (tuple, list)) else [value]:
                    core = getattr(sub, "jaxpr", sub)
                    if hasattr(core, "eqns"):
                        yield from sizes(core)

    m = len(problem.counts)
    assert max(sizes(jaxpr.jaxpr)) < m * m / 8


@pytest.mark.slow
def test_an_unfinished_solve_says_so_and_stays_unbiased(rng):
    trace = gaussian_trace(rng, (4, 200, 2))
    values = np.exp(0.4 * trace.draws[..., :1])
    method = ControlFunctional(
        SquaredExponential(1.0), 1e-6, solver=ConjugateGradients(1e-10, 2, 10)
    )
    result = estimate(trace, values, method)
    assert result.status[0] in (Status.NOT_CONVERGED, Status.PLAIN)
    assert abs(result.mean_crossfit[0] - np.exp(0.08)) < 4.5 * result.mcse[0]


def test_repeated_states_are_their_counts(rng):
    x = rng.normal(size=(2, 40, 2))
    doubled = np.repeat(x, 2, axis=1)
    once = make_problem(make_trace(x, -x), np.cos(x))
    twice = make_problem(make_trace(doubled, -doubled), np.cos(doubled))
    assert twice.num_states == once.num_states == 80
    assert twice.counts[:80].min() == 2
    np.testing.assert_allclose(twice.values, once.values)
    method = ControlFunctional(KERNEL, NUGGET)
    assert (
        estimate(make_trace(doubled, -doubled), np.cos(doubled), method).status
        == (Status.CONTROLLED,) * 2
    )


def test_a_singular_system_at_the_requested_nugget_is_reported(rng):
    trace = gaussian_trace(rng, (2, 60, 1))
    result = estimate(
        trace, np.cos(trace.draws), ControlFunctional(SquaredExponential(50.0), 1e-18)
    )
    assert result.status == (Status.NUGGET_RAISED,)
    assert result.info["fits"][0]["nugget_used"] > 1e-18


@pytest.mark.slow
def test_semi_exact_is_exact_for_its_polynomials_and_better_than_them_elsewhere(rng):
    trace = gaussian_trace(rng, (4, 80, 2))
    x = trace.draws
    values = np.stack([x[..., 0] * x[..., 1], np.sin(x[..., 0]) + np.exp(0.5 * x[..., 1])], axis=-1)
    result = estimate(trace, values, SemiExact(2, SquaredExponential(2.0), 1e-6))
    np.testing.assert_allclose(result.mean[0], 0.0, atol=1e-10)
    assert result.variance_ratio[1] > 1000
    assert abs(result.mean[1] - np.exp(0.125)) < 4.5 * result.mcse[1]


@pytest.mark.slow
def test_a_kernel_that_is_given_is_used_and_may_be_tuned(rng):
    kernel = Matern32(1.0)
    trace = gaussian_trace(rng, (4, 40, 2))
    values = np.cos(trace.draws[..., :1])
    as_given = estimate(trace, values, ControlFunctional(kernel))
    tuned = estimate(trace, values, ControlFunctional(kernel, tuning=REML()))
    assert as_given.info["fits"][0]["kernel"] == "Matern32"
    assert tuned.info["fits"][0]["parameters"] != as_given.info["fits"][0]["parameters"]
    assert tuned.variance_ratio[0] > as_given.variance_ratio[0]


def test_a_grid_cannot_tune_a_kernel_that_is_given():
    with pytest.raises(ValueError, match="GridREML"):
        ControlFunctional(KERNEL, tuning=GridREML())


@pytest.mark.slow
def test_fits_on_a_subset_still_hold_out_every_draw(rng):
    trace = gaussian_trace(rng, (4, 200, 2))
    values = np.cos(trace.draws[..., :1])
    result = estimate(trace, values, ControlFunctional(KERNEL, 1e-6, max_states=200))
    assert result.info["num_fitted"] == 200
    np.testing.assert_allclose(result.mean, result.mean_crossfit, rtol=1e-12)
    assert result.variance_ratio[0] > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [ControlFunctional(KERNEL, NUGGET), SemiExact(2, KERNEL, NUGGET)]
)
def test_stein_weights_are_the_linear_rule_of_the_fit(rng, method):
    x = rng.normal(size=(4, 50, 2))
    x[:, 20:22] = x[:, 19:20]
    trace = make_trace(x, -x)
    values = np.stack([np.cos(x[..., 0]), x[..., 0] * x[..., 1]], axis=-1)
    weights = solve_stein_weights(trace, values, method)
    np.testing.assert_allclose(weights.values.sum(), 1.0, rtol=1e-9)
    np.testing.assert_allclose(
        weights.mean(values), estimate(trace, values, method).mean, rtol=1e-6, atol=1e-9
    )
    with pytest.raises(ValueError, match="leading shape"):
        weights.mean(values[:, 1:])


@pytest.mark.slow
def test_a_kernel_too_large_to_form_gives_the_same_product(monkeypatch, rng):
    rows, columns = (
        (jnp.asarray(rng.normal(size=(n, 2))), jnp.asarray(rng.normal(size=(n, 2))))
        for n in (100, 41)
    )
    V, tile = jnp.asarray(rng.normal(size=(41, 3))), SteinTile(InverseMultiquadric(1.5))
    formed = cross_product(tile, rows, columns, V)
    monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 0)
    np.testing.assert_allclose(
        cross_product(tile, rows, columns, V), formed, rtol=1e-12, atol=1e-12
    )


@pytest.mark.slow
def test_lengthscales_of_few_coordinates_are_found_by_each_integrand_for_itself(rng):
    """Long where the integrand does not vary, the same beside other integrands, and better than one
    for all."""
    trace = gaussian_trace(rng, (4, 60, 4))
    x = trace.draws
    values = np.stack([np.sin(2 * x[..., 1]), np.cos(x.sum(axis=-1))], axis=-1)
    moments = (0.0, 1.0)
    both, one = (
        estimate(trace, values[..., :p], ControlFunctional(), standardize=moments) for p in (2, 1)
    )
    isotropic = estimate(
        trace,
        values[..., :1],
        ControlFunctional(tuning=GridREML(polish=False)),
        standardize=moments,
    )
    lengths = np.array(
        next(fit for fit in both.info["fits"] if fit["integrands"] == [0])["parameters"][0]
    )
    assert (np.delete(lengths, 1) > 5 * lengths[1]).all()
    assert abs(both.mean[0] - one.mean[0]) < 1e-3 * one.mcse[0]
    assert one.variance_ratio[0] > 10 * isotropic.variance_ratio[0]
    assert one.mcse[0] < 0.3 * isotropic.mcse[0]


@pytest.mark.slow
def test_a_step_that_the_likelihood_would_interpolate_is_fitted_with_a_ridge():
    """Of an indicator on chains with gaps; without the ridge a tenth of the estimates are off by
    many plain errors."""
    off, plain, ridged = [], [], 0
    for r in range(12):
        x = ar1(np.random.default_rng(r), (4, 60, 2), 0.9)
        found = estimate(make_trace(x, -x), (x[..., :1] > 1.0) * 1.0, SemiExact(2), fallback=False)
        off.append(found.mean[0] - norm.sf(1.0))
        plain.append(found.mean_plain[0] - norm.sf(1.0))
        ridged += len(found.info["fits"]) > 1
    assert ridged >= 3
    assert np.std(off) < np.std(plain)


@pytest.mark.parametrize(
    ("d", "draws", "weighted", "own"),
    [
        (1, 300, False, []),
        (3, 60, False, None),
        (3, 150, False, [3.0]),
        (3, 251, False, [60.0]),
        (3, 150, True, []),
    ],
)
def test_auto_seeks_lengthscales_of_their_own_where_the_grid_has_left_much(
    rng, d, draws, weighted, own
):
    problem = make_problem(gaussian_trace(rng, (4, draws, d)), rng.normal(size=(4, draws, 2)))
    lowest = np.array([1.0, 1e-5])
    found = Auto()._dearer(problem._replace(weighted=weighted), lowest, any_family=True)
    kernels = [(m.tuning, columns.tolist()) for m, columns in found if isinstance(m, SemiExact)]
    few = own is None  # of few states all integrands get them at once
    rest = [] if few else [(OwnGridREML(least=least), [0]) for least in own]
    assert kernels == [(None if few else GridREML(polish=False), [0, 1]), *rest]


def test_auto_seeks_lengthscales_of_their_own_in_many_coordinates_where_little_is_left(
    rng, monkeypatch
):
    monkeypatch.setattr(Auto, "_promises", lambda *args: np.isinf(args[2]))
    problem = make_problem(gaussian_trace(rng, (4, 150, 5)), rng.normal(size=(4, 150, 3)))
    found = Auto()._dearer(problem, np.array([0.1, 5e-3, 1e-5]), any_family=True)
    kernels = [(m.tuning, columns.tolist()) for m, columns in found if isinstance(m, SemiExact)]
    assert kernels == [(GridREML(polish=False), [0, 1, 2]), (OwnGridREML(least=5.0), [1])]


@pytest.mark.slow
def test_auto_tries_a_kernel_on_a_few_states_first(rng):
    """Where a quadratic leaves noise a kernel promises nothing; for a sine of the sum of a few
    coordinates it does."""
    trace = gaussian_trace(rng, (4, 300, 4))
    x = trace.draws
    values = np.stack(
        [x[..., 0] * x[..., 1] + rng.normal(size=x.shape[:2]), np.sin(x.sum(axis=-1) / 2)], axis=-1
    )
    problem, anything = make_problem(trace, values), np.full(2, np.inf)
    assert Auto()._promises(problem, anything).tolist() == [False, True]
    # One that is far behind a linear fit on all draws is not fitted to more.
    assert not Auto()._promises(problem, np.full(2, 1e-6)).any()


@pytest.mark.slow
def test_a_kernel_of_an_integrands_own_is_fitted_where_its_lengthscales_are_worth_much(rng):
    trace = gaussian_trace(rng, (4, 300, 6))
    x = trace.draws
    values = np.stack([np.cos(2 * x[..., 0]), np.sin(x.sum(axis=-1) / np.sqrt(6))], axis=-1)
    problem = make_problem(trace, values)
    fit = SemiExact(2, tuning=OwnGridREML(), max_states=1_000).crossfit(problem)
    assert [facts["integrands"] for facts in fit.info["fits"]] == [[0]]
    assert np.isfinite(fit.mean).tolist() == [True, False]
    nothing = SemiExact(2, tuning=OwnGridREML(), max_states=1_000).crossfit(
        make_problem(trace, values[..., 1:])
    )
    assert nothing.status == (Status.PLAIN,)
    assert not nothing.control.any()
    alike = estimate(trace, values, SemiExact(2, tuning=GridREML(polish=False), max_states=1_000))
    own = estimate(trace, values[..., :1], SemiExact(2, tuning=OwnGridREML(), max_states=1_000))
    assert own.gain[0] > 20 * alike.gain[0]
    found = estimate(trace, values, Auto())
    assert found.gain[0] > 10
    assert (np.abs(found.mean - [np.exp(-2.0), 0.0]) < 4 * found.mcse).all()


@pytest.mark.slow
def test_a_kernel_of_an_integrands_own_is_left_out_where_chains_mix_slowly(rng, monkeypatch):
    x = ar1(rng, (4, 300, 3), 0.97)
    trace, values = make_trace(x, -x), np.cos(2 * x[..., :1])
    slowly = estimate(trace, values, Auto())
    monkeypatch.setattr("mcmcpost.control.auto.SLOW", np.inf)
    believed = estimate(trace, values, Auto())
    monkeypatch.setattr("mcmcpost.control.auto.POLISHED", np.inf)
    without = estimate(trace, values, Auto())
    assert believed.mcse[0] < slowly.mcse[0]
    np.testing.assert_array_equal(slowly.mean, without.mean)


@pytest.mark.slow
def test_a_chain_that_repeats_another_leaves_the_second_kernel_alone(rng):
    """Its states are first visited by the other, so that no state has its number."""
    x = rng.normal(size=(4, 400, 3))
    x[3] = x[0]
    found = estimate(make_trace(x, -x), np.cos(2 * x[..., :1]), Auto())
    assert found.gain[0] > 100
