"""What is reported: statuses, fall-back, scale, folds, and that a broken estimator is caught."""

from collections.abc import Callable
from functools import cache
from zlib import crc32

import numpy as np
import pytest
from chain_cases import ar1
from control_cases import METHODS, estimate, gaussian_trace
from scipy.stats import chi2

import mcmcpost.control
from mcmcpost.control import (
    AbstractControlVariate,
    Auto,
    Estimate,
    FoldFit,
    PlainMean,
    Problem,
    SemiExact,
    ZeroVariance,
    standard_coordinates,
)
from mcmcpost.control.features.families import exponents_of_degree, polynomial_basis
from mcmcpost.control.method import no_control
from mcmcpost.control.problem import draw_folds
from mcmcpost.core.errors import Status
from mcmcpost.scores import check_scores
from mcmcpost.stein import SquaredExponential
from mcmcpost.trace import Trace, make_trace

TRUTH = np.array([np.exp(-0.5 * 1.5**2), np.exp(0.125)])

SHAPE = (2, 128, 2)
"""Of most traces here: programs are compiled once per shape, and the kernels of a method take
seconds."""


COSTLY = ("auto", "trained", "cf", "cf_cg")
EVERY = {
    name: pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in METHODS
}
"""Every method; those that search their hyper-parameters, train or iterate take seconds to
compile."""


def hard(x: np.ndarray) -> np.ndarray:
    """Two integrands that no polynomial reproduces; expectations `TRUTH` under a standard
    normal."""
    return np.stack([np.cos(1.5 * x[..., 0]), np.exp(0.5 * x[..., 1])], axis=-1)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return gaussian_trace(np.random.default_rng(crc32(b"test_estimate.py")), SHAPE)


@pytest.fixture(scope="module")
def solved(trace: Trace) -> Callable[[str], Estimate]:
    """Estimate the hard integrands on `trace` by the method of that name, once for all tests."""
    return cache(lambda name: estimate(trace, hard(trace.draws), METHODS[name]))


def subclasses(cls: type) -> set[type]:
    return {cls} | {c for sub in cls.__subclasses__() for c in subclasses(sub)}


def test_every_method_is_registered():
    concrete = {
        c for c in subclasses(AbstractControlVariate) if c.__module__.startswith("mcmcpost.")
    }
    assert concrete - {AbstractControlVariate} == {type(method) for method in METHODS.values()}
    public = {*mcmcpost.control.__all__, *mcmcpost.tasks.__all__}
    assert all(c.__name__ in public for c in concrete)


@pytest.mark.parametrize("name", EVERY.values())
def test_every_method_is_near_the_truth_and_never_worse_than_plain_by_its_own_estimate(
    solved, name
):
    result = solved(name)
    assert (np.abs(result.mean - TRUTH) < 4.5 * result.mcse).all()
    assert (np.abs(result.mean_crossfit - TRUTH) < 4.5 * result.mcse).all()
    assert (result.mcse <= result.mcse_plain * (1 + 1e-12)).all()
    np.testing.assert_allclose(result.gain, (result.mcse_plain / result.mcse) ** 2)
    np.testing.assert_allclose(result.residuals.mean(axis=(0, 1)), result.mean_crossfit, rtol=1e-9)
    np.testing.assert_allclose(np.diag(result.covariance), result.mcse**2)


def test_blocks_of_rows_and_columns_change_nothing(monkeypatch):
    whole = gaussian_trace(np.random.default_rng(1), (3, 100, 3))
    # repeated states, and a number of rows that no block divides
    x = np.repeat(whole.draws, 2, axis=1)
    trace = make_trace(x, np.repeat(whole.scores, 2, axis=1))
    values = np.concatenate([np.sin(x), np.exp(x / 2)], axis=-1)
    found, check = estimate(trace, values, METHODS["zv2"]), check_scores(trace)
    monkeypatch.setattr("mcmcpost.core.arrays.ENTRIES", 70)
    in_blocks, check_in_blocks = estimate(trace, values, METHODS["zv2"]), check_scores(trace)
    for name in ("mean", "mcse", "sd", "gain", "residuals", "covariance"):
        np.testing.assert_allclose(
            getattr(in_blocks, name), getattr(found, name), rtol=1e-9, atol=1e-13, err_msg=name
        )
    assert in_blocks.status == found.status
    np.testing.assert_allclose(check_in_blocks.z_product, check.z_product, rtol=1e-9)
    np.testing.assert_allclose(check_in_blocks.z_mean, check.z_mean, rtol=1e-9)


