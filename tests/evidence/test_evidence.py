"""The log evidence of a ladder against closed forms, pymbar, and itself."""

import re
import warnings

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from ladder_cases import RUNGS, GaussianPath, gaussian_path, short_ladder
from matplotlib import pyplot
from scipy.stats import chi2

import mcmcpost as mp
from mcmcpost.control import Options, PlainMean, ZeroVariance
from mcmcpost.core.errors import Status
from mcmcpost.evidence import (
    Evidence,
    EvidenceEstimate,
    Ladder,
    check_ladder,
    check_options,
    check_temperatures,
    compare_models,
    corrected_rule,
    disagreements,
    discretisation_errors,
    estimate_log_evidence,
    examine_rungs,
    geometric_ladder,
    ladder_barrier,
    make_ladder,
    pooled_path,
    power_ladder,
    simpson_rule,
    trapezoid_rule,
)
from mcmcpost.evidence.mbar import (
    adjacent_overlap,
    asymptotic_covariance,
    mbar_estimate,
    solve_free_energies,
)
from mcmcpost.tasks import TaskREML, VectorValued


def evidence(
    ladder: Ladder,
    method: object = None,
    *,
    allow_bad_scores: bool = False,
    degree: int = 2,
    **path: object,
) -> Evidence:
    health, options = examine_rungs(ladder), Options(allow_bad_scores=allow_bad_scores)
    check = check_ladder(ladder, health)
    return estimate_log_evidence(ladder, health, check, method, options, degree=degree, **path)


PATH = gaussian_path(2)
LOG_EVIDENCE = float(PATH.log_evidence(np.ones(1))[0])


def usual(rng: np.random.Generator) -> Ladder:
    """Return a ladder of the shape that most tests use, so that they share compiled programs."""
    return PATH.ladder(rng, 100, RUNGS)


def cubic_path(rng: np.random.Generator, num_draws: int) -> tuple[Ladder, float]:
    """Return iid draws of a path that no polynomial controls exactly, and its log evidence."""
    grid = np.linspace(-8.0, 8.0, 20_001)
    log_likelihood = lambda x: -2.0 * (np.sin(1.5 * x) - 0.5 * x) ** 2 + np.cos(x)  # noqa: E731
    slope = lambda x: -4.0 * (np.sin(1.5 * x) - 0.5 * x) * (1.5 * np.cos(1.5 * x) - 0.5) - np.sin(x)  # noqa: E731
    density = np.exp(RUNGS[:, None] * log_likelihood(grid) - 0.5 * grid**2)
    mass = np.concatenate(
        [np.zeros((len(RUNGS), 1)), np.cumsum(density[:, 1:] + density[:, :-1], axis=1)], axis=1
    )
    x = np.stack([np.interp(rng.random(num_draws), row / row[-1], grid) for row in mass], axis=1)
    truth = float(np.log(mass[-1, -1] / mass[0, -1]))
    arrays = (log_likelihood(x), slope(x)[..., None], -x[..., None])
    return make_ladder(RUNGS, x[None, ..., None], *(a[None] for a in arrays)), truth


@pytest.mark.slow
def test_gaussian_path_is_exact(rng: np.random.Generator) -> None:
    found = evidence(usual(rng), ZeroVariance(2))
    mu, v = PATH.log_likelihood_moments(RUNGS)
    np.testing.assert_allclose(found.rungs.mean, mu, rtol=1e-7, atol=1e-7)
    assert found.method == "pooled"
    assert found.status is Status.CONTROLLED
    assert abs(found.value - LOG_EVIDENCE) < 1e-7
    assert found.mcse < 1e-7
    rule = {e.method: e for e in found.estimates}["corrected"]
    assert abs(rule.value - corrected_rule(RUNGS).integrate(mu, v)) < max(4.5 * rule.mcse, 1e-6)
    assert not disagreements(found)


@pytest.mark.slow
@pytest.mark.parametrize("constant", [1e3, 3e4, 1e7, 1e9])
def test_a_constant_moves_an_exact_evidence_to_rounding_and_no_error_is_below(
    constant: float, rng: np.random.Generator
) -> None:
    ladder = usual(rng)
    found = evidence(
        ladder._replace(log_likelihood=ladder.log_likelihood - constant), ZeroVariance(2)
    )
    assert found.method == "pooled"
    assert abs(found.value + constant - LOG_EVIDENCE) < 4.5 * found.mcse < 1e-14 * constant
    assert found.mcse >= np.finfo(float).eps * constant


