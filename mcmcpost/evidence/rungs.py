"""Rung by rung: health, score gate, controlled means and variances of the log likelihood, and their
quadrature.

The rules along the ladder are linear in the means and variances of the log likelihood, with what
they miss.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control import (
    AbstractControlVariate,
    Estimate,
    Options,
    Sample,
    estimate_expectations,
)
from mcmcpost.core.errors import Status
from mcmcpost.core.mcse import mcse_mean, rank_rhat
from mcmcpost.evidence.ladder import Ladder
from mcmcpost.scores import check_scores, disagreeing, effective_size, misfit, z_zero_mean
from mcmcpost.trace import Trace, distinct_states, make_trace

MIN_RICHARDSON = 9

STEEP = 1.0
"""Between two rungs dμ/dt = v: part of the change of μ by which the trapezoid of v may miss it.
Where it misses more, the rungs are too far apart there for the error to be a power of their
distance."""

EVEN_STEP = 1e-8


class Rule(NamedTuple):
    """log Z ≈ Σ mean_weights·μ + variance_weights·v over the rungs."""

    mean_weights: Float[np.ndarray, " t"]
    variance_weights: Float[np.ndarray, " t"]

    def integrate(self, mean: Float[np.ndarray, " t"], variance: Float[np.ndarray, " t"]) -> float:
        """Return the rule's value at means μ and variances v of the log likelihood."""
        return float(self.mean_weights @ mean + self.variance_weights @ variance)


def trapezoid_rule(temperatures: Float[np.ndarray, " t"]) -> Rule:
    """Return Σ (t_{i+1} − t_i)(μ_{i+1} + μ_i)/2."""
    steps = np.diff(temperatures)
    weights = np.zeros(len(temperatures))
    weights[:-1] += steps / 2
    weights[1:] += steps / 2
    return Rule(weights, np.zeros(len(temperatures)))


def corrected_rule(temperatures: Float[np.ndarray, " t"]) -> Rule:
    """Return the trapezoid minus Σ (t_{i+1} − t_i)²(v_{i+1} − v_i)/12, as dμ/dt = v.

    Friel, Hurn and Wyse (2014, doi:10.1007/s11222-013-9397-1); docs/mathematics.md section 3 has
    the sign and the last index, which Sun, Barp and Briol (2023), appendix E.5, misprint.
    """
    steps = np.diff(temperatures)
    weights = np.zeros(len(temperatures))
    # Subtracted: the trapezoid of a function of slope v errs by h²(v_{i+1} − v_i)/12,
    # docs/mathematics.md section 3.
    weights[1:] -= steps**2 / 12
    weights[:-1] += steps**2 / 12
    return Rule(trapezoid_rule(temperatures).mean_weights, weights)


def simpson_rule(temperatures: Float[np.ndarray, " t"]) -> Rule | None:
    """Return Simpson's rule in s = t^(1/p) of ∫μ(s^p) p s^(p−1) ds, or None where it does not
    apply.

    It applies to an odd number of rungs of a power law t_i = ((i−1)/(w−1))^p.
    """
    size = len(temperatures)
    if size < 3 or size % 2 == 0 or temperatures[0] != 0.0 or temperatures[-1] != 1.0:
        return None
    # The power is read off the first step and then confirmed on all others, as ladders do not store
    # it.
    power = np.log(temperatures[1]) / np.log(1.0 / (size - 1))
    s = np.linspace(0.0, 1.0, size)
    if power < 1 or not np.allclose(
        s**power, temperatures, rtol=1e-6, atol=EVEN_STEP * temperatures[1]
    ):
        return None
    weights = np.full(size, 2.0)
    weights[1::2] = 4.0
    weights[[0, -1]] = 1.0
    density = power * s ** (power - 1.0)
    return Rule(weights / (3 * (size - 1)) * density, np.zeros(size))


