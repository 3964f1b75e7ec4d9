"""The score gate: silent on right scores of any target, and able to name each known mistake."""

import re

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import kstest

from mcmcpost.scores import check_scores, disagreeing, z_zero_mean
from mcmcpost.scores.identities import z_products
from mcmcpost.trace import make_trace


def gaussian(rng, c, n):
    x = rng.normal(size=(c, n, 3))
    return x, -x


def with_memory(rng, c, n):
    x = rng.normal(size=(c, n, 3))
    for i in range(1, n):
        x[:, i] = 0.6 * x[:, i - 1] + 0.8 * x[:, i]
    return x, -x


def correlated(rng, c, n):
    root = np.array([[1, 0, 0], [0.95, 0.3, 0], [0.5, -0.8, 0.2]])
    x = rng.normal(size=(c, n, 3)) @ root.T
    return x, -x @ np.linalg.inv(root @ root.T)


def student(rng, c, n):
    x = rng.standard_t(3, size=(c, n, 2))
    return x, -4 * x / (3 + x**2)


def cauchy(rng, c, n):
    x = rng.standard_cauchy(size=(c, n, 2))
    return x, -2 * x / (1 + x**2)


def funnel(rng, c, n):
    v = 3 * rng.normal(size=(c, n, 1))
    x = np.exp(v / 2) * rng.normal(size=(c, n, 2))
    top = -v / 9 - 1 + 0.5 * (x**2).sum(-1, keepdims=True) * np.exp(-v)
    return np.concatenate([v, x], -1), np.concatenate([top, -x * np.exp(-v)], -1)


def banana(rng, c, n):
    a, b = rng.normal(size=(c, n)), 0.3 * rng.normal(size=(c, n))
    return np.stack([a, a**2 + b], -1), np.stack([-a + 2 * a * b / 0.09, -b / 0.09], -1)


def mixture(rng, c, n):
    x = np.where(rng.random((c, n, 1)) < 0.3, -2.0, 2.0) + rng.normal(size=(c, n, 1))
    low = expit(-4 * x + np.log(0.3 / 0.7))
    return x, -(x - 2 * (1 - 2 * low))


def log_gamma(rng, c, n):
    x = np.log(rng.gamma(3.0, size=(c, n, 2)))
    return x, 3 - np.exp(x)


def logit_beta(rng, c, n):
    x = logit(rng.beta(2, 3, size=(c, n, 1)))
    return x, 2 - 5 * expit(x)


TARGETS = [gaussian, correlated, student, cauchy, funnel, banana, mixture, log_gamma, logit_beta]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("c", "n"), [(2, 20), (4, 100)])
@pytest.mark.parametrize("target", TARGETS)
def test_right_scores_pass(rng, target, c, n):
    checks = [check_scores(make_trace(*target(rng, c, n))) for _ in range(50)]
    # Two tests at level 1e-4 in 50 traces: a warning has probability 0.01.
    assert {check.verdict for check in checks} == {"pass"}, {check.message for check in checks}


def test_autocorrelated_right_scores_pass(rng):
    noise = np.sqrt(1 - 0.9**2) * rng.normal(size=(4, 1000, 2))
    x = noise / np.sqrt(1 - 0.9**2)
    for i in range(1, 1000):
        x[:, i] = 0.9 * x[:, i - 1] + noise[:, i]
    assert check_scores(make_trace(x, -x)).verdict == "pass"


