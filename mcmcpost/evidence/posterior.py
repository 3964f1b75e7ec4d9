"""The log evidence without a ladder: bridges from posterior draws, and the Laplace approximation.

Bridges to a fitted density, plain and controlled, give one answer from posterior draws alone.
Importance sampling from the Laplace approximation is independent of the draws, in a few dimensions.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize
from scipy.special import gammaln

from mcmcpost.control import NEED, AbstractControlVariate, PlainMean
from mcmcpost.core.arguments import check_count, check_function, check_key
from mcmcpost.core.devices import BATCH_SIZE, host_generator, map_rows
from mcmcpost.core.errors import InputError, Status
from mcmcpost.core.mcse import GOOD_KHAT, Weights
from mcmcpost.core.precision import in_either_precision
from mcmcpost.core.runtime import significant
from mcmcpost.evidence import bridge
from mcmcpost.evidence.ladder import EvidenceEstimate, Ladder, make_ladder
from mcmcpost.evidence.log_evidence import halves_complaint
from mcmcpost.evidence.modes import DISTANCES, NUM_STARTS, ModeSearch, search_modes
from mcmcpost.evidence.path import LastRung, PooledPath, path_error, pooled_path
from mcmcpost.evidence.record import Evidence
from mcmcpost.evidence.warp import Normal
from mcmcpost.scores import value_and_score

PROPOSALS_PER_DRAW, MOST_PROPOSALS = 16, 20_000
"""Proposals for each draw of a half, by default, and how many there are at most unless the half has
more draws.

A proposal costs one evaluation of the density, and a draw of a trace many gradients. The squared
error of a bridge falls with draws and proposals together: few draws are no floor.
"""

MORE_WORK, MOST_MORE = 5e8, 100_000
"""Multiplications that proposals beyond these may take by default, and how many there are at most
for each half. Of eight schools at 4 × 250 draws the error falls from 0.0024 to 0.0012, for a third
of a second. Counted and not timed: a loaded machine must not change the answer."""

TRANSCENDENTAL, COORDINATE = 10.0, 300.0
"""Multiplications that a transcendental function, and a coordinate of the map, take as long as."""

TRANSCENDENTALS = ("exp", "expm1", "log", "log1p", "logistic", "tanh", "pow", "lgamma", "erf")

FACTORISATIONS = ("cholesky", "triangular_solve", "lu", "eigh", "qr", "svd")
"""Those that take as many multiplications for each entry as a matrix has columns."""

FIRST_NODES, NUM_NODES = 2, 4
"""Gauss–Legendre nodes of the path from a fitted normal, which is short and nowhere steep: at a
first look, and where the path may be the answer. Kronrod's are one more each."""

HOPE = 40.0
"""Error of the path with polynomials alone, in units of the smallest of the other bridges, times
the dimension, up to which a kernel is tried on it. The kernel makes it 8 to 19 times smaller for a
regression of three parameters, 5 to 8 times for one of four, and 1.7 times for eight schools, of
ten. Where polynomials do nothing it does nothing."""

MOST_SMALL_BLOCKS = 256
"""Blocks of the size that the search for modes takes, in which gradients are evaluated at most."""

QUADRATIC = 2
"""Degree from which the control variate removes the errors of the fitted moments, which both halves
share."""

NAMED = 6
"""Coordinates of a mode that a complaint names."""

FEW_PARTICIPANTS = 100.0
"""Effective draws in the overlap below which the error itself is uncertain."""


class PosteriorDraws(NamedTuple):
    """Draws of a posterior, and its log density q, not normalised, at each of them.

    draws : (c, n, d) on the unconstrained space. names : d labels.
    log_density : (c, n) log q. scores : (c, n, d) ∇ log q, for control variates; None for plain
        estimates alone.
    values, slopes : log q (m,) and ∇ log q (m, d) at any points (m, d), log-Jacobian included.
    work : multiplications of one log density, infinite where they cannot be counted.
    weights : of the draws, None where they are equal.
    """

    draws: Float[np.ndarray, "c n d"]
    names: tuple[str, ...]
    log_density: Float[np.ndarray, "c n"]
    scores: Float[np.ndarray, "c n d"] | None
    values: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, " m"]]
    slopes: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, "m d"]]
    work: float = np.inf
    weights: Weights | None = None