@pytest.mark.slow
def test_free_energies_of_every_rung_in_fifty_dimensions(rng: np.random.Generator) -> None:
    path = gaussian_path(50)
    found = pooled_path(path.ladder(rng, 200, power_ladder(17, 4)), degree=1)
    values, deleted = found.mixtures.free_energies[0], found.mixtures.free_energies[1:]
    errors = np.sqrt(len(deleted) - 1) * deleted.std(axis=0)
    truth = path.log_evidence(power_ladder(17, 4))
    assert (np.abs(values - truth)[1:] < 4.5 * errors[1:]).all()
    assert abs(found.value - truth[-1]) < 4.5 * np.hypot(found.mcse, found.discretisation_error)


def test_rules_on_exact_means() -> None:
    path = gaussian_path(3)
    truth = path.log_evidence(np.ones(1))[0]
    for size in (9, 17, 33):
        t = power_ladder(size, 4)
        mu, v = path.log_likelihood_moments(t)
        errors = discretisation_errors(t, mu, v)
        for name, rule in (("trapezoid", trapezoid_rule(t)), ("corrected", corrected_rule(t))):
            assert 0.5 < errors[name] / abs(rule.integrate(mu, v) - truth) < 2.0
        assert abs(simpson_rule(t).integrate(mu, v) - truth) < errors["simpson"]


def test_simpson_applies_to_odd_power_ladders_only() -> None:
    assert simpson_rule(power_ladder(8)) is None
    assert simpson_rule(geometric_ladder(9)) is None
    assert simpson_rule(np.array([0.0, 0.5, 1.0])) is not None


