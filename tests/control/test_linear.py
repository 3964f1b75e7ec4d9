"""The linear engine: sums that add, folds left out of them, rounding, and the choice among
families."""

import numpy as np
import pytest
from chain_cases import ar1
from control_cases import estimate, gaussian_trace

import mcmcpost.control.linear
from mcmcpost.control import Auto, Subsets, ZeroVariance
from mcmcpost.control.features.families import controls_of, polynomials
from mcmcpost.control.linear import LinearFits, Solver, Subsystem, linear_system, nested_fits
from mcmcpost.control.moments import Moments
from mcmcpost.control.problem import make_problem
from mcmcpost.core.errors import InputError, Status
from mcmcpost.trace import make_trace


def test_moments_are_those_of_any_parts_added(rng):
    x, f = rng.normal(size=(200, 4)), rng.normal(size=(200, 3))
    labels, counts = rng.integers(-1, 5, size=200), rng.integers(1, 4, size=200).astype(float)
    whole = Moments.of(x, f, labels, counts, 5)
    cuts = [slice(0, 1), slice(1, 70), slice(70, 70), slice(70, 200)]
    parts = [Moments.of(x[cut], f[cut], labels[cut], counts[cut], 5) for cut in cuts]
    for found, expected in zip(sum(parts[1:], parts[0]), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    own = labels == 2
    np.testing.assert_allclose(whole.gram[2], (x[own] * counts[own, None]).T @ x[own], rtol=1e-12)
    theta = rng.normal(size=(4, 3))
    less = Moments.of(x, f - x @ theta, labels, counts, 5)
    for found, expected in zip(whole.less(theta), less, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    smaller = Moments.of(x[:, :2], f + x[:, 2:] @ theta[2:], labels, counts, 5)
    for found, expected in zip(whole.without_last(2, theta[2:]), smaller, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "ridge"), [((4, 30, 2), 0.0), ((4, 30, 2), 0.7), ((4, 6, 6), 0.7)]
)
def test_folds_left_out_of_the_sums_are_fits_without_them(rng, shape, ridge):
    """Of two coordinates, and of six with more controls than draws, which a ridge alone
    determines."""
    x = np.repeat(rng.normal(size=shape), 3, axis=1)  # states that are repeated count as often
    problem = make_problem(make_trace(x, -x), np.cos(x[..., :1]) + x[..., 1:2])
    families = polynomials(shape[2], 2)
    design = controls_of(families, problem.draws, problem.scores) * (problem.counts > 0)[:, None]
    design[:, 1:] /= np.sqrt(problem.counts @ design[:, 1:] ** 2)
    penalty = ridge * np.diag(np.arange(design.shape[1]) > 0)

    def refit(rows: np.ndarray) -> np.ndarray:
        w = problem.counts[rows, None]
        gram, cross = (
            design[rows].T @ (w * design[rows]),
            design[rows].T @ (w * problem.values[rows]),
        )
        return np.linalg.solve(gram + penalty, cross)

    system = linear_system(problem, families)
    part = Subsystem.of(system, size := system.sizes[-1], np.arange(1))
    fit = Solver(system, ridge, size, size).fit(part, halves=True)
    found = LinearFits(
        problem, system, ((np.arange(1), fit),), (Status.CONTROLLED,), ("m",), {}, np.zeros(1)
    ).at_states()
    np.testing.assert_allclose(found.mean, refit(np.arange(problem.num_states))[0], rtol=1e-8)
    residual = problem.values - found.control
    for k, (out, train) in enumerate(problem.folds.rows()):
        theta = refit(train)
        np.testing.assert_allclose(found.refits.without_fold[k], theta[0], rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(
            found.control[out], design[out][:, 1:] @ theta[1:], rtol=1e-6, atol=1e-9
        )
    for mean, half in zip(
        found.refits.halves, Subsets.of(problem.folds.num_folds).halves, strict=True
    ):
        np.testing.assert_allclose(
            mean, refit(np.flatnonzero(half[problem.folds.labels]))[0], rtol=1e-7, atol=1e-10
        )
    crossfit, variance = part.held_out(fit)
    weights = problem.counts / problem.counts.sum()
    np.testing.assert_allclose(crossfit, weights @ residual, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(variance, weights @ (residual - weights @ residual) ** 2, rtol=1e-8)


def test_leading_families_are_fits_of_their_own(rng):
    trace = gaussian_trace(rng, (4, 100, 3))
    values = np.exp(0.4 * trace.draws[..., :2])
    problem = make_problem(trace, values)
    nested = linear_system(problem, polynomials(3, 3))
    largest = Solver(nested, 1e-3, nested.sizes[-1], nested.sizes[-1])
    for degree, size in enumerate(nested.sizes, start=1):
        alone = linear_system(problem, polynomials(3, degree))
        a = largest.fit(Subsystem.of(nested, size, np.arange(2)), halves=True)
        b = Solver(alone, 1e-3, size, size).fit(
            Subsystem.of(alone, size, np.arange(2)), halves=True
        )
        for one, two in zip((a.mean, *a.refits), (b.mean, *b.refits), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


def test_the_best_of_the_first_families_is_what_they_give_alone(rng):
    """Also where the basis is that of other quantities, and has a family more."""
    trace = gaussian_trace(rng, (4, 100, 3))
    x = trace.draws
    other, values = np.sin(x[..., :1]), np.stack([np.exp(0.4 * x[..., 0]), x[..., 1] ** 2], -1)
    problem, labels = make_problem(trace, values), ["first", "second", "third"]
    shared = linear_system(make_problem(trace, other), polynomials(3, 3)).of_other_values(problem)
    nested = nested_fits(shared, labels, (1, 2), problem)
    for degree, found in enumerate(nested, start=1):
        alone = linear_system(problem, polynomials(3, degree))
        (expected,) = nested_fits(alone, labels[:degree], (degree,), problem)
        assert found.method == expected.method
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-12)
    assert nested[0].method != nested[1].method
    assert max(len(solver.penalty) for solver in shared.solvers.values()) == shared.sizes[1]


@pytest.mark.parametrize("seed", range(4))
def test_of_many_dependent_controls_the_right_ones_are_kept(seed):
    """Sums, neighbours and quadratics of an AR(1) normal span its 230 polynomials and no direction
    of rounding more."""
    d, rng = 20, np.random.default_rng(seed)
    sd = np.geomspace(0.1, 10.0, d)
    factor = (
        np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))))
        * sd[:, None]
    )
    z = rng.normal(size=(4, 1_000, d))
    scores = -np.linalg.solve(factor.T, z.reshape(-1, d).T).T.reshape(z.shape)
    draws = 1.0 + z @ factor.T
    found = estimate(
        make_trace(draws, scores, [f"x[{i}]" for i in range(d)]), draws**2, Auto(kernel=False)
    )
    np.testing.assert_allclose(found.mean, 1.0 + sd**2, rtol=1e-10)
    assert set(found.status) == {Status.EXACT}
    assert found.info["tried"][0]["num_features"][-1] == d * (d + 3) // 2