def evaluate_draws(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    names: tuple[str, ...] | None = None,
    *,
    scores: bool = True,
) -> PosteriorDraws:
    """Return draws with their log density and, if asked for, its gradient.

    logdensity_fn : written in JAX, (d,) → scalar. It and its gradient are each compiled once.

    Raises
    ------
    ValueError : draws that are not finite (c, n, d); a log density that is not a finite scalar at
        each of them.
    """
    check_function(
        bridge.WHERE,
        "logdensity_fn",
        logdensity_fn,
        1,
        "Its argument is one unconstrained draw (d,).",
    )

    def score(point: Array) -> Array:
        return value_and_score(logdensity_fn, point).score

    def slopes(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        # The search for modes needs small blocks, and a program for large ones beside it takes as
        # long as ten thousand gradients of a few dozen parameters.
        few = len(points) <= MOST_SMALL_BLOCKS * NUM_STARTS
        size = NUM_STARTS if few else BATCH_SIZE
        scores = map_rows(score, points, batch_size=size, full_blocks=few, progress="scores")
        return scores.astype(float)

    points, labels = bridge.check_draws(bridge.WHERE, draws, names)
    density = bridge.checked_density(bridge.WHERE, logdensity_fn, points.shape[-1])
    posterior = evaluate_rows(points, density, slopes, labels, scores=scores)
    row = jax.ShapeDtypeStruct(points.shape[-1:], jnp.result_type(float))
    program = in_either_precision(lambda: jax.make_jaxpr(logdensity_fn)(row))
    return posterior._replace(work=_work(program.jaxpr))


def _work(jaxpr: Any) -> float:
    """Return about how many multiplications a program takes, infinite with a loop: nobody knows
    before how many steps a solver of differential equations takes.

    XLA's own count takes a minute where a model is unrolled to ten thousand operations.
    """
    work = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("while", "scan"):
            return np.inf
        parts = [getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(equation.params)]
        inner = [one for one in parts if hasattr(one, "eqns")]
        operands = (*equation.invars, *equation.outvars)
        shapes: list[tuple[int, ...]] = [getattr(v.aval, "shape", ()) for v in operands]
        if inner:
            work += sum(map(_work, inner))
        elif name == "dot_general":
            summed = equation.params["dimension_numbers"][0][0]
            work += math.prod(shapes[-1]) * math.prod(shapes[0][axis] for axis in summed)
        else:
            each = shapes[0][-1] if name in FACTORISATIONS else 1.0
            each = TRANSCENDENTAL if name in TRANSCENDENTALS else each
            work += each * max(map(math.prod, shapes))
    return work


def evaluate_rows(
    draws: object,
    values: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, " m"]],
    slopes: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, "m d"]],
    names: tuple[str, ...] | None = None,
    *,
    scores: bool = True,
) -> PosteriorDraws:
    """Return draws with a log density of any origin, see `PosteriorDraws`, and, if asked for, its
    gradient.

    Raises
    ------
    ValueError : draws that are not finite (c, n, d); a log density that is not finite at each of
        them.
    """

    def checked(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " m"]:
        return bridge.check_values(bridge.WHERE, values(points), points)

    points, labels = bridge.check_draws(bridge.WHERE, draws, names)
    rows = points.reshape(-1, points.shape[-1])
    log_density = checked(rows)
    bridge.check_inside(log_density)
    at_draws = slopes(rows).reshape(points.shape) if scores else None
    return PosteriorDraws(
        points, labels, log_density.reshape(points.shape[:2]), at_draws, checked, slopes
    )