def discretisation_errors(
    temperatures: Float[np.ndarray, " t"],
    mean: Float[np.ndarray, " t"],
    variance: Float[np.ndarray, " t"],
) -> dict[str, float]:
    """Return estimates of what each rule misses: ``trapezoid``, ``corrected`` and, where it
    applies, ``simpson``.

    The corrected rule's own error is |corrected − corrected on every second rung|/15 (Richardson,
    for an odd number of rungs, nine at least) and, between rungs where the mean is too steep for
    that (`STEEP`), the correction there; together at most the size of the whole correction, which
    is also the error for fewer rungs or an even number. The others' are their distances from the
    corrected rule, for Simpson's an upper bound (its own Richardson estimate was a fifth of the
    truth on 17 rungs of van der Pol).
    """
    corrected = corrected_rule(temperatures).integrate(mean, variance)
    trapezoid = trapezoid_rule(temperatures).integrate(mean, variance)
    errors = {"trapezoid": abs(corrected - trapezoid), "corrected": abs(corrected - trapezoid)}
    half = slice(None, None, 2)
    odd = len(temperatures) % 2 == 1 and len(temperatures) >= MIN_RICHARDSON
    if odd:
        # The corrected rule is of fourth order, so that halving the steps divides its error by 16,
        # and the difference of both is 15 times the finer one's. On 9, 17 and 31 rungs of van der
        # Pol this is 1.01 to 1.06 times the truth (docs/results, van_der_pol_rules).
        coarse = corrected_rule(temperatures[half]).integrate(mean[half], variance[half])
        asymptotic = abs(corrected - coarse) / 15
        steps, change = np.diff(temperatures), np.diff(mean)
        # Near the prior the slope changes by orders of magnitude within a step, and no power of the
        # step describes the error.
        steep = np.abs(steps * (variance[1:] + variance[:-1]) / 2 - change) > STEEP * np.abs(change)
        beyond = abs(float((steps**2 * np.diff(variance) / 12)[steep].sum()))
        errors["corrected"] = min(asymptotic + beyond, max(asymptotic, errors["corrected"]))
    fine = simpson_rule(temperatures)
    if fine is not None:
        errors["simpson"] = abs(fine.integrate(mean, variance) - corrected)
    return errors


MIN_STATES = 4

LEVEL = 1e-4

INTEGRANDS = ("mean", "square")


class RungHealth(NamedTuple):
    """Diagnostics of each rung before any control variate is fitted.

    usable : (t,) whether it has finite draws, log likelihoods and gradients at four distinct states
        at least.
    impossible : (t,) draws of zero likelihood; only the prior rung may have any.
    states : (t,) distinct states. rhat : (t,) the largest of the coordinates and of ℓ, NaN for one
        chain.
    converged : (t,) whether the half-chains agree (Vehtari et al. 2021) as the score gate asks.
    problem : t words, empty for a healthy rung.
    """

    usable: Bool[np.ndarray, " t"]
    impossible: Int[np.ndarray, " t"]
    states: Int[np.ndarray, " t"]
    rhat: Float[np.ndarray, " t"]
    converged: Bool[np.ndarray, " t"]
    problem: tuple[str, ...]


class RungMeans(NamedTuple):
    """Means and variances of the log likelihood at every rung.

    mean, variance : (t,) controlled μ and v = E[(ℓ−μ)²]; mean_plain, variance_plain without
        control.
    mean_error, variance_error, mean_error_plain : (t,) standard errors.
    covariance : (t, 2, 2) of the errors of (μ, v) within each rung. joint : (2t, 2t) across rungs,
        μ first, or None.
    series : (c, n, t, 2) centred residuals of ℓ and of (ℓ−μ)², cross-fitted.
    status, method : t of each, of μ.
    """

    mean: Float[np.ndarray, " t"]
    variance: Float[np.ndarray, " t"]
    mean_plain: Float[np.ndarray, " t"]
    variance_plain: Float[np.ndarray, " t"]
    mean_error: Float[np.ndarray, " t"]
    variance_error: Float[np.ndarray, " t"]
    mean_error_plain: Float[np.ndarray, " t"]
    covariance: Float[np.ndarray, "t 2 2"]
    joint: Float[np.ndarray, "2t 2t"] | None
    series: Float[np.ndarray, "c n t 2"]
    status: tuple[Status, ...]
    method: tuple[str, ...]

    def apply(self, rule: Rule) -> tuple[float, float]:
        """Return the rule's value and its Monte Carlo standard error.

        Errors of different rungs add as independent ones, or by `joint`. Where rungs exchanged
        states, or moved together, the combined residual series has a larger error than its parts
        together, and the ratio enlarges what is reported.
        """
        value = rule.integrate(self.mean, self.variance)
        gradient = np.stack([rule.mean_weights, rule.variance_weights], axis=1)
        if self.joint is not None:
            flat = gradient.T.reshape(-1)
            return value, float(np.sqrt(max(flat @ self.joint @ flat, 0.0)))
        # Shapes (t, 2)·(t, 2, 2)·(t, 2): μ and v of one rung share their draws, and the errors of
        # both are correlated.
        variance = float(np.einsum("ti,tij,tj->", gradient, self.covariance, gradient))
        series = self.influence(rule)
        together = mcse_mean(series.sum(axis=-1)) ** 2
        separate = np.sum(mcse_mean(series) ** 2)
        # At least one: by chance rungs can seem to cancel, and a smaller error would rest on that
        # alone.
        ratio = together / separate if separate > 0 and np.isfinite(together) else 1.0
        return value, float(np.sqrt(variance * max(ratio, 1.0)))

    def influence(self, rule: Rule) -> Float[np.ndarray, "c n t"]:
        """Return the influence of every draw: the mean over some draws, summed over the rungs, is
        what they add to the rule's value."""
        return np.einsum(
            "cnti,ti->cnt",
            self.series,
            np.stack([rule.mean_weights, rule.variance_weights], axis=1),
        )


