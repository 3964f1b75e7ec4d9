"""A NumPyro program with prior and likelihood kept apart, on the unconstrained space."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mcmcpost._checks import fault
from mcmcpost.evidence import TemperedTarget
from mcmcpost.io._model import Model, probe_model


def tempered_target(
    where: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[TemperedTarget, Model]:
    """Return prior and likelihood of a NumPyro program, and its latent sites.

    Latent sites with the log-Jacobian of their transformation are the prior; observed sites and factors, scaled and
    masked as their handlers say, are the likelihood.

    Parameters
    ----------
    where : the public function that speaks in error messages.
    model, args, kwargs : a NumPyro program and its arguments.

    Raises
    ------
    ValueError : a latent site is discrete, has an improper prior, or is scaled or masked; nothing is observed.
    """
    probed = probe_model(where, model, args, kwargs)
    check_evidence_exists(probed)
    target = TemperedTarget(
        log_likelihood=lambda draw: _terms(probed, draw)[0],
        log_prior=lambda draw: _terms(probed, draw)[1],
        sample_prior=lambda key: _prior_draw(probed, model, key),
        names=probed.names,
    )
    return target, probed


def _terms(probed: Model, draw: Array) -> tuple[Array, Array]:
    """Return the log likelihood and the log prior, log-Jacobian included, of one unconstrained draw."""
    from numpyro import handlers
    from numpyro.infer.util import compute_log_probs

    free = probed.unravel(draw)
    substituted = handlers.substitute(probed.model, substitute_fn=lambda site: _constrain(free, site))
    values, trace = compute_log_probs(substituted, probed.args, probed.kwargs, {})
    prior = {*probed.sites, *map(_jacobian_name, probed.sites)}
    zero = jnp.zeros((), draw.dtype)
    return (
        sum((value for name, value in values.items() if name not in prior and trace[name]["is_observed"]), start=zero),
        sum((value for name, value in values.items() if name in prior), start=zero),
    )


def _constrain(free: dict[str, Array], site: dict[str, Any]) -> Array | None:
    """Return the constrained value of a latent site, and leave its log-Jacobian in a factor; None for other sites."""
    import numpyro
    from numpyro.distributions import biject_to
    from numpyro.distributions.util import sum_rightmost

    if site["type"] != "sample" or site["name"] not in free:
        return None
    value, transform = free[site["name"]], biject_to(site["fn"].support)
    step = site["infer"].get("_scan_current_index")
    shift = transform.codomain.event_dim - transform.domain.event_dim
    if step is not None and jnp.ndim(value) > len(site["fn"].shape()) - shift:
        value = value[step]  # inside a scan: one item of the sequence
    constrained = transform(value)
    jacobian = transform.log_abs_det_jacobian(value, constrained)
    extra = jnp.ndim(jacobian) - jnp.ndim(constrained) + len(site["fn"].event_shape)
    numpyro.factor(_jacobian_name(site["name"]), sum_rightmost(jacobian, extra))
    return constrained


def _jacobian_name(site: str) -> str:
    return f"_{site}_log_jacobian"


def _prior_draw(probed: Model, model: Callable[..., Any], key: jax.Array) -> Array:
    from numpyro import handlers
    from numpyro.distributions import biject_to

    trace = handlers.trace(handlers.seed(model, rng_seed=key)).get_trace(*probed.args, **probed.kwargs)
    parts = [biject_to(trace[site]["fn"].support).inv(trace[site]["value"]) for site in probed.sites]
    return jnp.concatenate([jnp.ravel(part) for part in parts]).astype(jnp.result_type(float))


def check_evidence_exists(probed: Model) -> None:
    """Refuse priors that are improper or not normalised, and a model without a likelihood."""
    from numpyro import handlers
    from numpyro.infer import init_to_sample

    improper: list[str] = []
    altered: list[str] = []
    observed: list[str] = []

    def run() -> Array:
        # Improper priors cannot be sampled; init_to_sample can start them.
        started = handlers.substitute(probed.model, substitute_fn=init_to_sample)
        for name, site in handlers.trace(started).get_trace(*probed.args, **probed.kwargs).items():
            if name in probed.sites:
                kinds = [type(layer).__name__ for layer in _layers(site["fn"])]
                improper.extend([name] * ("ImproperUniform" in kinds))
                altered.extend([name] * ("MaskedDistribution" in kinds or not _is_one(site["scale"])))
            elif site["type"] == "sample" and site["is_observed"]:
                observed.append(name)
        return jnp.zeros(())

    with jax.enable_x64(True):
        jax.eval_shape(run)
    if improper:
        raise ValueError(
            fault(
                probed.where,
                "a normalised prior for every latent site",
                f"an improper prior on {', '.join(improper)}",
                "An improper prior has no evidence: give a proper one, as Normal(0, 10).",
            )
        )
    if altered:
        raise ValueError(
            fault(
                probed.where,
                "latent sites without scale or mask",
                f"a scaled, subsampled or masked {', '.join(altered)}",
                "Such a prior is not normalised, so there is no evidence: scale and mask observed sites only.",
            )
        )
    if not observed:
        raise ValueError(
            fault(probed.where, "observed sites", "no likelihood", "Give the data as arguments: obs=y, or a factor.")
        )


def _layers(distribution: Any) -> Iterator[Any]:
    while distribution is not None:
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def _is_one(scale: Any) -> bool:
    if isinstance(scale, jax.core.Tracer):
        return False
    return scale is None or bool((np.asarray(scale) == 1).all())