@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("blocks", [False, True])
def test_rounding_invents_no_gain(rng, size, blocks, monkeypatch):
    """A residual of known size beside an exact quadratic: it is what the error shows, and no
    less."""
    if blocks:  # sums alone, of many blocks
        monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 0)
        monkeypatch.setattr("mcmcpost.core.arrays.ENTRIES", 700)
    trace = gaussian_trace(rng, (4, 250, 3))
    x = trace.draws
    noise = rng.normal(size=x.shape[:2])
    values = (x[..., 0] * x[..., 1] + x[..., 2] + size * noise)[..., None]
    result = estimate(trace, values, ZeroVariance(2))
    if size > 1e-10:
        expected = size * noise.std() / np.sqrt(noise.size)
        assert 0.7 < result.mcse[0] / expected < 1.6
        assert result.status == (Status.CONTROLLED,)
        assert abs(result.mean[0]) < 5 * expected
    else:
        assert result.status == (Status.EXACT,)
        assert abs(result.mean[0]) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("method", [ZeroVariance(2), Auto()])
def test_badly_centred_and_scaled_parameters_lose_nothing(rng, method):
    x = ar1(rng, (4, 250, 2), 0.3)
    plain = estimate(make_trace(x, -x), np.exp(0.3 * x[..., :1]), method)
    scale, shift = np.array([1e-6, 1e4]), np.array([1e6, -1e6])
    scale[0] = 1.0  # 1e6 ± 1
    moved = make_trace(shift + scale * x, -x / scale)
    result = estimate(moved, np.exp(0.3 * x[..., :1]), method)
    np.testing.assert_allclose(result.mean, plain.mean, rtol=1e-7)
    np.testing.assert_allclose(result.mcse, plain.mcse, rtol=0.05)