def examine_rungs(ladder: Ladder) -> RungHealth:
    """Return the health of each rung; nothing is raised."""
    examined = [_examine(ladder, i) for i in range(len(ladder.temperatures))]
    usable, impossible, states, rhat, converged, problem = zip(*examined, strict=True)
    return RungHealth(
        np.array(usable),
        np.array(impossible),
        np.array(states),
        np.array(rhat),
        np.array(converged),
        problem,
    )


class _Examined(NamedTuple):
    """One rung of `RungHealth`."""

    usable: bool
    impossible: int
    states: int
    rhat: float
    converged: bool
    problem: str


def _examine(ladder: Ladder, index: int) -> _Examined:
    draws, values = ladder.draws[:, :, index], ladder.log_likelihood[:, :, index]
    # Found first is what is named: draws, then likelihoods, then gradients, each of which spoils
    # what comes after.
    slopes = np.stack(
        [ladder.gradient_log_likelihood[:, :, index], ladder.gradient_log_prior[:, :, index]],
        axis=-1,
    )
    zero = values == -np.inf
    states = 0
    problem = ""
    if not np.isfinite(draws).all():
        problem = "draws that are not finite"
    elif (~np.isfinite(values) & ~zero).any():
        problem = "log likelihoods that are NaN or +infinity"
    elif (zero & (ladder.temperatures[index] > 0)).any():
        problem = "draws of zero likelihood at a positive temperature"
    elif not np.isfinite(slopes[~zero]).all():
        problem = "gradients that are not finite"
    else:
        states = len(distinct_states(make_trace(draws, np.zeros_like(draws))).counts)
        problem = f"{states} distinct states" if states < MIN_STATES else ""
    if problem:
        return _Examined(False, int(zero.sum()), states, np.nan, False, problem)
    # R-hat works on ranks: an impossible draw is put level with the worst possible one, where −∞
    # would be NaN.
    safe = np.where(zero, np.min(values, where=~zero, initial=0.0), values)
    seen = np.concatenate([draws, safe[..., None]], axis=-1)
    seen = seen[..., np.ptp(seen, axis=(0, 1)) > 0]
    several = draws.shape[0] > 1 and draws.shape[1] >= MIN_STATES
    rhat = float(rank_rhat(seen).max()) if several else np.nan
    return _Examined(
        True, int(zero.sum()), states, rhat, not disagreeing(seen, LEVEL).any(), problem
    )


