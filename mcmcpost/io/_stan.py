"""Scores of Stan programs, through the models of PyStan 3 and of BridgeStan."""

from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._checks import fault
from mcmcpost._versions import version_of
from mcmcpost.io._posterior import posterior_sites
from mcmcpost.io._scored import Scored, scored_one_by_one

if TYPE_CHECKING:
    import xarray

_CURE = "Keep every parameter when sampling, and pass the model, with the data, that was sampled."


def pystan_scores(where: str, tree: "xarray.DataTree", model: Any) -> Scored:
    """Return the scores of a ``stan.model.Model``, by its ``grad_log_prob``, which includes the log-Jacobian.

    PyStan answers each question through a server of its own, about ten milliseconds a draw. Coordinates are labelled by
    the parameters where those are as many as the unconstrained ones, else ``unconstrained[i]``.

    Raises
    ------
    ValueError : Stan cannot read its parameters from the draws.
    """
    sites = {name: site for name, site in posterior_sites(tree).items() if name in model.param_names}
    if not sites:
        raise ValueError(
            fault(
                where, f"some of {', '.join(model.param_names)} among the draws", "none", "Pass the model's own trace."
            )
        )
    lead = next(iter(sites.values())).shape[:2]
    flat = {name: site.reshape(-1, *site.shape[2:]) for name, site in sites.items()}
    try:
        rows = [
            model.unconstrain_pars({name: site[i].tolist() for name, site in flat.items()})
            for i in range(lead[0] * lead[1])
        ]
    except RuntimeError as error:
        raise ValueError(
            fault(where, "the parameters of the Stan program among the draws", str(error)[:300], _CURE)
        ) from error
    draws = np.array(rows, dtype=np.float64).reshape(*lead, -1)
    size = draws.shape[-1]
    constrained = model.constrain_pars(rows[0], include_tparams=False, include_gqs=False)
    labels = tuple(model.constrained_param_names[:size])
    names = labels if len(constrained) == size else tuple(f"unconstrained[{i}]" for i in range(size))
    return scored_one_by_one(
        draws,
        names,
        lambda row: float(model.log_prob(row.tolist(), adjust_transform=True)),
        lambda row: np.array(model.grad_log_prob(row.tolist()), dtype=np.float64),
        {"pystan_version": version_of("pystan") or "unknown"},
    )


def bridgestan_scores(where: str, tree: "xarray.DataTree", model: Any) -> Scored:
    """Return the scores of a ``bridgestan.StanModel``, by ``log_density_gradient(jacobian=True)``.

    Coordinates are labelled by ``model.param_unc_names()``. A draw at which the program throws has no finite density.

    Raises
    ------
    ValueError : a parameter is not among the draws, or is of another shape there.
    """
    sites = posterior_sites(tree)
    columns = [_element(where, sites, name) for name in model.param_names()]
    theta = np.stack(columns, axis=-1)
    rows = [model.param_unconstrain(np.ascontiguousarray(row)) for row in theta.reshape(-1, theta.shape[-1])]

    def logdensity(row: np.ndarray) -> float:
        try:
            return float(model.log_density(np.ascontiguousarray(row), propto=True, jacobian=True))
        except RuntimeError:
            return -np.inf

    return scored_one_by_one(
        np.array(rows, dtype=np.float64).reshape(*theta.shape[:2], -1),
        tuple(model.param_unc_names()),
        logdensity,
        lambda row: model.log_density_gradient(np.ascontiguousarray(row), propto=True, jacobian=True)[1],
        {"bridgestan_version": version_of("bridgestan") or "unknown"},
    )


def _element(where: str, sites: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return the draws (c, n) of one element, named ``theta.1.2`` and counted from one as in Stan."""
    site, *index = name.split(".")
    if site not in sites:
        raise ValueError(fault(where, f"`{site}` among the draws", ", ".join(sites), _CURE))
    values, place = sites[site], tuple(int(i) - 1 for i in index)
    if len(place) != values.ndim - 2 or any(i >= n for i, n in zip(place, values.shape[2:], strict=True)):
        raise ValueError(fault(where, f"`{site}` with an element {name}", values.shape, _CURE))
    key: tuple[Any, ...] = (slice(None), slice(None), *place)
    return values[key].astype(np.float64)