def test_an_estimate_is_printed_as_a_short_table(trace):
    values = np.repeat(trace.draws[..., :1], 14, axis=-1) ** np.arange(1, 15)
    plain = estimate(trace, values, PlainMean())
    lines = repr(plain).splitlines()
    assert lines[0] == "Estimate of 14 quantities"
    assert lines[1].split() == ["mean", "mcse", "gain", "status"]
    assert lines[2].split()[::3] == [plain.names[0], "1.00"]
    assert (len(lines), lines[-1]) == (15, "…")
    assert len({len(line.rpartition("  ")[0]) for line in lines[1:-1]}) == 1
    assert repr(plain.select(np.arange(1, 13))).splitlines()[-1] != "…"


@pytest.mark.parametrize("name", ["zv2", "cf_given", pytest.param("auto", marks=pytest.mark.slow)])
def test_the_units_of_draws_and_integrands_do_not_matter(trace, solved, name):
    scale = np.array([1e-4, 1e5])
    moved = make_trace(trace.draws * scale + 7.0, trace.scores / scale)
    plain = solved(name)
    scaled = estimate(moved, 1e6 * hard(trace.draws) - 3.0, METHODS[name])
    np.testing.assert_allclose((scaled.mean + 3.0) / 1e6, plain.mean, rtol=1e-5)
    np.testing.assert_allclose(scaled.mcse / 1e6, plain.mcse, rtol=1e-3)


@pytest.mark.parametrize("name", [marked for name, marked in EVERY.items() if name != "trained"])
def test_an_estimate_does_not_depend_on_what_else_is_asked_for(trace, solved, name):
    x = trace.draws
    rough = np.stack(
        [x[..., 0] > 0.5, np.abs(x[..., 1]), np.sin(9 * x[..., 0]), x[..., 0] ** 3], axis=-1
    )
    alone, among = (
        solved(name),
        estimate(trace, np.concatenate([rough, hard(x)], axis=-1), METHODS[name]),
    )
    assert np.all(np.abs(among.mean[4:] - alone.mean) <= 0.1 * alone.mcse)
    np.testing.assert_allclose(among.mcse[4:], alone.mcse, rtol=0.1)


@pytest.mark.parametrize("name", EVERY.values())
def test_nan_in_gives_nan_out_and_leaves_the_others_alone(trace, solved, name):
    values = np.concatenate(
        [hard(trace.draws), np.full((*SHAPE[:2], 1), 2.5), hard(trace.draws)[..., :1]], axis=-1
    )
    values[1, 7, 3] = np.nan
    result = estimate(trace, values, METHODS[name])
    np.testing.assert_allclose(result.mean[:2], solved(name).mean, rtol=1e-9)
    assert result.status[2:] == (Status.CONSTANT, Status.UNDEFINED)
    assert (result.mean[2], result.mcse[2]) == (2.5, 0.0)
    for field in (
        result.mean,
        result.mcse,
        result.gain,
        result.mean_plain,
        result.sd,
        result.mean_crossfit,
    ):
        assert np.isnan(field[3])


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 3, 2), (1, 6, 2)])
@pytest.mark.parametrize("name", EVERY.values())
def test_too_few_draws_are_plain_and_say_so(rng, shape, name):
    trace = gaussian_trace(rng, shape)
    result = estimate(trace, trace.draws**2, METHODS[name])
    np.testing.assert_allclose(result.mean, (trace.draws**2).mean(axis=(0, 1)))
    assert set(result.status) <= {Status.TOO_FEW_DRAWS, Status.PLAIN}