def control_rungs(ladder: Ladder, method: AbstractControlVariate, options: Options) -> RungMeans:
    """Control ℓ and (ℓ − m)² at every rung, m the rung's plain mean; v = E[(ℓ−m)²] − (μ−m)².

    `VectorValued` fits all rungs, both integrands each, as 2t related tasks; any other method each
    rung by itself.
    """
    # About the plain mean, which is known before any fit, so that the square is one integrand for
    # all folds; the shift to the controlled mean is made good below.
    plain = ladder.log_likelihood.mean(axis=(0, 1))
    # a prior rung with draws of zero likelihood has no mean: undefined
    with np.errstate(invalid="ignore"):
        values = np.stack([ladder.log_likelihood, (ladder.log_likelihood - plain) ** 2], axis=-1)
    rungs = range(len(ladder.temperatures))
    samples = {str(i): Sample.of(ladder.rung(i), INTEGRANDS, values[:, :, i]) for i in rungs}
    joint = None
    jointly = method.joint_estimator
    if jointly is not None:
        fitted = jointly(samples, options)
        parts: list[Estimate] = list(fitted.values())
        joint = fitted.covariance.reshape(len(rungs), 2, len(rungs), 2)
    else:
        parts = [estimate_expectations(sample, method, options) for sample in samples.values()]
    mean, square = np.array([estimate.mean for estimate in parts]).T
    shift = mean - plain
    # (μ, E[(ℓ−m)²]) → (μ, v)
    jacobian = np.zeros((len(rungs), 2, 2))
    jacobian[:, 0, 0] = jacobian[:, 1, 1] = 1.0
    # v = E[(ℓ−m)²] − (μ−m)², by the delta method.
    jacobian[:, 1, 0] = -2.0 * shift
    covariance = (
        jacobian
        @ np.array([estimate.covariance for estimate in parts])
        @ jacobian.transpose(0, 2, 1)
    )
    if joint is not None:
        joint = np.einsum("iab,ibjc,jdc->aidj", jacobian, joint, jacobian).reshape(
            2 * len(rungs), -1
        )
    residuals = np.stack([estimate.residuals for estimate in parts], axis=2)
    with np.errstate(invalid="ignore"):
        residuals = residuals - residuals.mean(axis=(0, 1))
    errors = np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 0.0))
    return RungMeans(
        mean=mean,
        variance=square - shift**2,
        mean_plain=plain,
        variance_plain=values[..., 1].mean(axis=(0, 1)),
        mean_error=errors[:, 0],
        variance_error=errors[:, 1],
        mean_error_plain=np.array([estimate.mcse_plain[0] for estimate in parts]),
        covariance=covariance,
        joint=joint,
        series=np.einsum("tab,cntb->cnta", jacobian, residuals),
        status=tuple(estimate.status[0] for estimate in parts),
        method=tuple(estimate.method[0] for estimate in parts),
    )


ALONE = ("not_converged", "too_few_draws", "constant")
"""Patterns of the score gate on a rung that do not mean wrong scores."""

MIN_DRAWS = 100
"""Draws per rung from which an unrecognised failure of one rung by itself counts: its threshold is
for many draws."""


FEW_DRAWS = 10
"""Draws per rung from which rungs are tested together: with fewer the effect of x̄ is not known
well enough."""


class LadderCheck(NamedTuple):
    """The result of the score gate on a ladder.

    passed : whether control variates may be used. message : what failed and where; empty for a
        pass.
    tested : whether there were draws enough to test anything.
    edge : the density ends where it is not zero. The draws are not in doubt, but no control variate
        has mean zero.
    """

    passed: bool
    message: str
    tested: bool
    edge: bool = False


def check_ladder(ladder: Ladder, health: RungHealth) -> LadderCheck:
    """Test Stein's identities at every rung, and over all rungs together.

    One short rung cannot show an error of a tenth in the scores, but thirty rungs together can:
    E[s_i] = 0 and E[(x_i − x̄_i)s_i] = −1 are tested on the draws of all rungs, in units in which
    every rung counts alike. Where draws of the prior have zero likelihood, they are tested there on
    the others: the prior given that the likelihood is positive, at which the path starts, may end
    at an edge that no other rung shows.
    """
    series, threshold = [], 0.0
    failing: list[str] = []
    edges: list[str] = []
    enough = ladder.draws.shape[0] * ladder.draws.shape[1] >= MIN_DRAWS
    # Rungs with impossible draws are tested in `_edge`, on the others of their draws.
    for i in np.flatnonzero(health.usable & (health.impossible == 0)):
        rung = ladder.rung(int(i))
        check = check_scores(rung)
        # The largest of the rungs' own thresholds, so that testing all rungs together is no
        # stricter than testing one.
        threshold = max(threshold, check.threshold)
        if check.pattern not in ALONE and (
            check.verdict == "error" or (enough and check.verdict == "warn")
        ):
            messages = edges if check.pattern == "boundary" else failing
            messages.append(f"at t = {ladder.temperatures[i]:.3g}: {check.message}")
        if check.pattern in (None, "boundary", "unknown") and rung.draws[..., 0].size >= FEW_DRAWS:
            series.append(_identities(rung))
    if failing:
        more = f" ({len(failing)} rungs fail)" if len(failing) > 1 else ""
        return LadderCheck(False, failing[-1] + more, True)
    if health.impossible[0]:
        edges += _edge(ladder, threshold)
    if edges:
        return LadderCheck(False, edges[-1], True, True)
    together = np.abs(z_zero_mean(np.concatenate(series))) if series else np.full((2, 1), np.nan)
    if np.nanmax(together, initial=0.0) > threshold:
        worst = ladder.names[int(np.nanmax(together, axis=0).argmax())]
        return LadderCheck(
            False,
            f"Score gate: over all rungs together Stein's identity fails for {worst} by "
            f"{np.nanmax(together):.1f} standard errors: the gradients are not those of the "
            "stored log likelihood and prior.",
            True,
        )
    if series and (message := _contradicted(ladder, health, threshold)):
        return LadderCheck(False, message, True)
    return LadderCheck(True, "", bool(np.isfinite(together).any()))


