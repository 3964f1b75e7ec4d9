"""Iterative Gaussian processes: gradients, fits, predictions and samples against dense algebra."""

import dataclasses
import functools
import json
from contextlib import nullcontext
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.gp import IterativeGP, SubsetStart, iterative_gp
from mcmcpost.gp.iterative_gp import choose_solver
from mcmcpost.gp.marginal_likelihood import (
    Pathwise,
    Standard,
    estimate_gradient,
    maximise_exact_likelihood,
    maximise_likelihood_by_solves,
    sample_prior,
)
from mcmcpost.solve import (
    AlternatingProjections,
    Cholesky,
    ConjugateGradients,
    StochasticGradientDescent,
)
from mcmcpost.solve.search import LBFGS, Adam, Hyperparameters, Log, Packing, Softplus
from mcmcpost.stein import (
    InverseMultiquadric,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    gram,
)

N = 90
CG = ConjugateGradients(1e-8, 200, 20)
KERNEL = Scaled(1.3, Matern32(np.array([0.9, 1.6])))
PROBES = 256
"""Of the estimators that are checked alone: one compiled program of each serves two tests."""


def outputs(X, rng):
    return 5.0 + 3.0 * np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=len(X))


@functools.cache
def training_data():
    rng = np.random.default_rng(crc32(b"training_data"))
    X = rng.normal(size=(N, 2))
    return X, outputs(X, rng)


@pytest.fixture
def data():
    return tuple(part.copy() for part in training_data())


SOLVERS = {
    "default": None,
    "cg": CG,
    "ap": AlternatingProjections(1e-2, 200, 30),
    "sgd": StochasticGradientDescent(1e-2, 200, 30),
}


@functools.cache
def fit(name):
    """Return a fit to the data, 30 steps long; conjugate gradients are warm-started, which takes
    another program."""
    return IterativeGP(solver=SOLVERS[name], num_steps=30, warm_start=name == "cg").fit(
        *training_data()
    )


def standardised(y):
    return (y - y.mean()) / y.std()


def log_marginal_likelihood(kernel, noise, X, y):
    n = X.shape[0]
    lower = jnp.linalg.cholesky(gram(kernel, X) + noise * jnp.eye(n))
    white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
    return (
        -0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(lower))) - 0.5 * n * jnp.log(2 * jnp.pi)
    )


@eqx.filter_jit
def by_autodiff(packing, data, x):
    return jax.grad(lambda x: log_marginal_likelihood(*packing.unpack(x), *data))(x)


def several(key):
    """Return keys of independent features and probes: means over ten are those of ten times as many
    of both."""
    return jax.random.split(key, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scale"), [(Standard(PROBES), Softplus()), (Pathwise(PROBES, 1_000), Log())]
)
def test_estimated_gradients_are_unbiased(estimator, scale, data, key):
    X, y = jnp.asarray(data[0]), jnp.asarray(standardised(data[1]))
    start = Hyperparameters(KERNEL, 0.3)
    packing = Packing(start, scale, relative=True)
    x = jnp.asarray(packing.pack(start))
    got = np.mean(
        [
            estimate_gradient(packing, estimator, CG, (X, y), x, None, (k, k)).gradient
            for k in several(key)
        ],
        axis=0,
    )
    wanted = by_autodiff(packing, (X, y), x)
    # tr(H⁻¹∂H)/2 has standard deviation of order √(n/2)/√s; the trace is off by two per cent for
    # the random features
    bias = 0.02 * N / 2 if isinstance(estimator, Pathwise) else 0
    np.testing.assert_allclose(got, wanted, atol=4.5 * np.sqrt(N / 2 / (10 * PROBES)) + bias)