def test_draws_that_never_move_know_nothing_of_their_error():
    trace = make_trace(np.ones((2, 50, 2)), -np.ones((2, 50, 2)))
    result = estimate(trace, trace.draws, Auto())
    assert set(result.status) == {Status.TOO_FEW_DRAWS}
    assert np.isnan(result.mcse).all()


@pytest.mark.slow
def test_an_integrand_without_gain_is_plain(trace, rng):
    noise = rng.normal(size=SHAPE)
    for method in (Auto(), ZeroVariance(2)):
        result = estimate(trace, noise, method)
        assert result.status == (Status.PLAIN,) * 2
        np.testing.assert_array_equal(result.mean, result.mean_plain)


@pytest.mark.slow
def test_auto_prefers_the_simplest_and_finds_the_kernel(trace):
    x = trace.draws
    result = estimate(
        trace, np.stack([x[..., 0], np.sin(2 * x[..., 0]) * x[..., 1] ** 2], axis=-1), Auto()
    )
    assert result.method[0] == "ZeroVariance(degree=1)"
    assert result.method[1].startswith(("SemiExact", "ControlFunctional"))


@pytest.mark.parametrize(
    ("chains", "draws", "repeats", "expected"),
    [
        (4, 1000, 1, 8),
        (1, 1000, 1, 8),
        (1, 60, 10, 2),
        (8, 10, 1, 8),
        (30, 10, 1, 16),
        (3, 120, 10, 6),
        (2, 120, 20, 2),
    ],
)
def test_folds_are_contiguous_blocks_of_several_autocorrelation_times_within_chains(
    chains, draws, repeats, expected, rng
):
    x = np.repeat(rng.normal(size=(chains, draws // repeats, 2)), repeats, axis=1)
    fold = draw_folds(x).reshape(chains, draws)
    assert len(np.unique(fold)) == expected
    assert (np.diff(fold, axis=1) >= 0).all()
    sizes = np.bincount(fold.ravel())
    assert sizes.max() <= 2 * sizes.min() + draws % expected


def test_full_whitening_needs_five_draws_a_coordinate(rng):
    mixing = np.tril(rng.normal(size=(4, 4))) + 2 * np.eye(4)
    many = rng.normal(size=(2, 500, 4)) @ mixing.T + 3.0
    mean, lower = standard_coordinates(many)
    z = np.linalg.solve(lower, (many.reshape(-1, 4) - mean).T)
    np.testing.assert_allclose(np.cov(z, bias=True), np.eye(4), atol=1e-9)
    few = standard_coordinates(many[:, :9])[1]
    np.testing.assert_array_equal(few, np.diag(np.diag(few)))
    known = standard_coordinates(many, (np.zeros(4), 2.0))[1]
    np.testing.assert_array_equal(known, 2 * np.eye(4))
    with pytest.raises(ValueError, match="positive sd"):
        standard_coordinates(many, (0.0, 0.0))


class InSample(AbstractControlVariate):
    """A mutant: fits a rich basis on all draws and calls its in-sample residuals the error."""

    @property
    def label(self) -> str:
        return "InSample()"

    def crossfit(self, problem: Problem) -> FoldFit:
        basis = polynomial_basis(problem, exponents_of_degree(problem.draws.shape[1], 8))
        root = np.sqrt(problem.counts)[:, None]
        theta = np.linalg.lstsq(basis * root, problem.values * root)[0]
        fit = no_control(problem, Status.CONTROLLED, self.label)
        return fit._replace(mean=theta[0], control=basis[:, 1:] @ theta[1:])


class WrongSign(AbstractControlVariate):
    """A mutant: fits with the negated score."""

    @property
    def label(self) -> str:
        return "WrongSign()"

    def crossfit(self, problem: Problem) -> FoldFit:
        return ZeroVariance(3).crossfit(problem._replace(scores=-problem.scores))


REPLICATIONS = 200


def mean_square_z(seed: int, method: AbstractControlVariate, shrink: float = 1.0) -> np.ndarray:
    """Return mean z² of the hard integrands over independent AR(1) traces."""
    rng = np.random.default_rng(seed)
    z = []
    for _ in range(REPLICATIONS):
        x = ar1(rng, SHAPE, 0.5)
        result = estimate(make_trace(x, -x), hard(x), method)
        z.append((result.mean - TRUTH) / (shrink * result.mcse))
    return (np.array(z) ** 2).mean(axis=0)


BAND = chi2.isf(1e-5, REPLICATIONS) / REPLICATIONS


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["plain", "zv2", "zv3_ridge", "cf_given", "semi_exact"])
def test_errors_are_calibrated_under_autocorrelation(seed, name):
    assert (mean_square_z(seed, METHODS[name]) < BAND).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "shrink"),
    [(PlainMean(), 0.7), (InSample(), 1.0), (WrongSign(), 1.0)],
    ids=["error", "in_sample", "sign"],
)
def test_the_calibration_check_catches_broken_estimators(seed, mutant, shrink):
    assert (mean_square_z(seed, mutant, shrink) > BAND).any()