def test_dependent_controls_are_dropped_in_order(rng):
    x = rng.normal(size=(4, 60, 2))
    x[..., 1] = np.where(
        rng.uniform(size=x.shape[:2]) < 0.5, -1.0, 1.0
    )  # a constant square: its control is the score's
    problem = make_problem(make_trace(x, -x), x[..., :1] ** 3)
    system = linear_system(problem, polynomials(2, 3))
    assert system.kept[:2].all()
    assert not system.kept.all()
    assert system.sizes[-1] == 1 + system.kept.sum()


def test_auto_fits_no_kernel_where_a_linear_fit_is_exact(rng, monkeypatch):
    monkeypatch.setattr(
        "mcmcpost.control.auto.crossfit_kernel", lambda *_: pytest.fail("a kernel was tried")
    )
    monkeypatch.setattr(
        "mcmcpost.control.auto._crossfits", lambda *_: pytest.fail("a kernel was fitted")
    )
    trace = gaussian_trace(rng, (4, 100, 5))
    x = trace.draws
    result = estimate(trace, np.stack([x[..., 0], x[..., 1] * x[..., 2]], axis=-1), Auto())
    assert result.status == (Status.EXACT,) * 2
    np.testing.assert_allclose(result.mean, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("d", "draws", "degrees", "fields"),
    [
        (3, 100, 2, 1),
        (20, 100, 2, 0),
        (30, 20, 1, 0),
        (70, 20, 0, 0),
        (40, 400, 2, 0),
        (60, 400, 1, 0),
    ],
)
def test_families_take_part_as_far_as_draws_allow(rng, d, draws, degrees, fields):
    problem = make_problem(gaussian_trace(rng, (4, draws, d)), rng.normal(size=(4, draws, 1)))
    unnamed = tuple("x" * (i + 1) for i in range(d))
    families, labels = Auto(kernel=False, max_degree=2).families(
        problem._replace(names=unnamed), problem.num_train
    )
    expected = [f"ZeroVariance(degree={degree})" for degree in range(1, degrees + 1)]
    assert labels == expected + [
        f"VectorFields(degree={degree})" for degree in range(1, fields + 1)
    ]
    assert len(families) == degrees + fields


def test_scores_of_more_coordinates_than_draws_are_tried_by_ridge(rng):
    trace = gaussian_trace(rng, (4, 15, 150))
    found = estimate(trace, trace.draws[..., :1] + trace.draws[..., 1:2], Auto())
    assert [tried["method"] for tried in found.info["tried"]] == ["ZeroVariance(degree=1)"]
    assert found.info["tried"][0]["penalty"] == "Ridge"
    assert abs(found.mean[0]) < 4 * found.mcse[0]


def test_more_controls_than_states_are_not_summed(rng, monkeypatch):
    """Sums of 80,600 controls at 80 states took 400 GB, where the controls have 0.05."""
    x = rng.normal(size=(4, 5, 6))
    trace, f = make_trace(x, -x), np.cos(x[..., :1])
    expected = estimate(trace, f, ZeroVariance(2))
    monkeypatch.setattr(mcmcpost.control.linear, "is_large", lambda _: True)
    monkeypatch.setattr(mcmcpost.control.linear, "_system_from_sums", None)
    found = estimate(trace, f, ZeroVariance(2))
    np.testing.assert_array_equal([found.mean, found.mcse], [expected.mean, expected.mcse])


def test_controls_that_do_not_fit_into_memory_are_refused_before_the_work(rng, monkeypatch):
    x = rng.normal(size=(4, 50, 6))
    monkeypatch.setattr(mcmcpost.control.linear, "memory_of_machine", lambda: 1e4)
    with pytest.raises(InputError, match=r"27 features at 200 states.*lower degree"):
        estimate(make_trace(x, -x), x[..., :1], ZeroVariance(2))