# pattern: draws and scores as someone would wrongly store them.
MISTAKES = {
    "sign": lambda rng, c, n: (lambda x, s: (x, -s))(*correlated(rng, c, n)),
    "sign of one": lambda rng, c, n: (lambda x, s: (x, s * np.array([1, -1, 1])))(
        *gaussian(rng, c, n)
    ),
    "jacobian of a positive": lambda rng, c, n: (lambda x, s: (x, s - 1))(*log_gamma(rng, c, n)),
    "jacobian of an interval": lambda rng, c, n: (lambda x, s: (x, s - 1 + 2 * expit(x)))(
        *logit_beta(rng, c, n)
    ),
    "constrained scores of a positive": lambda rng, c, n: (lambda x, s: (x, (s - 1) * np.exp(-x)))(
        *log_gamma(rng, c, n)
    ),
    "constrained scores of an interval": lambda rng, c, n: (
        lambda x, s: (x, (s - 1 + 2 * expit(x)) / (expit(x) * expit(-x)))
    )(*logit_beta(rng, c, n)),
    "constrained draws of a positive": lambda rng, c, n: (lambda x, s: (np.exp(x), s))(
        *log_gamma(rng, c, n)
    ),
    "constrained draws of an interval": lambda rng, c, n: (lambda x, s: (expit(x), s))(
        *logit_beta(rng, c, n)
    ),
    "order of coordinates": lambda rng, c, n: (
        lambda x, s: (x * [1, 2, 3], s[..., [1, 2, 0]] / [2, 3, 1])
    )(*gaussian(rng, c, n)),
    "rows of the draw before": lambda rng, c, n: (lambda x, s: (x[:, 1:], s[:, :-1]))(
        *with_memory(rng, c, n)
    ),
    "rows of two draws after": lambda rng, c, n: (lambda x, s: (x[:, :-2], s[:, 2:]))(
        *log_gamma(rng, c, n)
    ),
    "rows the other way round": lambda rng, c, n: (lambda x, s: (x, s[:, ::-1]))(
        *correlated(rng, c, n)
    ),
    "rows of other draws": lambda rng, c, n: (lambda x, s: (x, rng.permuted(s, axis=1)))(
        *gaussian(rng, c, n)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_known_mistakes_are_named(rng, mistake):
    check = check_scores(make_trace(*MISTAKES[mistake](rng, 4, 1000)))
    assert (check.verdict, check.pattern) == ("error", mistake.split()[0])
    assert max(np.abs(check.z_mean).max(), np.abs(check.z_product).max()) > check.threshold
    words = {
        "sign": "wrong sign",
        "jacobian": "log-Jacobian",
        "constrained": "θ",
        "order": "order",
        "rows": "draw",
    }
    assert words[check.pattern] in check.message
    assert "x[1]" in check.message or check.z_mean.shape == (1,) or check.pattern == "rows"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("rows of the draw before", "those of 1 draw before the one that they stand beside"),
        ("rows of two draws after", "those of 2 draws after the one that they stand beside"),
        ("rows the other way round", "in the opposite order"),
        ("rows of other draws", "not of the draws that they stand beside"),
    ],
)
def test_it_is_told_how_the_rows_of_scores_are_out_of_order(rng, mistake, words):
    assert words in check_scores(make_trace(*MISTAKES[mistake](rng, 4, 1000))).message


def test_scores_that_are_too_large_are_not_taken_for_those_of_other_draws(rng):
    """Twice the scores are right two or three draws later, where half of a chain's memory has
    faded."""
    x, s = with_memory(rng, 4, 1000)
    assert check_scores(make_trace(x, s / 0.6)).pattern == "scale"


def test_the_other_sign_of_few_draws_is_no_order_of_draws():
    """Among many orders of fifty draws without memory one looked right by chance, in 21 of 300
    traces."""
    for seed in (4, 5):
        rng = np.random.default_rng(seed)
        u = np.log(2 * np.abs(rng.normal(size=(4, 50, 3))))
        assert check_scores(make_trace(u, np.exp(2 * u) / 4 - 1)).pattern == "sign"


def test_a_chain_that_never_moves_is_named(rng):
    x = rng.normal(size=(4, 100, 2))
    x[2] = x[2, 0]
    check = check_scores(make_trace(x, -x))
    assert (check.verdict, check.pattern) == ("warn", "not_converged")
    assert "the same 100 draws in chain 2" in check.message
    assert "tree.isel(chain=[0, 1, 3])" in check.message
    # Of many short chains some may never have moved by chance.
    many = rng.normal(size=(200, 50, 2))
    many[7] = many[7, 0]
    assert "the same" not in check_scores(make_trace(many, -many)).message


def test_only_the_wrong_coordinate_is_named(rng):
    check = check_scores(make_trace(*MISTAKES["sign of one"](rng, 4, 500), ("mu", "sigma", "nu")))
    assert "scores of sigma have the wrong sign" in check.message


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_scores_are_an_error(rng, bad):
    x, s = gaussian(rng, 2, 50)
    s[1, 7, 2] = bad
    check = check_scores(make_trace(x, s))
    assert (check.verdict, check.pattern) == ("error", "nonfinite")
    assert "1 of 100 draws (first at chain 1, draw 7), in x[2]" in check.message