@pytest.mark.slow
def test_pathwise_varies_less_than_standard(data, key):
    """Of these data the ratio of standard deviations is 0.86: √tr((H⁻¹∂H)²) by the norm of its
    symmetric part."""
    X, noise = jnp.asarray(data[0]), jnp.asarray(0.3)

    def covariance(lengthscale):
        return gram(Matern32(lengthscale), X) + noise * jnp.eye(N)

    @jax.jit
    @jax.vmap
    def targets(key):
        return Pathwise(400, 1_000).targets(Matern32(2.0), noise, X, key)

    H, slope = map(np.asarray, jax.jit(lambda l: (covariance(l), jax.jacfwd(covariance)(l)))(2.0))
    z = np.asarray(Standard(4_000).targets(Matern32(2.0), noise, X, key))
    v = np.linalg.solve(H, np.concatenate(targets(several(key)), axis=1))
    standard = np.sum(z * np.linalg.solve(H, slope @ z), axis=0)
    pathwise = np.sum(v * (slope @ v), axis=0)
    trace = np.trace(np.linalg.solve(H, slope))
    assert abs(standard.mean() - trace) < 4.5 * standard.std() / np.sqrt(4_000)
    assert abs(pathwise.mean() - trace) < 4.5 * pathwise.std() / np.sqrt(4_000) + 0.03 * abs(trace)
    assert pathwise.std() < 0.95 * standard.std()


STATIONARY = {
    "squared_exponential": SquaredExponential(np.array([0.8, 1.5])),
    "matern32": Matern32(1.2),
    "matern52": Matern52(0.9),
    "rational_quadratic": RationalQuadratic(1.1, 1.7),
    "inverse_multiquadric": InverseMultiquadric(1.3, 0.7),
    "sum": Scaled(2.0, Matern32(1.0)) + SquaredExponential(2.0),
    "product": Matern52(1.0) * Scaled(0.5, SquaredExponential(1.5)),
}


@pytest.fixture(scope="module")
def prior_samples():
    """Return, for every kernel, its covariance of six points and samples of 200 keys, by one
    program."""
    X = np.random.default_rng(crc32(b"prior_samples")).normal(size=(6, 2))

    @jax.jit
    def sample(keys):
        def of_one(key, kernel):
            return sample_prior(kernel, key, num_features=100, num_samples=20, like=jnp.asarray(X))(
                jnp.asarray(X)
            )

        return {
            name: (gram(kernel, X), jax.vmap(functools.partial(of_one, kernel=kernel))(keys))
            for name, kernel in STATIONARY.items()
        }

    return jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(crc32(b"keys")), 200)))


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIONARY)
def test_prior_samples_have_the_covariance_of_the_kernel(name, prior_samples):
    wanted, f = prior_samples[name]
    f = np.concatenate(f, axis=1)
    # covariances of 4,000 samples have error of at most √2·k(0)/√4000; features of 10,000
    # frequencies √(1/10⁴)
    np.testing.assert_allclose(
        f @ f.T / 4_000, wanted, atol=4.5 * wanted.max() * (np.sqrt(2 / 4_000) + 0.01)
    )


def test_a_kernel_without_features_says_so(key):
    with pytest.raises(ValueError, match="stationary kernel"):
        sample_prior(Polynomial(2), key, num_features=10, num_samples=1, like=jnp.zeros((1, 1)))