def _contradicted(ladder: Ladder, health: RungHealth, threshold: float) -> str:
    """Return a sentence where the gradients are not those of the stored log likelihood, which near
    draws tell far better than Stein's identities.

    With gradients of a normal that were one per cent too large the evidence was .002 off, with an
    error of 1e-15: they fit their own log likelihood without a rest.
    """
    usable = np.flatnonzero(health.usable & (health.impossible == 0))
    # Draws of the prior are too far apart to tell a gradient.
    rungs = usable[ladder.temperatures[usable] >= ladder.temperatures[usable[-1]] / 2]
    d = ladder.draws.shape[-1]
    draws = ladder.draws[:, :, rungs].reshape(-1, d)
    gradients = ladder.gradient_log_likelihood[:, :, rungs].reshape(-1, d)
    mismatch = misfit(draws, gradients, ladder.log_likelihood[:, :, rungs].reshape(-1))
    if mismatch is None or not mismatch.wrong:
        return ""
    # In many dimensions a skewed likelihood looks like wrong gradients of it: what is said to be
    # right must not fail the identities.
    right = ladder.gradient_log_likelihood / mismatch.factor - mismatch.shift / draws.std(axis=0)
    repaired = ladder._replace(gradient_log_likelihood=right)
    series = [_identities(repaired.rung(int(i))) for i in usable]
    if np.nanmax(np.abs(z_zero_mean(np.concatenate(series))), initial=0.0) > threshold:
        return ""
    return (
        "Score gate: the gradients are not those of the stored log likelihood: they are "
        f"{mismatch.factor:.3g} times as large and shifted by up to "
        f"{np.abs(mismatch.shift).max():.2g} of 1/sd."
    )


def _edge(ladder: Ladder, threshold: float) -> list[str]:
    """Return a sentence where the draws of positive likelihood end at an edge of the first rung's
    density."""
    rung, possible = ladder.rung(0), ladder.log_likelihood[:, :, 0] != -np.inf
    known = np.isfinite(rung.draws).all(axis=-1) & np.isfinite(rung.scores).all(axis=-1)
    z = np.abs(z_zero_mean(_identities(rung, possible & known)))
    if not np.nanmax(z, initial=0.0) > threshold:
        return []
    worst = ladder.names[int(np.nanmax(z, axis=0).argmax())]
    return [
        f"at t = 0: {(~possible).sum()} of {possible.size} draws of the {ladder.start} have "
        "zero likelihood, and at the edge of the others its density is not zero: Stein's "
        f"identity fails for {worst} by {np.nanmax(z):.1f} standard errors. Without control "
        "variates."
    ]


def _identities(
    rung: Trace, counted: Bool[np.ndarray, "c n"] | None = None
) -> Float[np.ndarray, "c n 2 d"]:
    """Return s_i·sd(x_i) and (x_i − x̄_i)s_i + 1, whose means should be zero; both are zero where
    x_i never moves.

    The sample mean x̄ takes 1/ESS from the product, which thirty short rungs would add up: it is
    given back.
    counted : draws that are tested; both are zero at the others.
    """
    inside = np.ones(rung.draws.shape[:2], dtype=bool) if counted is None else counted
    centre, sd = rung.draws[inside].mean(axis=0), rung.draws[inside].std(axis=0)
    draws = np.where(inside[..., None], rung.draws, centre)
    scores = np.where(inside[..., None], rung.scores, 0.0)
    size = np.maximum(effective_size(draws, sd), 2.0)
    product = (draws - centre) * scores * (size / (size - 1.0)) + inside[..., None]
    return np.stack([scores * sd, np.where(sd > 0, product, 0.0)], axis=2)