@pytest.mark.parametrize(
    ("draws", "scores", "pattern", "words"),
    [
        (
            lambda rng: rng.exponential(size=(4, 500, 1)),
            lambda x: -np.ones_like(x),
            "constant",
            "no gain is possible",
        ),
        (
            lambda rng: rng.uniform(size=(4, 500, 1)),
            np.zeros_like,
            "constant",
            "no gain is possible",
        ),
        (
            lambda rng: np.abs(rng.normal(size=(4, 500, 1))),
            lambda x: -x,
            "boundary",
            "no gain is possible",
        ),
        (lambda rng: rng.normal(size=(4, 500, 2)), lambda x: -0.4 * x, "scale", "tempered"),
        (
            lambda rng: rng.normal(size=(4, 500, 2)),
            lambda x: -x + 0.5 * x**2,
            "unknown",
            "log-Jacobian",
        ),
        (
            lambda rng: np.full((4, 500, 1), rng.normal()),
            lambda x: 0 * x,
            "not_converged",
            "every draw is the same",
        ),
        (lambda rng: rng.normal(size=(4, 3, 1)), lambda x: -x, "too_few_draws", "too few"),
    ],
)
def test_doubts_are_warnings(rng, draws, scores, pattern, words):
    x = draws(rng)
    check = check_scores(make_trace(x, scores(x)))
    assert (check.verdict, check.pattern) == ("warn", pattern)
    assert words in check.message


def test_a_fixed_coordinate_is_not_tested(rng):
    x, s = gaussian(rng, 4, 100)
    x[..., 1], s[..., 1] = 2.0, 0.0
    check = check_scores(make_trace(x, s))
    assert (check.verdict, check.message) == ("pass", "")
    np.testing.assert_array_equal(np.isnan(check.z_mean), [False, True, False])
    np.testing.assert_array_equal(np.isnan(np.diag(check.z_product)), [False, True, False])
    assert check_scores(make_trace(x, -s)).pattern == "sign"


def test_chains_in_different_modes_are_not_converged(rng):
    x = rng.normal(size=(4, 200, 2)) + np.array([0.0, 0.0, 0.0, 8.0])[:, None, None] * np.array(
        [1.0, 0.0]
    )
    centre = np.where(x > 4, 8.0, 0.0)
    check = check_scores(make_trace(x, centre - x))
    assert (check.verdict, check.pattern) == ("warn", "not_converged")
    assert "x[0]," in check.message


def test_unconverged_chains_with_right_scores_are_no_error(rng):
    x = np.cumsum(0.2 * rng.normal(size=(50, 1, 200, 1)), axis=2)
    assert all(check_scores(make_trace(part, -part)).verdict != "error" for part in x)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_z_is_standard_normal(rng, rho):
    noise = np.sqrt(1 - rho**2) * rng.normal(size=(4, 250, 400))
    x = noise / np.sqrt(1 - rho**2)
    for i in range(1, 250):
        x[:, i] = rho * x[:, i - 1] + noise[:, i]
    z = z_zero_mean(x)
    assert kstest(z, "norm").pvalue > 1e-5
    # A mutant that ignores autocorrelation must fail the same test where there is any.
    naive = x.mean((0, 1)) / x.std((0, 1)) * np.sqrt(1000)
    assert (kstest(naive, "norm").pvalue < 1e-5) == (rho > 0)


def test_products_match_the_definition(rng):
    x, s = correlated(rng, 3, 40)
    series = (x - x.mean((0, 1)))[..., :, None] * s[..., None, :] + np.eye(3)
    np.testing.assert_allclose(z_products(x, s, 0.0), z_zero_mean(series), rtol=1e-9)


def test_screening_never_hides_a_failure(rng):
    x, s = correlated(rng, 3, 40)
    exact, screened = z_products(x, -s, 0.0), z_products(x, -s, 4.0)
    assert (np.abs(screened) >= np.abs(exact) - 1e-9).all()
    np.testing.assert_allclose(
        screened[np.abs(screened) > 4], exact[np.abs(screened) > 4], rtol=1e-9
    )


@pytest.mark.slow
def test_many_coordinates_are_tested_in_a_band(rng):
    x = rng.normal(size=(2, 100, 60))
    check = check_scores(make_trace(x, -x))
    assert check.verdict == "pass"
    assert np.isfinite(np.diag(check.z_product)).all()
    assert 2000 < np.isfinite(check.z_product).sum() <= 2500
    assert check_scores(make_trace(x, x)).pattern == "sign"