def test_a_method_is_a_frozen_choice():
    method = ZeroVariance(2)
    with pytest.raises(AttributeError):
        method.degree = 3


@pytest.mark.slow
def test_a_residual_at_rounding_is_not_exact_while_the_constant_is_in_doubt(rng):
    """In one dimension a kernel interpolates every draw and the constant is still only as good as
    its tails."""
    trace = gaussian_trace(rng, (4, 60, 1))
    values = np.exp(0.3 * trace.draws)
    for nugget in (1e-12, 1e-9, 1e-6):
        result = estimate(trace, values, SemiExact(2, SquaredExponential(3.0), nugget))
        assert abs(result.mean[0] - np.exp(0.045)) < 4.5 * result.mcse[0]


@pytest.mark.parametrize("distinct", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["plain", "zv1", "cf_given", "vector_valued"])
def test_folds_that_hold_only_repeats_are_dropped(distinct, name, rng):
    """A chain that stands still at its end leaves folds without a state of their own."""
    draws = rng.normal(size=(1, 6, 1))
    draws[:, distinct:] = draws[:, distinct - 1 : distinct]
    found = estimate(make_trace(draws, -draws), draws, METHODS[name], folds=6)
    assert np.isfinite(found.mean).all()
    assert set(found.status) <= {
        Status.PLAIN,
        Status.TOO_FEW_DRAWS,
        Status.CONTROLLED,
        Status.EXACT,
    }


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_controlled_mean_that_contradicts_the_plain_one_is_not_published(rng, shift):
    """Scores of N(3, 1) at draws of N(0, 1) would make the mean of x exactly three."""
    x = rng.normal(size=(4, 200, 1))
    result = estimate(make_trace(x, shift - x), x, ZeroVariance(1))
    assert result.status == ((Status.BAD_SCORES,) if shift else (Status.EXACT,))
    np.testing.assert_allclose(result.mean, result.mean_plain if shift else 0.0, atol=1e-12)


@pytest.mark.slow
def test_a_plain_mean_of_few_draws_that_missed_a_tail_contradicts_nothing(rng):
    x = rng.normal(size=(60, 1, 40, 1))
    found = [estimate(make_trace(draws, -draws), draws**6, ZeroVariance(6)) for draws in x]
    assert max(abs(each.mean_plain[0] - 15.0) / each.mcse_plain[0] for each in found) > 20
    assert Status.BAD_SCORES not in {each.status[0] for each in found}
    exact = [each.mean[0] for each in found if each.status[0] is Status.EXACT]
    assert len(exact) > 40
    np.testing.assert_allclose(exact, 15.0, rtol=1e-6)


def test_a_plain_mean_of_few_effective_draws_without_a_tail_contradicts(rng):
    """A Gaussian has no tail that 40 effective draws could have missed by three standard
    deviations."""
    x = ar1(rng, (4, 100, 1), 0.8)
    result = estimate(make_trace(x, 3 - x), x, ZeroVariance(1))
    assert 25 < (result.sd[0] / result.mcse_plain[0]) ** 2 < 100
    assert result.status == (Status.BAD_SCORES,)
    np.testing.assert_array_equal(result.mean, result.mean_plain)
