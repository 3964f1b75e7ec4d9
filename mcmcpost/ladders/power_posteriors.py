"""Ladders of power posteriors from a NumPyro model or from functions, as trees.

In a NumPyro model prior and likelihood are kept apart. Ladders from a normal fitted to earlier
draws have their own target, and their own places for rungs.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost import evidence
from mcmcpost.core.arguments import (
    as_labels,
    as_real,
    check_count,
    check_function,
    check_key,
    check_kind,
    check_tree_type,
    hashable,
)
from mcmcpost.core.devices import map_rows
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import in_either_precision, in_float64
from mcmcpost.evidence.barrier import path_barrier
from mcmcpost.evidence.bridge import median_ess, solve_bridge
from mcmcpost.evidence.warp import control_normal, likelier
from mcmcpost.ladders.lanes import HamiltonianKernel, evaluate_at
from mcmcpost.ladders.sampling import SampledLadder, sample_ladder, sample_more_rungs
from mcmcpost.scores import check_scalar
from mcmcpost.trees import is_ladder, ladder_to_datatree, read_ladder
from mcmcpost.trees.attach import check_evidence_exists
from mcmcpost.trees.convention import (
    GROUP,
    TEMPERATURE,
    check_names,
    posterior_as_draws,
    refuse_weights,
    stored_draws,
)
from mcmcpost.trees.ladder_trees import DIMS, ROUND_TRIPS
from mcmcpost.trees.numpyro_model import ProbedModel, probe_model, with_dotted_sites

if TYPE_CHECKING:
    import xarray


NUM_SCORED = 10_000
"""Draws of the trace, at most and evenly spaced, whose gradients control the reference."""

NUM_PLACING = 1_000
"""Draws of the trace, and as many of the reference, from which the barrier is estimated to place
the rungs."""


def reference_target(
    target: evidence.TemperedTarget, normal: evidence.Normal
) -> evidence.TemperedTarget:
    """Return the target whose path goes from the normal q at t = 0 to the posterior p(y|x)p(x) at t
    = 1.

    Its prior is q, normalised exactly and drawn exactly, and its log likelihood is log p(y|x) + log
    p(x) − log q(x), so that p_t ∝ q^(1−t)(p(y|x)p(x))^t and log p(y) is the integral of the mean of
    that along the path. The prior of `target` is not sampled.
    """
    mean, lower = normal  # NumPy's: as JAX arrays they would lose digits outside of 64 bits
    # A product in place of a triangular solve at every gradient of every lane; the factor is small.
    inverse = np.linalg.inv(lower)
    constant = float(normal.log_density(np.zeros((1, len(mean))))[0])

    def log_reference(draw: Array) -> Array:
        standard = jnp.matmul(inverse, draw - mean)
        return constant - 0.5 * standard @ standard

    return evidence.TemperedTarget(
        # With this for ℓ the path needs no code of its own: score, MBAR, rules and exchange see a
        # ladder from a prior q (docs/mathematics.md section 3).
        log_likelihood=lambda draw: (
            target.log_likelihood(draw) + target.log_prior(draw) - log_reference(draw)
        ),
        log_prior=log_reference,
        sample_prior=lambda key: (
            jnp.matmul(lower, jax.random.normal(key, mean.shape, float)) + mean
        ),
        names=target.names,
    )


def place_rungs(
    where: str,
    target: evidence.TemperedTarget,
    normal: evidence.Normal,
    draws: Float[np.ndarray, "n d"],
    key: jax.Array,
    size: int | None = None,
) -> Float[np.ndarray, " t"]:
    """Return `size` temperatures with equal shares of the barrier between reference and posterior,
    see `Barrier.place`.

    The barrier comes from both ends: draws of the trace that the reference is fitted to, and exact
    draws of the reference. Where they are bad, as those of a warm-up, so is the placement, and
    nothing else.

    Parameters
    ----------
    target : from `reference_target`.
    """
    # Evenly spaced, so that every chain and its whole length take part.
    subset = draws[np.linspace(0, len(draws) - 1, min(NUM_PLACING, len(draws))).astype(int)]
    exact = normal.restore(np.asarray(jax.random.normal(key, subset.shape, float)))
    values = map_rows(target.log_likelihood, np.concatenate([subset, exact]))
    # Draws of the reference may leave the model's support, where a density may be NaN: they count
    # as impossible.
    values = np.where(np.isnan(values) | (values == np.inf), -np.inf, values)
    at_draws, at_exact = values[: len(subset)], values[len(subset) :]
    inside = at_draws[np.isfinite(at_draws)]
    if not len(inside):
        cure = "Pass a trace of this model and of these data."
        raise InputError(
            where,
            "a `reference` inside the support of the model",
            "a density of zero at all draws",
            cure,
        )
    # Mixture weights of the two ends need log Z, of which a plain bridge is accurate enough to
    # place rungs.
    log_z = solve_bridge(inside[None], at_exact, float(len(inside))).value
    if not np.isfinite(log_z):
        log_z = float(np.median(inside))  # without overlap: any constant separates the ends
    # The mixture of both ends, equally many draws of each, over q: 1 + e^ℓ/Z.
    return path_barrier(
        values, np.logaddexp(0.0, values - log_z), power=evidence.REFERENCE_POWER
    ).place(size)


def tempered_target(
    where: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[evidence.TemperedTarget, ProbedModel]:
    """Return prior and likelihood of a NumPyro program, and its latent sites.

    Latent sites with the log-Jacobian of their transformation are the prior; observed sites and
    factors, scaled and masked as their handlers say, are the likelihood.

    Parameters
    ----------
    where : the public function that error messages name.
    model, args, kwargs : a NumPyro program and its arguments.

    Raises
    ------
    ValueError : a latent site is discrete, has an improper prior, or is scaled or masked; nothing
        is observed.
    """
    probed = probe_model(where, model, args, kwargs, dims=DIMS)
    check_evidence_exists(probed)
    target = evidence.TemperedTarget(
        log_likelihood=lambda draw: _terms(probed, draw)[0],
        log_prior=lambda draw: _terms(probed, draw)[1],
        sample_prior=lambda key: _prior_draw(probed, with_dotted_sites(where, model), key),
        names=probed.names,
    )
    return target, probed


def _terms(probed: ProbedModel, draw: Array) -> tuple[Array, Array]:
    """Return the log likelihood and the log prior, log-Jacobian included, of one unconstrained
    draw."""
    from numpyro import handlers
    from numpyro.infer.util import compute_log_probs

    free = probed.unravel(draw)
    substituted = handlers.substitute(
        probed.model, substitute_fn=lambda site: _constrain(free, site)
    )
    values, trace = compute_log_probs(substituted, probed.args, probed.kwargs, {})
    # The Jacobians are factors, which are observed sites to NumPyro: by name they belong to the
    # prior.
    prior = {*probed.sites, *map(_jacobian_name, probed.sites)}
    zero = jnp.zeros((), draw.dtype)
    return (
        sum(
            (
                value
                for name, value in values.items()
                if name not in prior and trace[name]["is_observed"]
            ),
            start=zero,
        ),
        sum((value for name, value in values.items() if name in prior), start=zero),
    )


def _constrain(free: dict[str, Array], site: dict[str, Any]) -> Array | None:
    """Return the constrained value of a latent site, and leave its log-Jacobian in a factor; None
    for other sites."""
    import numpyro
    from numpyro.distributions import biject_to
    from numpyro.distributions.util import sum_rightmost

    if site["type"] != "sample" or site["name"] not in free:
        return None
    value, transform = free[site["name"]], biject_to(site["fn"].support)
    # `scan` calls the site once a step, while its latent value is the whole sequence.
    step = site["infer"].get("_scan_current_index")
    shift = transform.codomain.event_dim - transform.domain.event_dim
    if step is not None and jnp.ndim(value) > len(site["fn"].shape()) - shift:
        value = value[step]  # inside a scan: one item of the sequence
    constrained = transform(value)
    jacobian = transform.log_abs_det_jacobian(value, constrained)
    # Some transforms give a log-Jacobian for each entry, others one for each event; the factor has
    # one for each batch entry.
    extra = jnp.ndim(jacobian) - jnp.ndim(constrained) + len(site["fn"].event_shape)
    numpyro.factor(_jacobian_name(site["name"]), sum_rightmost(jacobian, extra))
    return constrained


def _jacobian_name(site: str) -> str:
    return f"_{site}_log_jacobian"


def _prior_draw(probed: ProbedModel, model: Callable[..., Any], key: jax.Array) -> Array:
    from numpyro import handlers
    from numpyro.distributions import biject_to

    trace = handlers.trace(handlers.seed(model, rng_seed=key)).get_trace(
        *probed.args, **probed.kwargs
    )
    # In the order of the probed sites: `ravel_pytree` would sort them by name, and coordinates
    # would not match the labels.
    parts = [
        biject_to(trace[site]["fn"].support).inv(trace[site]["value"]) for site in probed.sites
    ]
    return jnp.concatenate([jnp.ravel(value) for value in parts]).astype(jnp.result_type(float))


def sample_power_posteriors(
    model: Callable[..., Any] | None = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    temperatures: object = None,
    reference: "xarray.DataTree | None" = None,
    key: jax.Array,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    init: object = None,
    kernel: HamiltonianKernel | None = None,
    exchange: int | None = None,
    log_likelihood: Callable[[jax.Array], jax.Array] | None = None,
    log_prior: Callable[[jax.Array], jax.Array] | None = None,
    sample_prior: Callable[[jax.Array], jax.Array] | None = None,
    names: tuple[str, ...] | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> "xarray.DataTree":
    """Sample p(x|y, t) ∝ p(y|x)ᵗ p(x) at every temperature of a ladder, all rungs and chains in one
    program.

    The processes of ``jax.distributed`` share the chains, and each gets the whole ladder
    (docs/processes.md).

    From a `reference` the ladder starts at a normal q fitted to earlier draws, and not at the
    prior: its rungs are ∝ q(x)¹⁻ᵗ(p(y|x)p(x))ᵗ. q is near the posterior, so that a few rungs
    usually do, and it is normalised and drawn exactly, so that it adds no error.
    `log_likelihood_total` then is log p(y|x) + log p(x) − log q(x), and `gradient_log_prior` that
    of log q; `log_evidence` needs to know nothing else. Surjanovic, Syed, Bouchard-Côté and
    Campbell (2022, arXiv:2206.00080), section 3.

    Parameters
    ----------
    model, args, kwargs : a NumPyro program with proper priors, and its arguments. Observed sites
        and factors are the likelihood.
    temperatures : inverse temperatures, increasing from 0 (the prior) to 1, such as
        ``power_ladder(31, 5)``. From a reference a number of rungs, with equal shares of the
        barrier between it and the posterior, is enough; by default 2Λ + 1 for a barrier of Λ, three
        to 32.
    reference : a posterior or warm-up trace of the same model, to whose draws q is fitted; None for
        the prior.
    key : a JAX key.
    num_warmup, num_samples, num_chains : iterations to adapt in and to keep, per chain and rung,
        and chains per rung.
    init : constrained values by site, or (d,) unconstrained: a start for the cold rungs, near the
        posterior mode.
    kernel : `HamiltonianKernel`: NUTS by default, or HMC of fixed length; forward-mode
        differentiation.
    exchange : iterations between swaps of neighbouring rungs (population MCMC); None for
        independent rungs.
    log_likelihood, log_prior, sample_prior, names : instead of a model: (d,) → scalar log p(y|x),
        normalised over y; (d,) → scalar log p(x), log-Jacobian included; key → one prior draw (d,),
        not needed with a reference; d labels. All on the unconstrained space.
    progress : show a progress bar, on a terminal only.
    checkpoint : a file, written during the run and read if it exists, by process 0. A resumed run
        gives the same draws as an uninterrupted one, and may have another number of processes.

    Returns
    -------
    DataTree : every variable of `posterior` has dims (chain, draw, temperature, ...), so that
        ``az.summary`` diagnoses every rung; `sample_stats` holds the log likelihood and the
        gradients of log likelihood and log prior apart, steps, acceptance and divergences, step
        sizes and swap rates. A rung that diverges or does not move shows there and raises no error.

    Raises
    ------
    ValueError : an improper prior, a discrete site, no likelihood, a bad ladder or setting, no
        finite start, or a checkpoint that is damaged or of another run; a reference of other
        parameters, or whose draws have no covariance of full rank.
    """
    where = "sample_power_posteriors"
    check_key(where, key)
    # The caller's key, before it is split for the rungs, so that the attribute reproduces the run.
    seed = str(np.asarray(jax.random.key_data(key)).tolist())
    if reference is None:
        target, probed = resolve_target(
            where, model, args, kwargs, log_likelihood, log_prior, sample_prior, names
        )
        normal = None
    else:
        target, probed, points = _resolve_with_reference(
            where, reference, model, args, kwargs, log_likelihood, log_prior, sample_prior, names
        )
        normal = in_float64(_fit_reference)(
            where, target, points, forward_mode=kernel is not None and kernel.forward_mode
        )
        target = reference_target(target, normal)
        key, place_key = jax.random.split(key)
        if temperatures is None or isinstance(temperatures, int):
            cure = "Leave it out, or pass a number of rungs."
            check_count(
                where,
                "temperatures",
                temperatures,
                cure,
                least=2,
                most=evidence.MAX_RUNGS,
                optional=True,
            )
            temperatures = in_float64(place_rungs)(
                where, target, normal, points.reshape(-1, points.shape[-1]), place_key, temperatures
            )
    sampled = sample_ladder(
        target,
        temperatures,
        key=key,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        kernel=kernel,
        init=_unconstrained_init(where, probed, init),
        exchange=exchange,
        progress=progress,
        checkpoint=checkpoint,
    )
    settings = {
        "exchange": exchange or 0,
        "num_warmup": num_warmup,
        "kernel": repr(kernel or HamiltonianKernel()),
    }
    settings |= {"seed": seed}
    return _tree(sampled, probed, settings, normal)


def _resolve_with_reference(
    where: str,
    reference: "xarray.DataTree",
    model: Callable[..., Any] | None,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    log_likelihood: Callable[[jax.Array], jax.Array] | None,
    log_prior: Callable[[jax.Array], jax.Array] | None,
    sample_prior: Callable[[jax.Array], jax.Array] | None,
    names: tuple[str, ...] | None,
) -> tuple[evidence.TemperedTarget, ProbedModel | None, Float[np.ndarray, "c n d"]]:
    """Return the target, whose prior need not be sampled, and the unconstrained draws of the
    reference."""
    check_tree_type(where, reference)
    if is_ladder(reference):
        cure = "Pass its last rung, mcmcpost.trees.posterior_rung(tree)."
        raise InputError(where, "`reference` to be a trace of the posterior", "a ladder", cure)
    refuse_weights(where, reference)
    if model is not None:
        target, probed = resolve_target(
            where, model, args, kwargs, log_likelihood, log_prior, sample_prior, names
        )
        assert probed is not None
        draws = probed.draws_of(reference)
    else:
        draws, labels = stored_draws(where, reference) or posterior_as_draws(where, reference)
        sampler = sample_prior or _no_prior_draw(draws.shape[-1])
        target, probed = resolve_target(
            where,
            None,
            args,
            kwargs,
            log_likelihood,
            log_prior,
            sampler,
            labels if names is None else names,
        )
    return target, probed, evidence.check_draws(where, draws, target.names)[0]


def _fit_reference(
    where: str,
    target: evidence.TemperedTarget,
    points: Float[np.ndarray, "c n d"],
    *,
    forward_mode: bool,
) -> evidence.Normal:
    """Return the normal of posterior draws, controlled by the scores at `NUM_SCORED` of them where
    that brings it nearer."""
    every = points.reshape(-1, points.shape[-1])
    rows = every[:: -(-len(every) // NUM_SCORED)]
    at = evaluate_at(target, rows, forward_mode=forward_mode)
    scores = np.asarray(at.gradient_log_likelihood) + np.asarray(at.gradient_log_prior)
    normal = evidence.fit_normal(where, every, target.names)
    if not np.isfinite(scores).all():
        return normal
    controlled = control_normal(evidence.fit_normal(where, rows, target.names), rows, scores)
    return likelier(normal, controlled, rows, median_ess(points))


def _no_prior_draw(size: int) -> Callable[[jax.Array], Array]:
    """Return what stands for the draw of a prior that is not sampled, and tells the number of
    parameters."""
    return lambda _: jnp.zeros(size)


def add_rungs(
    tree: "xarray.DataTree",
    temperatures: object,
    model: Callable[..., Any] | None = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    key: jax.Array,
    num_warmup: int = 500,
    kernel: HamiltonianKernel | None = None,
    log_likelihood: Callable[[jax.Array], jax.Array] | None = None,
    log_prior: Callable[[jax.Array], jax.Array] | None = None,
    sample_prior: Callable[[jax.Array], jax.Array] | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> "xarray.DataTree":
    """Return a new tree with rungs at further temperatures; the draws of the others are untouched.

    The round trips of replica exchange on the old ladder, and its evidence, are not kept.

    Parameters
    ----------
    tree : a ladder from the prior or from a reference; it is not changed.
    temperatures : new inverse temperatures inside (0, 1).
    model, args, kwargs, log_likelihood, log_prior, sample_prior : what the ladder was sampled from.
    key, num_warmup, kernel, progress, checkpoint : as in `sample_power_posteriors`.
    """
    import xarray

    check_key("add_rungs", key)
    ladder = read_ladder(tree)
    # A ladder from a reference never draws from the prior; a sampler is needed for its shape only.
    if ladder.reference is not None and model is None and sample_prior is None:
        sample_prior = _no_prior_draw(len(ladder.names))
    target, probed = resolve_target(
        "add_rungs", model, args, kwargs, log_likelihood, log_prior, sample_prior, ladder.names
    )
    # The same reference: rungs of another normal would be of another path.
    if ladder.reference is not None:
        target = reference_target(target, ladder.reference)
    sampled = sample_more_rungs(
        ladder,
        target,
        temperatures,
        key=key,
        num_warmup=num_warmup,
        kernel=kernel,
        progress=progress,
        checkpoint=checkpoint,
    )
    more = _tree(sampled, probed, {}, ladder.reference)
    # An evidence that stayed would be of fewer rungs than the ladder beside it.
    new = tree.drop_nodes(evidence.EVIDENCE_GROUP, errors="ignore").copy()
    for group in ("posterior", GROUP):
        if group not in tree.children:
            continue
        old, added = tree[group].to_dataset(), more[group].to_dataset()
        added = added[[name for name in added.data_vars if name in old.data_vars]]
        # `concat` joins coordinates outer: chains counted from one in a file, and from zero here,
        # would be twice as many, half of them NaN.
        added = added.assign_coords(
            {dim: old[dim] for dim in ("chain", "draw") if dim in old.coords}
        )
        # "minimal": xarray otherwise gives a temperature to every variable that has none.
        joined = xarray.concat(
            [old, added], dim=TEMPERATURE, data_vars="minimal", coords="minimal", compat="override"
        )
        joined = joined.sortby(TEMPERATURE)
        joined.attrs = dict(old.attrs)
        for name in ("gradient_evaluations", "lockstep_evaluations"):
            if name in old.attrs:
                joined.attrs[name] = int(old.attrs[name]) + int(more[group].attrs[name])
        # of another ladder, as are the swaps of rungs that were neighbours
        joined.attrs.pop(ROUND_TRIPS, None)
        new[group] = xarray.DataTree(joined)
    return new


def adaptive_ladder(tree: "xarray.DataTree", size: int) -> np.ndarray:
    """Return `size` temperatures with equal contributions to the discretisation error, from a pilot
    ladder.

    Parameters
    ----------
    tree : a pilot run of `sample_power_posteriors`; a short one on ``power_ladder(9)`` will do.
    size : number of temperatures.
    """
    return evidence.equidistributed_ladder(read_ladder(tree), size)


def barrier_ladder(tree: "xarray.DataTree", size: int | None = None) -> np.ndarray:
    """Return temperatures with equal shares of the communication barrier, from a pilot ladder.

    Such rungs exchange states best, and neighbours overlap alike (`mcmcpost.evidence.Barrier`).
    `adaptive_ladder` makes the error of the trapezoid rule smallest instead.

    Parameters
    ----------
    tree : a pilot run of `sample_power_posteriors`, from the prior or from a reference.
    size : number of temperatures; by default 2Λ + 1 for a barrier of Λ, three to 32, so that half
        of the swaps succeed.

    Raises
    ------
    ValueError : the log likelihood does not vary, or the barrier cannot place so many rungs.
    """
    ladder = read_ladder(tree)
    # MBAR's Newton steps end at a tolerance of 1e-11, which single precision cannot reach.
    return in_float64(evidence.ladder_barrier)(ladder).place(size)


def resolve_target(
    where: str,
    model: Callable[..., Any] | None,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    log_likelihood: Callable[[jax.Array], jax.Array] | None,
    log_prior: Callable[[jax.Array], jax.Array] | None,
    sample_prior: Callable[[jax.Array], jax.Array] | None,
    names: tuple[str, ...] | None,
) -> tuple[evidence.TemperedTarget, ProbedModel | None]:
    """Return the target of a NumPyro model, or of functions on the unconstrained space."""
    functions = {
        "log_likelihood": log_likelihood,
        "log_prior": log_prior,
        "sample_prior": sample_prior,
    }
    given = [name for name, function in functions.items() if function is not None]
    if model is not None and not given:
        check_kind(where, "args", args, tuple, "Write (y,) for one argument.")
        check_kind(where, "kwargs", kwargs, (Mapping, None), "Pass a dict of arguments by name.")
        return tempered_target(where, model, args, dict(kwargs or {}))
    if model is not None or log_likelihood is None or log_prior is None or sample_prior is None:
        got = ", ".join(([] if model is None else ["a model"]) + given) or "neither"
        raise InputError(
            where,
            f"a NumPyro model, or all of {', '.join(functions)}",
            got,
            "Pass one or the other.",
        )
    check_function(where, "log_likelihood", log_likelihood, 1, "Its argument is one draw (d,).")
    check_function(where, "log_prior", log_prior, 1, "Its argument is one draw (d,).")
    check_function(where, "sample_prior", sample_prior, 1, "Its argument is a key.")

    def prior_draw(key: jax.Array) -> Array:
        draw = sample_prior(key)
        if not isinstance(draw, jax.Array | np.ndarray) or draw.ndim != 1 or not draw.size:
            got = getattr(draw, "shape", type(draw).__name__)
            raise InputError(where, "`sample_prior` to return one draw (d,)", got, "Flatten it.")
        return jnp.asarray(draw)

    # By shape alone: the sampler of the prior may be dear, and its draw is not needed yet.
    (d,) = in_either_precision(lambda: jax.eval_shape(prior_draw, jax.random.key(0))).shape
    for name, function in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
        check_scalar(where, function, d, name)
    labels = as_labels(where, names, d)
    check_names(where, dict.fromkeys(labels, ()), DIMS)
    return evidence.TemperedTarget(
        hashable(log_likelihood), hashable(log_prior), hashable(sample_prior), labels
    ), None


def _unconstrained_init(where: str, probed: ProbedModel | None, init: object) -> object:
    if not isinstance(init, Mapping):
        return init
    if probed is None:
        raise InputTypeError(
            where, "`init` to be an array (d,)", "a mapping", "Sites belong to a model."
        )
    # One chain of one draw, as `unconstrain` reads sites of traces.
    sites = {
        name: as_real(where, f"init[{name!r}]", value).astype(float)[None, None]
        for name, value in init.items()
    }
    return probed.unconstrain(sites)[0][0, 0]


def _tree(
    sampled: SampledLadder,
    probed: ProbedModel | None,
    settings: Mapping[str, Any],
    reference: evidence.Normal | None,
) -> "xarray.DataTree":
    # Functions know no constrained values: their ladders have no `posterior`, only the
    # unconstrained draws.
    values = None if probed is None else probed.constrain(sampled.ladder.draws)
    return ladder_to_datatree(
        sampled.ladder._replace(reference=reference), values, sampled.stats, settings
    )