@pytest.mark.slow
def test_exact_likelihood_climbs_to_a_stationary_point(data):
    X, y = data[0], standardised(data[1])
    fit = maximise_exact_likelihood(KERNEL, 0.5, X, y, scale=Log(), optimiser=LBFGS(200))
    assert fit.history["value"].max() > fit.history["value"][0] + 5
    found = Hyperparameters(fit.kernel, fit.noise)
    packing = Packing(found, Log(), relative=True)
    gradient = by_autodiff(
        packing, (jnp.asarray(X), jnp.asarray(y)), jnp.asarray(packing.pack(found))
    )
    np.testing.assert_allclose(gradient, 0, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scale"), [(Standard(PROBES), Softplus()), (Pathwise(PROBES, 1_000), Log())]
)
def test_solves_follow_the_exact_trajectory(estimator, scale, data, key):
    X, y = data[0], standardised(data[1])
    adam = Adam(rate=0.1, max_steps=25, final=1.0)
    exact = maximise_exact_likelihood(KERNEL, 0.5, X, y, scale=scale, optimiser=adam)
    ours = maximise_likelihood_by_solves(
        KERNEL,
        0.5,
        X,
        y,
        scale=scale,
        estimator=estimator,
        solver=CG,
        key=key,
        learning_rate=0.1,
        num_steps=25,
    )
    np.testing.assert_allclose(
        ours.history["parameters"], exact.history["parameters"][:25], rtol=0.15
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", [Cholesky(), CG])
def test_predictions_are_those_of_the_dense_posterior(solver, data, rng):
    X, y = data
    new = rng.normal(size=(7, 2))
    gp = IterativeGP(KERNEL, 0.2, optimise=False, solver=solver, estimator=Pathwise(16)).fit(X, y)
    cross, H = np.asarray(gram(KERNEL, new, X)), np.asarray(gram(KERNEL, X)) + 0.2 * np.eye(N)
    mean = y.mean() + cross @ np.linalg.solve(H, y - y.mean())
    variance = y.var() * (1.3 - np.sum(cross * np.linalg.solve(H, cross.T).T, axis=1))
    got = gp.predict(new, noise=False, exact_variance=True)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(got.variance, variance, rtol=1e-5)
    noisy = gp.predict(new, exact_variance=True)
    np.testing.assert_allclose(noisy.variance - got.variance, 0.2 * y.var(), rtol=1e-9)


@pytest.mark.slow
def test_samples_have_the_posterior_mean_and_variance(data, rng, key):
    X, y = data
    new = rng.normal(size=(7, 2))
    gp = IterativeGP(KERNEL, 0.2, optimise=False, solver=CG, estimator=Pathwise(200, 1_000))
    fitted = [gp.fit(X, y, key=k) for k in several(key)]
    exact = fitted[0].predict(new, noise=False, exact_variance=True)
    samples = np.concatenate([one.sample(new) for one in fitted], axis=1)
    error = np.sqrt(exact.variance / 2_000)
    assert (
        np.abs(samples.mean(axis=1) - exact.mean) < 4.5 * error + 0.02 * np.sqrt(exact.variance)
    ).all()
    np.testing.assert_allclose(
        samples.var(axis=1), exact.variance, rtol=4.5 * np.sqrt(2 / 2_000) + 0.05
    )
    np.testing.assert_array_equal(fitted[-1].sample(new), samples[:, -200:])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_fits_and_covers_and_tells_it_as_json(name, data, rng):
    new = rng.normal(size=(400, 2))
    truth = outputs(new, rng)
    gp = fit(name)
    mean, variance = gp.predict(new)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 1.0 < data[1].std()
    assert 0.8 < np.mean(np.abs(mean - truth) < 1.96 * np.sqrt(variance)) <= 1
    assert gp.info["outcome"] == "converged"
    json.dumps(gp.info, allow_nan=False)


@pytest.mark.parametrize(
    ("rows", "solver"), [(2_000, Cholesky), (10_000, Cholesky), (10_001, ConjugateGradients)]
)
def test_the_solver_depends_on_the_number_of_rows_only(rows, solver):
    assert isinstance(choose_solver(rows), solver)


@pytest.mark.slow
def test_conjugate_gradients_that_do_not_converge_give_way_to_cholesky_where_it_fits(
    data, monkeypatch
):
    X, y = data
    for name, value in (("DENSE_LIMIT", N - 1), ("RANK", 2)):
        monkeypatch.setattr(iterative_gp, name, value)
    gp = IterativeGP(
        Scaled(1.3, SquaredExponential(3.0)), 1e-10, optimise=False, estimator=Pathwise(4, 100)
    )
    exact = IterativeGP(
        gp.kernel, 1e-10, optimise=False, estimator=gp.estimator, solver=Cholesky()
    ).fit(X, y)
    assert "fallback" not in exact.info
    fitted = gp.fit(X, y)
    assert fitted.info["solver"] == "Cholesky"
    assert fitted.info["fallback"]["solver"] == "ConjugateGradients"
    assert fitted.info["fallback"]["outcome"] != "converged"
    json.dumps(fitted.info, allow_nan=False)
    np.testing.assert_array_equal(fitted.predict(X[:7]).mean, exact.predict(X[:7]).mean)
    monkeypatch.setattr(iterative_gp, "FACTOR_LIMIT", N - 1)
    with pytest.warns(UserWarning, match="Mean and samples are off by more"):
        assert gp.fit(X, y).info["solver"] == "ConjugateGradients"


@pytest.mark.slow
def test_a_subset_start_is_near_the_optimum(data, key):
    X, y = data
    start = IterativeGP(solver=Cholesky(), num_steps=1, subset_start=SubsetStart(3, 60, 30)).fit(
        X, y, key=key
    )
    assert abs(np.log(start.noise / fit("default").noise)) < 1.0


@pytest.mark.slow
def test_duplicates_constant_columns_and_constant_outputs(rng):
    X = np.column_stack([np.repeat(rng.normal(size=N // 3), 3), np.full(N, 7.0)])
    gp = IterativeGP(noise=0.1, num_steps=5).fit(X, np.sin(X[:, 0]))
    assert np.isfinite(gp.predict(X[:7])).all()
    flat = IterativeGP(noise=0.1, num_steps=5).fit(X, np.full(N, 2.5))
    np.testing.assert_allclose(flat.predict(X[:7]).mean, 2.5)


@pytest.mark.slow
def test_a_fit_changes_neither_the_process_nor_the_data(data):
    X, y = data
    before = X.copy(), y.copy()
    gp = IterativeGP(KERNEL, 0.2, optimise=False)
    gp.fit(X, y)
    for old, new in zip(before, (X, y), strict=True):
        np.testing.assert_array_equal(old, new)
    assert eqx.tree_equal(gp.kernel, KERNEL)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "warm_start"), [(Standard(64), False), (Pathwise(), True)])
def test_a_search_in_single_precision_ends_where_one_in_double_does(estimator, warm_start, data):
    X, y = data
    new = X[:7] + 0.3
    single = IterativeGP(
        solver=CG, estimator=estimator, num_steps=30, precision="float32", warm_start=warm_start
    )
    fits = fit("cg"), single.fit(X, y)
    (mean, variance), (single_mean, single_variance) = (each.predict(new) for each in fits)
    # The probes of the two precisions are different random numbers, so the searches differ by their
    # noise.
    assert np.abs(single_mean - mean).max() < 0.2 * np.sqrt(variance.max())
    np.testing.assert_allclose(single_variance, variance, rtol=0.3)
    # What is conditioned on is solved in double precision whatever the search was.
    assert fits[1].info["residual"] < 1e-7
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(fits[1].kernel))


@pytest.mark.slow
def test_single_precision_keeps_the_digits_of_inputs_far_from_zero(data):
    """As years and coordinates are: the search ended at another lengthscale, with a noise of nearly
    one."""
    X, y = data
    gp = IterativeGP(
        KERNEL, 0.2, solver=CG, estimator=Standard(16), num_steps=5, precision="float32"
    )
    near, far = gp.fit(X, y), gp.fit(X + 2.0**26, y)
    np.testing.assert_allclose(far.noise, near.noise, rtol=1e-3)
    np.testing.assert_allclose(
        far.predict(X[:5] + 2.0**26).mean, near.predict(X[:5]).mean, rtol=1e-3
    )


@pytest.mark.slow
def test_a_fit_that_ends_before_its_tolerance_says_so(data):
    X, y = data
    few = ConjugateGradients(1e-8, 2, 0)
    with pytest.warns(
        UserWarning,
        match=r"expected solves to a residual of 1e-08, got budget at .*\. Mean and samples",
    ):
        gp = IterativeGP(KERNEL, 1e-4, optimise=False, solver=few, estimator=Pathwise(16)).fit(X, y)
    assert gp.info["residual"] > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "cg"])
