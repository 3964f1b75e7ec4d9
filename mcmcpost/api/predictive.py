"""The public function of predictive accuracy: controlled log predictive densities of the observations."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mcmcpost._core.arguments import check_kind
from mcmcpost._core.errors import InputError
from mcmcpost._core.precision import in_float64
from mcmcpost._core.status import TRUSTED, Status
from mcmcpost._core.weights import tail_draws
from mcmcpost.api.derived import estimate_options
from mcmcpost.api.question import pose
from mcmcpost.control import AbstractControlVariate, Auto, Estimate, Smooth, estimate_derived
from mcmcpost.io import Integrands, named_values
from mcmcpost.io.convention import check_tree_type, oriented

if TYPE_CHECKING:
    import xarray

LOG_LIKELIHOOD = "log_likelihood"

WITHOUT_KERNELS = Auto(kernel=False)


def elpd(
    tree: "xarray.DataTree",
    var_name: str | None = None,
    method: str | AbstractControlVariate = WITHOUT_KERNELS,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate the expected log predictive density by leaving one observation out, with its Monte Carlo error.

    With ℓᵢ the log likelihood of observation i, log p(yᵢ | y₋ᵢ) = −log E[exp(−ℓᵢ)] under the posterior (Gelfand, Dey
    and Chang 1992), and its density under the posterior of all observations is log E[exp ℓᵢ]. Both are functions of
    expectations, to which control variates apply. ``az.loo`` estimates the first by Pareto-smoothed weights (Vehtari,
    Gelman and Gabry 2017, doi:10.1007/s11222-016-9696-4); its `se` is not a Monte Carlo error but that of the
    observations as a sample.

    Parameters
    ----------
    tree : a trace with scores and a group `log_likelihood`, a value for every draw and observation.
    var_name : the variable of that group; may be left out where there is one.
    method : by default `Auto` without kernels, which take seconds for each observation.
    standardize, folds, allow_bad_scores, fallback : as in `expectation`.

    Returns
    -------
    Estimate : of ``elpd_loo``, ``lppd`` and ``p_loo``, their difference, for all n observations together, then for each
        one of ``elpd_loo(y[i])`` and ``lppd(y[i])``. An observation with so much influence that exp(−ℓᵢ) has a heavy
        tail has the status ``heavy_tail``: take that of ``az.loo``, or fit the model without it. Memory is that of
        (2n)² numbers.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`; no log likelihood, or several and none is named.
    """
    where = "elpd"
    check_kind(where, "var_name", var_name, (str, None), "It is a variable of the group `log_likelihood`.")
    check_tree_type(where, tree)
    found = _log_likelihood(tree, var_name)
    values = found.values
    best, worst = values.max(axis=(0, 1)), values.min(axis=(0, 1))
    with np.errstate(invalid="ignore"):
        scaled = np.exp(values - best), np.exp(worst - values)
    densities = {f"p({name})": scaled[0][..., i] for i, name in enumerate(found.names)}
    densities |= {f"1/p({name})": scaled[1][..., i] for i, name in enumerate(found.names)}
    question = pose(tree, densities, method, allow_bad_scores, weighted=True)
    n = len(found.names)
    own, other = np.arange(n), np.arange(n) + n
    parts = [
        Smooth(("elpd_loo",), other[None], _minus_log_product),
        Smooth(("lppd",), own[None], _log_product),
        Smooth(("p_loo",), np.concatenate([own, other])[None], _log_product),
        Smooth(tuple(f"elpd_loo({name})" for name in found.names), other[:, None], _minus_log_product),
        Smooth(tuple(f"lppd({name})" for name in found.names), own[:, None], _log_product),
    ]
    estimate = in_float64(estimate_derived)(
        question.trace,
        question.names,
        question.values,
        parts,
        question.method,
        events=np.zeros(2 * n, bool),  # a log likelihood that never changes is that of a masked observation
        **estimate_options(question, standardize, folds, fallback),
    )
    with np.errstate(invalid="ignore"):
        shift = np.concatenate([[worst.sum(), best.sum(), (best - worst).sum()], worst, best])
    moved = {name: getattr(estimate, name) + shift for name in ("mean", "mean_plain", "mean_crossfit")}
    alone = [_few_decide(one) for one in scaled[::-1]]  # of 1/p and of p
    heavy = np.concatenate([[alone[0].any(), alone[1].any(), np.any(alone)], *alone])
    status = tuple(Status.HEAVY_TAIL if h and s in TRUSTED else s for h, s in zip(heavy, estimate.status, strict=True))
    return estimate._replace(**moved, residuals=estimate.residuals + shift, status=status)


def _log_product(means: Float[Array, " r"]) -> Float[Array, ""]:
    return jnp.log(means).sum()


def _minus_log_product(means: Float[Array, " r"]) -> Float[Array, ""]:
    return -_log_product(means)


def _few_decide(values: Float[np.ndarray, "c n p"]) -> Bool[np.ndarray, " p"]:
    """Return where all but a few draws are zero beside the largest: no tail is left whose k̂ could be told."""
    return (values > 0).sum(axis=(0, 1)) < tail_draws(values.shape[0] * values.shape[1])


def _log_likelihood(tree: "xarray.DataTree", var_name: str | None) -> Integrands:
    """Return the log likelihoods of the observations, (c, n, p)."""
    group = tree.children.get(LOG_LIKELIHOOD)
    names = [] if group is None else [str(name) for name in group.data_vars]
    if not names or group is None:
        cure = "Keep it when sampling: from_numpyro(mcmc, log_likelihood=True), pm.compute_log_likelihood(trace)."
        raise InputError("elpd", "a group `log_likelihood` with a variable", ", ".join(tree.children) or "none", cure)
    if var_name is None and len(names) > 1:
        raise InputError("elpd", "`var_name` where there are several variables", ", ".join(names), "Name one.")
    name = names[0] if var_name is None else var_name
    if name not in names:
        raise InputError("elpd", f"`var_name` among {', '.join(names)}", name, "Name one of them.")
    return named_values(oriented("elpd", group.to_dataset()[name]))