def estimate_from_posterior(
    posterior: PosteriorDraws,
    method: AbstractControlVariate,
    *,
    key: jax.Array,
    degree: int | None = None,
    num_proposals: int | None = None,
) -> Evidence:
    """Estimate log ∫q by every bridge between the draws and a density fitted to half of them.

    Weighted draws are bridged with their weights, by self-normalised means.

    The density is that of a `Warp`, a normal that is bent where the draws say so, whose mean and
    covariance scores control (`control_normal`). It is fitted twice: to the draws, and to these and
    its first proposals together (`refit_halves`), which are many more. In the coordinates in which
    it is standard normal the estimates are, from simple to
    rich: ``bridge (warp-III)``, of the first fit, to the posterior averaged with its mirror image,
    and ``bridge (fitted)``, of the second, to the posterior itself; with scores also ``bridge
    (controlled)``, both means of the latter with control variates. ``bridge (controlled path)`` is
    thermodynamic integration from the normal to the posterior with control variates on the path:
    from a normal, log q − log g is nearly a polynomial. A richer one is the answer if its error is
    smaller by `NEED`; the others are cross-checks. All share the draws. No error is below the
    rounding of log q, which all draws share.

    Parameters
    ----------
    method : control variate of the mean over the draws, beside polynomials for that over the
        proposals (`normal_mean`); the plain mean for plain estimates alone.
    degree : of the polynomials on the path; by default chosen by the honest error, up to three.
        Zero: no path.
    num_proposals : draws of the second fit for each half, and evaluations of the first; by default
        `PROPOSALS_PER_DRAW` for each draw of it, and of a log density that takes little work more
        of the second (`add_proposals`).

    Returns
    -------
    Evidence : without rungs; `info` has the effective draws in the overlap (``participants``), the
        Pareto k̂ of importance sampling from the fitted density (``pareto_khat``), which says how
        far the posterior is from it, and how many ``densities`` and ``gradients`` were evaluated.
    """
    points, names, weights = posterior.draws, posterior.names, posterior.weights
    c, n, _ = points.shape
    size: dict[str, Any] = {"num_chains": c, "num_draws": n}
    if weights is not None:
        size |= {"weights_ess": weights.ess, "weights_khat": weights.khat}
    if bridge.too_few(points, weights):
        return _evidence([bridge.no_bridge(points)], (), size)
    for_bridges, for_path = jax.random.split(key)
    number = num_proposals or _number_of_proposals(c * (n // 2))
    halved = partial(
        bridge.evaluate_halves,
        posterior.values,
        points,
        names,
        known=posterior.log_density,
        scores=posterior.scores,
        weights=posterior.weights,
    )
    # Plain bridges cost nothing beyond these densities, so both are always there as cross-checks.
    # The first fit spends its evaluations on proposals and their mirror images, both of which are
    # refitted to: for eight schools at 4 × 250 draws the error falls from 0.0050, with one fit, to
    # 0.0026 at 1.8 times the evaluations, and to 0.0020 with polynomials.
    for_first, for_second = jax.random.split(for_bridges)
    first = halved(for_first, bent=True, num_proposals=-(-min(number, MOST_PROPOSALS) // 2))
    halves = bridge.refit_halves(
        posterior.values,
        first,
        names,
        for_second,
        number,
        controlled=posterior.scores is not None,
    )
    if num_proposals is None:
        more = MORE_WORK / 2 / (posterior.work + COORDINATE * points.shape[-1])
        halves = bridge.add_proposals(
            posterior.values, halves, jax.random.fold_in(key, 3), min(int(more), MOST_MORE)
        )
    estimates = [
        bridge.plain_bridge(first, symmetric=True),
        bridge.plain_bridge(halves, symmetric=False),
    ]
    drawn = sum(half.draws[..., 0].size for half in halves)
    densities = 2 * sum(len(half.log_ratio) for half in first)
    densities, gradients = densities + sum(len(half.log_ratio) for half in halves) - drawn, 0
    if posterior.scores is not None:
        gradients += c * n
    if posterior.scores is not None and not isinstance(method, PlainMean):
        estimates.append(bridge.controlled_bridge(halves, posterior.scores, method))
        if degree != 0:
            # A normal and not the bent map: from a normal log q − log g is nearly a polynomial in
            # z, and its expectation along the path is what Stein features reproduce.
            straight = halved(for_path, symmetric=False)
            least = np.nanmin([e.error for e in estimates], initial=np.inf)
            path = _path_bridge(straight, posterior.scores, posterior.slopes, degree, least)
            estimates += [path] if path else []
            densities += c * n
            gradients += c * n if path else c * n // 2
    # Of the density itself: the symmetrised one would hide a one-sided tail.
    size |= {"pareto_khat": estimates[1].info["khat_proposals"]}
    estimates = [e.with_rounding(posterior.log_density) for e in estimates]
    # Chains that disagree spoil every bridge alike, so that all are refused before one is chosen.
    ordered = _best_first([bridge.refuse_drift(e, points, names, weights) for e in estimates])
    size |= {"modes": NOT_SEARCHED}
    if len(ordered) > 2 and np.isfinite(ordered[0].value):
        try:
            with np.errstate(all="ignore"):  # in a density of NumPy, so far out
                search = search_modes(
                    bridge.equal_rows(points, weights),
                    names,
                    _far_out(posterior.values),
                    _far_out(posterior.slopes),
                    log_z=ordered[0].value,
                    error=ordered[0].error,
                    ess=sum(half.ess for half in halves),
                    key=jax.random.fold_in(key, 2),
                )
        except _DensityFailed as error:
            # A solver inside the model may raise where no proposal comes: the bridge is as good as
            # it was, and says that nothing was looked for.
            size["modes"] = f"{NOT_SEARCHED}: far from them the density raises {error}"
        else:
            gradients += search.num_gradients
            size["modes"] = _mode_search_text(search, names)
            if search.missed:
                ordered = [_refuse(e, size["modes"]) for e in ordered]
    size |= {"densities": densities, "gradients": gradients}
    uneven = _uneven(weights)
    if uneven:
        ordered = [
            e if e.status is Status.NOT_CONVERGED else e._replace(status=Status.HEAVY_TAIL)
            for e in ordered
        ]
    evidence = _evidence(ordered, uneven + _complaints(ordered[0]), size)
    return evidence._replace(diagnostics=bridge.half_overlap(halves, evidence.value))


class _DensityFailed(Exception):
    """A density, or its gradient, raised an error where no draw is."""


def _far_out(
    function: Callable[[np.ndarray], np.ndarray],
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function with its own errors told from those of the search."""

    def call(points: np.ndarray) -> np.ndarray:
        try:
            return function(points)
        except (RuntimeError, ValueError) as error:
            raise _DensityFailed(f"{error!r:.200}") from error

    return call


NOT_SEARCHED = "modes that no draw has visited were not looked for"


def _mode_search_text(search: ModeSearch, names: tuple[str, ...]) -> str:
    """Return in one sentence what was looked for outside the draws, and what was there."""
    climbs = f"{search.num_starts} climbs from {DISTANCES[0]:g} to {DISTANCES[-1]:g} sd away"
    if not search.missed:
        return f"{climbs} met no mode without draws"
    shown = ", ".join(
        f"{name} = {significant(float(x), 3)}"
        for name, x in zip(names[:NAMED], search.mode[:NAMED], strict=True)
    )
    more = ", …" if len(names) > NAMED else ""
    return (
        f"{climbs} met a mode without draws, at {shown}{more}, of at least "
        f"{significant(search.missed, 2)} times the mass that the draws have: start chains there"
    )


def _refuse(estimate: EvidenceEstimate, reason: str) -> EvidenceEstimate:
    if estimate.status is Status.NOT_CONVERGED:
        return estimate
    return estimate._replace(status=Status.NOT_CONVERGED, info=estimate.info | {"reason": reason})


def _number_of_proposals(num_draws: int) -> int:
    return min(PROPOSALS_PER_DRAW * num_draws, max(num_draws, MOST_PROPOSALS))


def _best_first(estimates: list[EvidenceEstimate]) -> list[EvidenceEstimate]:
    """Return the estimates with the answer first, the others in their order from simple to rich.

    The answer converged if any did, and a richer one has an error smaller by `NEED`.
    """
    best = estimates[0]
    # From simple to rich, with a lead for the simpler one: the smallest of several estimated errors
    # is too small.
    for candidate in estimates[1:]:
        sound, sound_best = (e.status is not Status.NOT_CONVERGED for e in (candidate, best))
        smaller = candidate.error * NEED < best.error or not np.isfinite(best.error)
        if sound > sound_best or (sound == sound_best and smaller):
            best = candidate
    return [best, *(e for e in estimates if e is not best)]


def _uneven(weights: Weights | None) -> tuple[str, ...]:
    """Return a sentence where a few draws have most of the weight."""
    if weights is None or not weights.khat > GOOD_KHAT:
        return ()
    return (
        f"Pareto k-hat {weights.khat:.2g} of the weights is above {GOOD_KHAT}: "
        f"{weights.ess:.3g} effective draws decide, and neither the value nor its error is "
        "reliable. Draw from closer to the posterior",
    )


def _complaints(best: EvidenceEstimate) -> tuple[str, ...]:
    texts = [best.info["reason"]] if "reason" in best.info else []
    texts += halves_complaint(best.info)
    if bridge.MIN_PARTICIPANTS <= best.info["participants"] < FEW_PARTICIPANTS:
        texts.append(
            f"{best.info['participants']:.3g} effective draws lie where the posterior and the "
            "fitted density overlap, and the error is rough. A ladder of power posteriors "
            "needs no fitted density"
        )
    return tuple(texts)


def _evidence(
    estimates: list[EvidenceEstimate], complaints: tuple[str, ...], info: dict[str, Any]
) -> Evidence:
    best = estimates[0]
    shown = {
        key: best.info[key]
        for key in ("participants", "halves", "halves_mcse", "controls")
        if key in best.info
    }
    return Evidence(
        value=best.value,
        mcse=best.mcse,
        discretisation_error=best.info.get("discretisation_error", 0.0),
        status=best.status,
        method=best.method,
        complaints=complaints,
        estimates=tuple(estimates),
        temperatures=np.zeros(0),
        health=None,
        used=np.zeros(0, int),
        rungs=None,
        pooled=None,
        info=info | shown,
    )


def _path_bridge(
    halves: list[bridge.Half],
    scores: Float[np.ndarray, "c n d"],
    slopes: Callable[[np.ndarray], np.ndarray],
    degree: int | None,
    least: float,
) -> EvidenceEstimate | None:
    """Estimate log Z = ∫₀¹ E_t[log q − log g] dt, E_t under g^(1−t)q^t/Z_t, with zero-variance
    control variates.

    The draws of g and those of the posterior are the two rungs of a ladder on which log q − log g
    is the log likelihood, pooled (docs/mathematics.md section 3): every draw serves every t, at
    which its score is known. Where the posterior is near the normal, log q − log g is nearly a
    polynomial, whose expectation Stein features reproduce.

    least : the smallest error of the other bridges. Polynomials at few nodes come first, of one
    half; the other half is looked at, and a kernel and more nodes, which take twice their time, are
    spent where the path may then be the answer (`HOPE`).

    Returns
    -------
    None where it may not be the answer.
    """
    ladders, paths = [], []
    # The kernel at nine nodes took half of the time on eight schools, where the path is never the
    # answer (5.3 CPU s before this first look, 1.7 with it, at 4 × 250 draws); without any kernel
    # the errors of two regressions were four to five times as large.
    for half in halves:
        ladders.append(_path_ladder(half, scores[:, half.rows], slopes))
        paths.append(_path_half(ladders[-1], half, degree, kernel=False))
        error = np.sqrt(np.mean([path.mcse**2 for path in paths]) / len(halves))
        hope = HOPE / scores.shape[-1] if paths[-1].degree else 1.0
        if degree is None and not error < hope * least:
            return None
    if degree is None:
        paths = [
            _path_half(ladder, half, degree, kernel=True)
            for ladder, half in zip(ladders, halves, strict=True)
        ]
    values, errors = (
        np.array([path.value for path in paths]),
        np.array([path.mcse for path in paths]),
    )
    degrees = [path.degree for path in paths]
    # Without the quadratic the halves share the errors of their fitted moments, see `combine`.
    together = np.linalg.norm(errors) if min(degrees) >= QUADRATIC else errors.sum()
    reasons = [path.reason for path in paths if path.reason]
    info: dict[str, Any] = {
        "halves": values.tolist(),
        "halves_mcse": errors.tolist(),
        "controls": [path.method for path in paths],
        "discretisation_error": float(np.mean([path.discretisation_error for path in paths])),
        "participants": min(path.info["smallest_ess"] for path in paths),
        **bridge.overlap_khats(halves, symmetric=False),
    }
    status = Status.CONTROLLED if max(degrees) else Status.PLAIN
    if reasons:
        status, info["reason"] = Status.NOT_CONVERGED, reasons[0]
    mcse = float(together / len(paths))
    return EvidenceEstimate("bridge (controlled path)", float(values.mean()), mcse, status, info)


class _PathLadder(NamedTuple):
    """Draws of g and of the posterior as two rungs, log q − log g less `shift` as their log
    likelihood."""

    ladder: Ladder
    shift: float


def _path_ladder(
    half: bridge.Half,
    scores: Float[np.ndarray, "c n d"],
    slopes: Callable[[np.ndarray], np.ndarray],
) -> _PathLadder:
    """Return the ladder of one half, with as many proposals as draws; log q − log g is shifted to
    keep its digits.

    All is in the coordinates in which g is standard normal.
    """
    z, proposals = half.split(half.standard)
    drawn, proposed = half.split(half.log_ratio)
    # Two rungs: at t = 0 the normal, whose score is −z, and at t = 1 the posterior, whose score is
    # pulled back through the map. The gradient of log q − log g is the sum of the latter and z.
    slope = half.warp.pull(proposals, slopes(half.warp.restore(proposals))).reshape(z.shape)
    both = np.stack([proposals.reshape(z.shape), z], axis=2)
    at_both = np.stack([slope, bridge.pulled_scores(half, scores)], axis=2)
    log_ratio = np.stack([proposed.reshape(drawn.shape), drawn], axis=2)
    # log q may be −1e6 everywhere; what the path integrates is its variation.
    shift = float(np.median(drawn))
    return _PathLadder(
        make_ladder([0.0, 1.0], both, log_ratio - shift, at_both + both, -both), shift
    )


def _path_half(
    path_ladder: _PathLadder, half: bridge.Half, degree: int | None, *, kernel: bool
) -> PooledPath:
    """Return the pooled path of one half."""
    ladder, shift = path_ladder
    last = None if half.weights is None else LastRung(half.weights, half.ess)
    nodes = NUM_NODES if kernel or degree is not None else FIRST_NODES
    path = pooled_path(ladder, degree=degree, num_nodes=nodes, power=1.0, kernel=kernel, last=last)
    if degree:
        # A degree that was asked for was not chosen by its error, so what it changed is no part of
        # that.
        path = path._replace(
            mcse=float(np.hypot(path_error(ladder, path.fit, degree, last), path.start_error))
        )
    return path._replace(value=path.value + shift)


FREEDOM = 5.0

SCALES = np.array([1.0, 3.0])

SHARES = np.array([0.9, 0.1])
"""Nine tenths of the proposals have the scale of the Laplace approximation. The rest are three
times wider, for tails that the curvature at the mode does not show."""

MIN_ESS = 100.0

METHOD = "importance sampling (Laplace)"


def laplace_importance(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    num_proposals: int = 20_000,
) -> EvidenceEstimate:
    """Estimate log ∫q by importance sampling from Student t proposals at the mode of q.

    L-BFGS finds the mode from the draw of highest density; the proposals have five degrees of
    freedom, the inverse of −∇²log q as scale, and a tenth of them three times that. It needs one
    mode and at most about twenty dimensions.

    Parameters
    ----------
    draws : (c, n, d) draws on the unconstrained space; they only start the search.
    logdensity_fn : (d,) → log q, twice differentiable in JAX, log-Jacobian included.
    names : d labels for error messages.
    num_proposals : of independent draws.

    Returns
    -------
    EvidenceEstimate : status ``plain``, or ``not_converged`` where no mode with a negative definite
        Hessian is found (NaN) or the weights collapse to an effective sample size below a hundred.
        `info` has the mode, the ``laplace`` approximation itself, the effective sample size and the
        largest weight.

    Source: Geweke (1989, Econometrica 57); Hesterberg (1995, doi:10.1080/00401706.1995.10484303)
    for the mixture.
    """
    where = "laplace_importance"
    check_key(where, key)
    # The draws only say where to start: importance sampling does not trust them, which makes it a
    # check of the bridges.
    points, _ = bridge.check_draws(where, draws, names)
    check_count(
        where, "num_proposals", num_proposals, "Use 20,000.", least=2, most=bridge.MAX_PROPOSALS
    )
    check_function(
        where, "logdensity_fn", logdensity_fn, 1, "Its argument is one unconstrained draw (d,)."
    )
    flat = points.reshape(-1, points.shape[-1])
    density = bridge.checked_density(where, logdensity_fn, flat.shape[-1])
    at_draws = density(flat)
    if not np.isfinite(at_draws).any():
        raise InputError(
            where, "a draw of finite log density", "−∞ at all", "Draws are unconstrained."
        )
    mode, hessian = in_either_precision(lambda: _climb(logdensity_fn, flat[np.argmax(at_draws)]))
    try:
        # Cholesky of the matrix with rows and columns reversed is upper triangular after reversing
        # back; symmetrised, because automatic differentiation leaves the two halves different by
        # rounding.
        upper = np.linalg.cholesky(-(hessian + hessian.T)[::-1, ::-1] / 2)[::-1, ::-1]
    except np.linalg.LinAlgError:
        reason = "the Hessian at the mode is not negative definite"
        return EvidenceEstimate(
            METHOD, np.nan, np.nan, Status.NOT_CONVERGED, {"mode": mode.tolist(), "reason": reason}
        )
    # −H = U Uᵀ with U upper triangular, so that its inverse transpose is lower triangular, as
    # `Normal` has it.
    laplace = Normal(mode, np.linalg.inv(upper).T)

    standard, log_proposal = _student_mixture(key, num_proposals, laplace)
    log_weights = density(laplace.restore(standard)) - log_proposal
    top = log_weights.max()
    # Less the largest one, without which log densities of −1e3 underflow.
    weights = np.exp(log_weights - top)
    mean = weights.mean()
    ess = weights.sum() ** 2 / (weights**2).sum()
    at_mode = density(mode[None])[0]
    info = {
        "mode": mode.tolist(),
        "laplace": float(at_mode - laplace.log_density(np.zeros((1, len(mode))))[0]),
        "num_proposals": num_proposals,
        "ess": float(ess),
        "largest_weight": float(weights.max() / weights.sum()),
    }
    status = Status.PLAIN
    if ess < MIN_ESS:
        status = Status.NOT_CONVERGED
        info["reason"] = f"the weights collapse to {ess:.3g} effective proposals"
    error = weights.std(ddof=1) / (np.sqrt(num_proposals) * mean)
    return EvidenceEstimate(METHOD, float(np.log(mean) + top), float(error), status, info)


def _climb(
    logdensity_fn: Callable[[Array], Array], start: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return the mode that L-BFGS reaches from `start`, or the best point in the support, and the
    Hessian there."""
    slope = jax.jit(jax.value_and_grad(lambda x: -logdensity_fn(x)))

    def downhill(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(a, float) for a in slope(jnp.asarray(x)))
        usable = np.isfinite(value) and np.isfinite(gradient).all()
        # A point outside the support must be worse than any other and finite: L-BFGS-B stops at
        # infinity or NaN.
        return (float(value), gradient) if usable else (1e300, np.zeros_like(x))

    mode = minimize(
        downhill, start, jac=True, method="L-BFGS-B", options={"maxiter": 1_000, "gtol": 1e-8}
    ).x
    return mode, np.asarray(jax.jit(jax.hessian(logdensity_fn))(jnp.asarray(mode)), float)


def _student_mixture(
    key: jax.Array, number: int, normal: Normal
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Return standardised proposals of the mixture of two Student t and their log density on the
    original space."""
    d = len(normal.mean)
    rng = host_generator(key)
    radius = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, number))
    component = (rng.random(number) < SHARES[1]).astype(int)
    z = rng.normal(size=(number, d)) * (radius * SCALES[component])[:, None]
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - 0.5 * d * np.log(FREEDOM * np.pi)
    constant -= np.log(np.diagonal(normal.lower)).sum()
    square = (z**2).sum(axis=1)
    parts = [
        np.log(share)
        - d * np.log(scale)
        - 0.5 * (FREEDOM + d) * np.log1p(square / (FREEDOM * scale**2))
        for share, scale in zip(SHARES, SCALES, strict=True)
    ]
    return z, constant + np.logaddexp(*parts)