def test_the_units_of_the_inputs_do_not_matter(name, data):
    X, y = data
    units = np.array([1.0, 1e6])
    fits = fit(name), IterativeGP(solver=SOLVERS[name], num_steps=30).fit(X * units, y)
    lengthscales = [each.kernel.kernel.lengthscale for each in fits]
    np.testing.assert_allclose(lengthscales[1] / units, lengthscales[0], rtol=1e-2)
    np.testing.assert_allclose(fits[1].noise, fits[0].noise, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [200, 2])
def test_an_exact_variance_is_exact_or_too_large_and_says_so(budget, data):
    X, y = data
    new = X[:7] + 0.1
    gp = IterativeGP(KERNEL, 1e-3, optimise=False, solver=Cholesky(), estimator=Pathwise(16)).fit(
        X, y
    )
    gp = dataclasses.replace(gp, solver=ConjugateGradients(1e-2, budget, 20), factor=None)
    cross, H = np.asarray(gram(KERNEL, new, X)), np.asarray(gram(KERNEL, X)) + 1e-3 * np.eye(N)
    exact = y.var() * (1.3 - np.sum(cross * np.linalg.solve(H, cross.T).T, axis=1))
    with nullcontext() if budget > 2 else pytest.warns(UserWarning, match="They are too large"):
        variance = gp.predict(new, noise=False, exact_variance=True).variance
    assert (variance > exact * (1 - 1e-6)).all()
    if budget > 2:
        np.testing.assert_allclose(variance, exact, rtol=1e-3)