def test_scores_that_are_all_zero_are_called_constant(rng):
    # An exact zero among the moments must not raise a warning of NumPy's on the way.
    check = check_scores(make_trace(rng.normal(size=(2, 40, 2)), np.zeros((2, 40, 2))))
    assert (check.verdict, check.pattern) == ("warn", "constant")


@pytest.mark.parametrize("draws", [2, 10, 40])
def test_many_chains_shorter_than_their_autocorrelation_pass_unless_they_drift(rng, draws):
    noise = np.sqrt(1 - 0.9**2) * rng.normal(size=(2_000, draws, 3))
    x = rng.normal(size=(2_000, draws, 3))
    for i in range(1, draws):
        x[:, i] = 0.9 * x[:, i - 1] + noise[:, i]
    assert not disagreeing(x, 1e-4).any()
    slope = np.linspace(0.0, 0.5, draws)[:, None]
    moving = x + slope * [0.0, 1.0, 0.0]
    moving[..., 2] *= np.linspace(1.0, 1.5, draws)
    np.testing.assert_array_equal(disagreeing(moving, 1e-4), [False, True, True])


def test_draws_that_a_file_has_rounded_to_a_few_values_are_told_from_chains_that_have_not_converged(
    rng,
):
    """θ ~ N(1e6, 1) in six digits: the plain mean is many of its errors off, and no error shows
    it."""
    normal = rng.normal(size=(4, 500, 2))
    draws = np.stack([1e6 + normal[..., 0], normal[..., 1]], axis=-1)
    rounded = np.vectorize(lambda x: float(f"{x:.6g}"))(draws)
    assert check_scores(make_trace(draws, -normal, ("a", "b"))).verdict == "pass"
    check = check_scores(make_trace(rounded, -normal, ("a", "b")))
    assert (check.verdict, check.pattern) == ("error", "rounded")
    assert re.search(
        r"the draws of a are rounded to 6 digits, \d values with 2000 scores .* sig_figs=18",
        check.message,
    )
    # a tenth of a standard deviation matters to nothing
    fine = make_trace(np.round(normal, 1), -normal, ("a", "b"))
    assert check_scores(fine).verdict == "pass"


def slow(rng, c, n):
    x = rng.normal(size=(c, n, 2))
    for i in range(1, n):
        x[:, i] = 0.9 * x[:, i - 1] + np.sqrt(1 - 0.9**2) * x[:, i]
    return x, -x


def test_chains_that_have_changed_places_are_named(rng):
    for target in (correlated, slow, log_gamma):
        x, s = target(rng, 4, 1000)
        check = check_scores(make_trace(x, s[[1, 0, 2, 3]]))
        assert (check.verdict, check.pattern) == ("error", "chains")
        assert "scores of chains 0, 1 are not those of their draws" in check.message
        assert "in chain 0, whose scores belong to the draws of chain 1" in check.message
        assert "which those of chains 2, 3 meet" in check.message


def test_two_chains_that_have_changed_places_are_named_though_none_is_right(rng):
    x, s = correlated(rng, 2, 1000)
    check = check_scores(make_trace(x, s[::-1]))
    assert (check.verdict, check.pattern) == ("error", "chains")
    assert "in chain 1, whose scores belong to the draws of chain 0" in check.message


def test_one_chain_with_the_other_sign_or_of_another_model_is_named(rng):
    for target in (correlated, slow):
        x, s = target(rng, 4, 1000)
        turned, other = s.copy(), s.copy()
        turned[2] *= -1
        other[2] = 0.3 * s[2] + 0.5
        check = check_scores(make_trace(x, turned))
        assert (check.verdict, check.pattern) == ("error", "chains")
        assert "in chain 2, whose scores have the wrong sign" in check.message
        check = check_scores(make_trace(x, other))
        assert (check.verdict, check.pattern) == ("warn", "chains")
        assert "scores of chain 2 are not" in check.message
        assert "belong to" not in check.message


@pytest.mark.slow
def test_a_mistake_that_all_chains_share_is_none_of_single_chains(rng):
    for _ in range(20):
        x, s = slow(rng, 4, 300)
        assert check_scores(make_trace(x, 0.6 * s)).pattern != "chains"