@pytest.mark.slow
def test_mbar_agrees_with_pymbar(rng: np.random.Generator) -> None:
    import pymbar

    # pymbar changes the configuration when it is imported
    jax.config.update("jax_enable_x64", True)
    ladder = usual(rng)
    flat, sizes = jnp.asarray(ladder.log_likelihood.reshape(-1)), jnp.full(len(RUNGS), 100.0)
    levels = jnp.asarray(RUNGS)
    found = jax.jit(solve_free_energies)(
        levels, flat, jnp.ones_like(flat), sizes, jnp.zeros(len(RUNGS))
    )
    # pymbar wants the draws of one rung next to each other
    ours = np.asarray(flat)
    order = np.argsort(np.tile(np.arange(len(RUNGS)), 100), kind="stable")
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pymbar's own
        peer = pymbar.MBAR(-RUNGS[:, None] * ours[order][None, :], np.full(len(RUNGS), 100))
        theirs = peer.compute_free_energy_differences()
    assert bool(found.converged)
    np.testing.assert_allclose(found.values, -theirs["Delta_f"][0], atol=1e-7)
    covariance = asymptotic_covariance(levels, flat, sizes, found.values)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), theirs["dDelta_f"][0], atol=1e-6)
    overlap = adjacent_overlap(levels, flat, np.ones_like(flat), sizes, found.values)
    np.testing.assert_allclose(overlap, np.diagonal(peer.compute_overlap()["matrix"], 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("asymptotic", "without", "error"),
    [
        (0.3, (1.0, 1.2), 0.3),
        (0.05, (1.0, 1.2), 0.1),
        (np.nan, (1.0, 1.2), 0.1),
        (0.3, (1.0, np.nan), 0.3),
        (np.nan, (1.0, np.nan), np.nan),
    ],
)
def test_mbar_has_the_larger_of_the_errors_that_are_numbers(
    asymptotic: float,
    without: tuple[float, float],
    error: float,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ladder = usual(rng)
    covariance = jnp.full((len(ladder.temperatures),) * 2, asymptotic**2)
    monkeypatch.setattr("mcmcpost.evidence.mbar.asymptotic_covariance", lambda *_: covariance)
    energies = np.zeros(len(ladder.temperatures))
    found = mbar_estimate(ladder, energies, np.array(without), converged=True)
    np.testing.assert_allclose(found.mcse, error, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_evidence_is_calibrated_and_beats_mbar_on_a_path_that_is_not_polynomial(
    rng: np.random.Generator,
) -> None:
    z: dict[str, list[float]] = {}
    gaps = []
    replications = 40
    for _ in range(replications):
        ladder, truth = cubic_path(rng, 40)
        found = evidence(ladder, ZeroVariance(2), degree=4)
        for estimate in found.estimates:
            error = np.hypot(estimate.mcse, estimate.info.get("discretisation_error", 0.0))
            z.setdefault(estimate.method, []).append((estimate.value - truth) / error)
        gaps.append(
            [abs(e.value - truth) for e in found.estimates if e.method in ("pooled", "MBAR")]
        )
    limit = chi2.isf(1e-5, replications) / replications
    for method in ("pooled", "corrected", "stepping stone", "MBAR"):
        assert np.mean(np.square(z[method])) < limit, method
    # the helper can fail: an error four times too small does
    assert np.mean(np.square(4 * np.array(z["pooled"]))) > limit
    controlled, plain = np.mean(gaps, axis=0)
    assert controlled < 0.5 * plain


@pytest.mark.slow
def test_rungs_without_overlap_fall_back(rng: np.random.Generator) -> None:
    path = GaussianPath(np.array([30.0, 0.0]), 0.1)
    found = evidence(path.ladder(rng, 100, RUNGS), ZeroVariance(2))
    assert found.method == "corrected"
    assert "overlap" in "; ".join(found.complaints)
    assert found.status is Status.CONTROLLED
    assert found.discretisation_error > found.mcse


@pytest.mark.slow
def test_the_number_of_rungs_that_a_complaint_names_does_overlap(rng: np.random.Generator) -> None:
    path = GaussianPath(np.full(10, 3.0), 0.1)
    ladder = path.ladder(rng, 100, power_ladder(6, 5))
    (complaint,) = (
        text for text in evidence(ladder).complaints if text.startswith("no pooled path")
    )
    number = int(re.search(r"sample (\d+) rungs at barrier_ladder\(tree, \1\)", complaint)[1])
    assert number > 6
    better = path.ladder(rng, 100, ladder_barrier(ladder).place(number))
    found = evidence(better)
    assert found.method == "pooled"
    assert found.pooled.info["smallest_overlap"] > 0.1
    assert not found.complaints


@pytest.mark.slow
def test_exchanged_rungs_get_the_error_of_their_sum(rng: np.random.Generator) -> None:
    # every rung the same draws: the errors add up instead of averaging out
    ladder = usual(rng)
    mean, sd = PATH.moments(RUNGS)
    z = rng.normal(size=(1, 100, 1, 2))
    x = mean + sd[:, None] * z
    gap = x - PATH.centre
    values = -0.5 * (gap**2).sum(-1) / 0.25 - np.log(2 * np.pi * 0.25)
    together = make_ladder(RUNGS, x, values, -gap / 0.25, -x)
    errors = [
        {e.method: e.mcse for e in evidence(case, PlainMean(), path="rungs").estimates}["trapezoid"]
        for case in (ladder, together)
    ]
    assert errors[1] > 1.3 * errors[0]


@pytest.mark.slow
def test_vector_valued_rungs(rng: np.random.Generator) -> None:
    path = gaussian_path(1)
    ladder = path.ladder(rng, 30, power_ladder(4, 3))
    tuning = TaskREML(squared_lengthscales=(30.0,), max_steps=5)
    found = evidence(ladder, VectorValued(degree=2, tuning=tuning, guard=False), path="rungs")
    mu, v = path.log_likelihood_moments(ladder.temperatures)
    assert (
        abs(found.value - corrected_rule(ladder.temperatures).integrate(mu, v)) < 4.5 * found.mcse
    )
    assert found.rungs.joint.shape == (8, 8)


@pytest.mark.slow
def test_a_log_likelihood_below_all_bounds_is_zero_density(rng: np.random.Generator) -> None:
    """Prior draws may be anywhere; a chain at a positive temperature may not, and its rung is left
    out."""
    temperatures, *arrays = short_ladder(rng)[0][:5]
    values = []
    for far in (-1e90, -np.inf):
        arrays[1][0, 0, 0] = far
        found = mp.log_evidence(mp.ladder_from_arrays(temperatures, *arrays), "plain", degree=1)
        assert found.info["impossible_prior_draws"] == 1
        values.append(found.value)
    assert np.isfinite(values).all()
    assert values[0] == values[1]
    arrays[1][1, :, 2] = -9e124
    with pytest.warns(
        mp.EvidenceWarning,
        match="rung t = .* has draws of zero likelihood at a positive temperature",
    ):
        found = mp.log_evidence(mp.ladder_from_arrays(temperatures, *arrays), "plain", degree=1)
    assert list(found.used) == [0, 1, 3, 4]


@pytest.mark.slow
def test_impossible_prior_draws(rng: np.random.Generator) -> None:
    # the likelihood is zero below the origin: log Z = log P(x > 0) + log E[exp(-x²/2) | x > 0]
    t = power_ladder(7, 3)
    n = 500
    x = np.abs(rng.normal(size=(4, n, 7, 1))) / np.sqrt(1 + t)[:, None]
    x[:, :, 0] = rng.normal(size=(4, n, 1))
    values = np.where(x[..., 0] > 0, -0.5 * x[..., 0] ** 2, -np.inf)
    slope = np.where(x > 0, -x, np.nan)
    found = evidence(make_ladder(t, x, values, slope, -x), PlainMean(), degree=0)
    assert abs(found.value - np.log(0.5 / np.sqrt(2))) < 4.5 * found.error
    assert found.info["impossible_prior_draws"] > 0
    by_rungs = evidence(make_ladder(t, x, values, slope, -x), PlainMean(), degree=0, path="rungs")
    assert by_rungs.status is Status.UNDEFINED
    assert "zero likelihood" in "; ".join(by_rungs.complaints)


@pytest.mark.slow
def test_failed_rungs_are_left_out(rng: np.random.Generator) -> None:
    ladder = usual(rng)
    ladder.draws[:, :, 3] = ladder.draws[:, :1, 3]
    ladder.log_likelihood[0, 5, 5] = np.nan
    found = evidence(ladder, ZeroVariance(2))
    assert "1 distinct states" in "; ".join(found.complaints)
    assert "NaN" in "; ".join(found.complaints)
    assert len(found.used) == len(RUNGS) - 2
    assert abs(found.value - LOG_EVIDENCE) < 1e-6


@pytest.mark.slow
def test_a_ladder_without_its_prior_uses_the_pooled_path_alone(rng: np.random.Generator) -> None:
    ladder = usual(rng)
    # of two rungs, so that programs are shared with the tests that lose two
    ladder.log_likelihood[:, :, :2] = np.nan
    found = evidence(ladder, PlainMean())
    assert found.rungs is None
    assert abs(found.value - LOG_EVIDENCE) < max(4.5 * found.error, 1e-6)


def test_nothing_usable_is_undefined(rng: np.random.Generator) -> None:
    ladder = usual(rng)
    ladder.log_likelihood[:] = np.nan
    found = evidence(ladder, PlainMean())
    assert found.status is Status.UNDEFINED
    assert np.isnan(found.value)


@pytest.mark.slow
def test_chains_that_disagree_are_named(rng: np.random.Generator) -> None:
    ladder = PATH.ladder(rng, 50, RUNGS, chains=2)
    ladder.draws[1, :, 4] += 3.0
    found = evidence(ladder, ZeroVariance(2), allow_bad_scores=True)
    assert f"disagree at t = {RUNGS[4]:.3g}" in "; ".join(found.complaints)


@pytest.mark.parametrize("d", [1, 2])
def test_gradients_of_another_likelihood_are_seen_by_the_stored_one(
    rng: np.random.Generator, d: int
) -> None:
    """They fit a normal's own log likelihood without a rest: .02 off, with an error of 1e-15."""
    ladder = gaussian_path(d).ladder(rng, 100, RUNGS)  # two dimensions: the usual shape
    assert evidence(ladder, ZeroVariance(2)).status is not Status.BAD_SCORES
    for factor in (0.9, 1.04):
        wrong = ladder._replace(gradient_log_likelihood=factor * ladder.gradient_log_likelihood)
        message = check_ladder(wrong, examine_rungs(wrong)).message
        assert "not those of the stored log likelihood" in message
        assert evidence(wrong, ZeroVariance(2)).error > 1e-3


@pytest.mark.slow
def test_scores_off_by_a_tenth_are_seen_over_the_ladder(rng: np.random.Generator) -> None:
    path = gaussian_path(1)
    ladder = path.ladder(rng, 200, power_ladder(21, 3))
    wrong = ladder._replace(
        gradient_log_likelihood=1.1 * ladder.gradient_log_likelihood,
        gradient_log_prior=1.1 * ladder.gradient_log_prior,
    )
    health = examine_rungs(wrong)
    check = check_ladder(wrong, health)
    assert "Stein's identity" in check.message
    found = estimate_log_evidence(wrong, health, check, PlainMean(), Options(), degree=2)
    assert found.status is Status.BAD_SCORES
    assert abs(found.value - path.log_evidence(np.ones(1))[0]) < 4.5 * found.error
    assert evidence(ladder, PlainMean()).status is Status.CONTROLLED


def test_comparison_of_models() -> None:
    first = EvidenceEstimate("bridge", -10.0, 0.1, Status.PLAIN, {})
    second = EvidenceEstimate("bridge", -12.0, 0.2, Status.PLAIN, {"discretisation_error": 0.0})
    both = compare_models({"a": first, "b": second})
    assert both.log_bayes_factor[0, 1] == pytest.approx(2.0)
    assert both.log_bayes_factor_error[0, 1] == pytest.approx(np.hypot(0.1, 0.2))
    p = 1 / (1 + np.exp(-2.0))
    np.testing.assert_allclose(both.probability, [p, 1 - p])
    np.testing.assert_allclose(both.probability_error, p * (1 - p) * np.hypot(0.1, 0.2))
    even = compare_models({"a": first, "b": second}, {"a": 1.0, "b": np.exp(2.0)})
    np.testing.assert_allclose(even.probability, 0.5)


@pytest.mark.parametrize(
    ("models", "prior", "words"),
    [
        ({"a": -1.0}, None, "at least two models"),
        ({"a": -1.0, "b": np.nan}, None, "finite log evidence"),
        ({"a": -1.0, "b": -2.0}, {"a": 1.0}, "`prior` for each of"),
    ],
)
def test_comparison_refuses(models: dict, prior: dict | None, words: str) -> None:
    records = {k: EvidenceEstimate("x", v, 0.1, Status.PLAIN, {}) for k, v in models.items()}
    with pytest.raises(ValueError, match=words):
        compare_models(records, prior)


@pytest.mark.parametrize(
    ("temperatures", "words"),
    [
        ([0.0, 0.5, 0.5, 1.0], "repeated"),
        ([0.0, 0.7, 0.5, 1.0], "unsorted"),
        ([0.1, 1.0], "from 0"),
        ([0.0, 0.9], "0 to 0.9"),
        ([1.0], "at least two"),
        ([0.0, np.nan, 1.0], "finite"),
    ],
)
def test_ladders_that_are_refused(temperatures: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_temperatures("test", temperatures)


def test_ladders_of_one_rung_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        power_ladder(1)


@pytest.mark.slow
def test_tables_tree_and_plot(rng: np.random.Generator) -> None:
    matplotlib.use("agg")

    tree = mp.ladder_from_arrays(*usual(rng)[:5])
    tree.sample_stats.log_likelihood_total[0, 3, [4, 6]] = np.nan
    before = tree.copy(deep=True)
    with pytest.warns(mp.EvidenceWarning, match="NaN"):
        found = mp.log_evidence(tree, "zv2", degree=2)
    assert tree.identical(before)
    assert list(found.to_dataframe().index[:2]) == ["pooled", "corrected"]
    assert found.rungs_to_dataframe()["problem"].iloc[4] != ""
    assert len(found.path_to_dataframe()) == 2 * found.pooled.info["num_nodes"] + 1
    kept = found.to_datatree(tree)["evidence"]
    assert kept.attrs["log_evidence"] == found.value
    assert kept["rung_mean_cv"].sizes["temperature"] == len(RUNGS)
    assert found.to_json_dict()["rungs"][4]["mean"] is None
    axes = mp.plot_evidence_path(found)
    assert {"pooled path", "rungs, controlled"} <= {
        text.get_text() for text in axes.get_legend().get_texts()
    }
    pyplot.close("all")


@pytest.mark.slow
def test_a_prior_whose_mean_log_likelihood_is_minus_infinity(rng: np.random.Generator) -> None:
    # one observation, zero, with a standard deviation that has an exponential prior: E log p(y)
    # diverges at the prior
    grid = np.linspace(-30.0, 6.0, 60_001)  # of log sd
    log_prior = grid - np.exp(grid)
    log_likelihood = lambda x: -0.5 * np.exp(-2 * x) - x - 0.5 * np.log(2 * np.pi)  # noqa: E731
    t = power_ladder(12, 5)
    density = np.exp(t[:, None] * log_likelihood(grid) + log_prior)
    mass = np.concatenate(
        [np.zeros((len(t), 1)), np.cumsum(density[:, 1:] + density[:, :-1], axis=1)], axis=1
    )
    x = np.stack([np.interp(rng.random(100), row / row[-1], grid) for row in mass], axis=1)[None]
    slope, prior_slope = np.exp(-2 * x) - 1, 1 - np.exp(x)
    ladder = make_ladder(
        t, x[..., None], log_likelihood(x), slope[..., None], prior_slope[..., None]
    )
    found = pooled_path(ladder)
    assert not found.reason
    truth = np.log(mass[-1, -1] / mass[0, -1])
    assert abs(found.value - truth) < 4.5 * np.hypot(found.mcse, found.discretisation_error)
    assert found.mcse < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"path": "best"}, "`path`"), ({"degree": -1}, "`degree`"), ({"num_nodes": 1}, "`num_nodes`")],
)
def test_options_that_are_refused(options: dict, words: str, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=words):
        check_options(PATH.ladder(rng, 10, RUNGS), Options(), **options)