def test_a_covariance_that_no_small_noise_repairs_is_refused():
    X = np.linspace(0, 1, 2 * N).reshape(N, 2)
    with pytest.raises(ValueError, match="positive definite covariance"):
        IterativeGP(Polynomial(2), 1e-30, optimise=False).fit(X, X[:, 0])


def test_bad_input_says_where_and_how(data):
    X, y = data
    gp = IterativeGP(Polynomial(2), 0.2, optimise=False)
    with pytest.raises(ValueError, match=r"IterativeGP.fit.*1 rows that are not: 3"):
        gp.fit(np.where(np.arange(N)[:, None] == 3, np.nan, X), y)
    with pytest.raises(ValueError, match=r"finite values of `y`"):
        gp.fit(X, np.where(np.arange(N) == 5, np.inf, y))
    with pytest.raises(ValueError, match="at least two rows"):
        gp.fit(X[:1], y[:1])
    with pytest.raises(ValueError, match=r"FittedIterativeGP.predict.*with 2 columns"):
        gp.fit(X, y).predict(X[:, :1])
    with pytest.raises(TypeError, match="real numeric"):
        gp.fit(X, np.array(["a"] * N))
    with pytest.raises(ValueError, match="`noise`, a number in"):
        IterativeGP(noise=0)
    with pytest.raises(ValueError, match="`num_steps` of at least 1"):
        IterativeGP(num_steps=0)
    with pytest.raises(ValueError, match="`precision` float32 or float64, got 'half'"):
        IterativeGP(precision="half")
    with pytest.raises(ValueError, match="`num_probes` of at least 1"):
        Standard(0)
    with pytest.raises(ValueError, match="`size` of at least 1"):
        SubsetStart(size=0)


@pytest.mark.slow
def test_keys_of_any_kind_are_taken(data):
    X, y, *_ = data
    fitted = IterativeGP(optimise=False).fit(X, y, key=jax.random.key(0, impl="rbg"))
    np.testing.assert_array_equal(fitted.sample(X[:3]), fitted.sample(X[:3]))