@pytest.mark.parametrize("size", [1e8, 1e3, 50.0])
@pytest.mark.parametrize("target", [gaussian, slow])
def test_one_wild_score_is_placed(rng, target, size):
    x, s = target(rng, 4, 1000)
    s[1, 333, 0] = size
    check = check_scores(make_trace(x, s))
    assert (check.verdict, check.pattern) == ("warn", "wild")
    assert (
        f"got {size:.3g} for x[0] at chain 1, draw 333, where all others are below" in check.message
    )
    s[3, 7] = -size
    assert "; 1 more draw as wild" in check_scores(make_trace(x, s)).message


def singular(rng, c, n):
    x = rng.gamma(1.5, size=(c, n, 1))
    return x, 0.5 / x - 1


@pytest.mark.slow
@pytest.mark.parametrize("target", [funnel, student, banana, singular])
def test_scores_with_a_heavy_tail_are_not_called_wild(rng, target):
    assert "wild" not in {check_scores(make_trace(*target(rng, 4, 500))).pattern for _ in range(50)}


def test_draws_too_far_from_zero_for_their_digits_are_told_from_wrong_scores(rng):
    x, s = correlated(rng, 4, 1000)
    check = check_scores(make_trace(x + np.array([0, 1e13, 0]), s))
    assert (check.verdict, check.pattern) == ("warn", "precision")
    assert re.search(r"draws of x\[1\] .* near 1e\+13 .* 0\.002 apart", check.message), (
        check.message
    )
    assert check_scores(make_trace(x + np.array([0, 1e10, 0]), s)).verdict == "pass"


UNITS = {
    "standard deviations": (np.array([2.0, 0.1, 7.0]), 1.0),
    "log10 θ beside draws of log θ": (np.ones(3), np.array([np.log(10), 1, 1])),
    "log θ beside draws of log10 θ": (np.ones(3), 1 / np.log(10)),
}


@pytest.mark.parametrize("target", [gaussian, correlated])
@pytest.mark.parametrize("words", UNITS)
def test_scores_in_other_units_are_told_as_factors(rng, target, words):
    """`correlated` has products x_j s_j of a standard deviation near ten, in which a factor of two
    does not show."""
    x, s = target(rng, 4, 2000)
    stretch, factor = UNITS[words]
    check = check_scores(make_trace(x / x.std((0, 1)) * stretch, s * x.std((0, 1)) * factor))
    assert (check.verdict, check.pattern) == ("warn", "scale")
    assert words in check.message


def test_a_factor_in_one_dimension_is_told(rng):
    x, s = gaussian(rng, 4, 1000)
    check = check_scores(make_trace(x[..., :1], 3 * s[..., :1]))
    assert check.pattern == "scale"
    assert re.search(r"narrow: (2\.[89]|3(\.[01])?)\d? \(x\[0\]\)", check.message), check.message


def angle(rng, c, n):
    x = rng.vonmises(0, 1.0, size=(c, n, 1))
    return x, -np.sin(x)


def truncated(rng, c, n):
    x = rng.normal(size=(c * n * 2, 1))
    return (x := x[np.abs(x[:, 0]) < 2][: c * n].reshape(c, n, 1)), -x


def narrow_angle(rng, c, n):
    """The density at the ends is 0.01, and E[s] is zero."""
    x = rng.vonmises(0, 2.0, size=(c, n, 1))
    return x, -2 * np.sin(x)


def truncated_beside_others(rng, c, n):
    """The first coordinate ends at −2, and the scores of the others hide it."""
    x = rng.normal(size=(c * n * 2, 1))
    x = x[x[:, 0] > -2][: c * n].reshape(c, n, 1)
    scaled = rng.normal(size=(c, n, 4))
    others = 0.7 * x + np.sqrt(0.51) * scaled
    scaled /= np.sqrt(0.51)
    return np.concatenate([x, others], -1), np.concatenate(
        [-x + 0.7 * scaled.sum(-1, keepdims=True), -scaled], -1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "n"),
    [(angle, 500), (truncated, 1000), (narrow_angle, 1500), (truncated_beside_others, 1500)],
)
def test_a_density_that_does_not_vanish_where_the_draws_end_is_told(rng, target, n):
    """The score of an angle is zero at its ends, and that of a truncated normal looks like too
    small a multiple."""
    patterns = [check_scores(make_trace(*target(rng, 4, n))).pattern for _ in range(10)]
    assert patterns.count("boundary") >= 9, patterns


@pytest.mark.parametrize("target", [*TARGETS, slow])
def test_tails_are_no_ends(rng, target):
    assert {check_scores(make_trace(*target(rng, 4, 500))).pattern for _ in range(20)} == {None}
