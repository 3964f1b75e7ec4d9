"""Stein weights: one weighted average of the draws serves every expectation."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from mcmcpost._checks import fault
from mcmcpost._types import Status
from mcmcpost.control._basis import exponents_of_degree, polynomial_basis
from mcmcpost.control._control_functional import DENSE_LIMIT, ControlFunctional, SemiExact
from mcmcpost.control._kernel import mean_diagonal, normalised_gram
from mcmcpost.control._kernel_iterative import solve_iterative
from mcmcpost.control._problem import make_problem
from mcmcpost.control._tuning import REML, GridREML, tune
from mcmcpost.control._zero_variance import DRAWS_PER_FEATURE
from mcmcpost.linops import Tile
from mcmcpost.linsolve import Cholesky, ConjugateGradients, factorise
from mcmcpost.stein import SteinTile
from mcmcpost.trace import Trace


class SteinWeights(NamedTuple):
    """A linear rule on the draws of one trace.

    values : (c, n) weights, summing to one; they may be negative.
    variance_factor : wᵀAw, the variance of the weighted mean of an integrand of unit amplitude under the kernel's own
        model; never a substitute for the cross-fitted error, as integrands need not lie in the kernel's space.
    status : ``controlled``, ``nugget_raised`` or ``not_converged``.
    info : JSON-able facts: kernel, nugget, cost.
    """

    values: Float[np.ndarray, "c n"]
    variance_factor: float
    status: Status
    info: dict[str, Any]

    def mean(self, values: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
        """Return Σ w f over chains and draws, for values (c, n) or (c, n, ...)."""
        array = np.asarray(values, float)
        if array.shape[:2] != self.values.shape:
            raise ValueError(
                fault(
                    "SteinWeights.mean",
                    f"values with leading shape {self.values.shape}",
                    array.shape,
                    "Weights belong to one trace; evaluate the integrand at its draws.",
                )
            )
        return np.tensordot(self.values, array, axes=2)


def solve_stein_weights(
    trace: Trace,
    values: Float[np.ndarray, "c n p"],
    method: ControlFunctional | SemiExact,
    *,
    moments: tuple[Any, Any] | None = None,
) -> SteinWeights:
    """Return w = A⁻¹H(HᵀA⁻¹H)⁻¹e₁, which is A⁻¹1/(1ᵀA⁻¹1) for a control functional (MATH.md section 5).

    The `values` (c, n, p) tune the kernel where the method leaves it open, all in one group; the weights do not depend
    on them otherwise. Copies of a state share its weight.
    """
    if method.max_states is not None:
        cure = "Thin the trace, or use ConjugateGradients."
        raise ValueError(fault("stein_weights", "a method without `max_states`", method.max_states, cure))
    spread = np.ptp(values, axis=(0, 1))
    usable = values[..., np.isfinite(values).all(axis=(0, 1)) & (spread > 0)]
    problem = make_problem(trace, usable if usable.shape[-1] else trace.draws, moments=moments)
    degree = method.degree if isinstance(method, SemiExact) else 0
    basis = polynomial_basis(problem, exponents_of_degree(problem.draws.shape[1], degree))
    needed = DRAWS_PER_FEATURE * basis.design.shape[1]
    if problem.num_states < needed:
        raise ValueError(
            fault(
                "stein_weights",
                f"at least {needed:.0f} distinct draws for {method.label}",
                problem.num_states,
                "Use a lower degree, ControlFunctional(), or more draws.",
            )
        )
    solver = method.solver or (Cholesky() if problem.num_states <= DENSE_LIMIT else ConjugateGradients())
    tuning: REML | GridREML | None = method.tuning
    if tuning is None and method.kernel is None:
        tuning = GridREML(max_groups=1)
    elif isinstance(tuning, GridREML):
        tuning = dataclasses.replace(tuning, max_groups=1)
    setting = tune(problem, basis, method.kernel, method.nugget, tuning, solver)[0]

    status = Status.CONTROLLED
    tile = SteinTile(setting.kernel)
    rows = (jnp.asarray(problem.draws), jnp.asarray(problem.scores))
    data = rows, jnp.asarray(basis.design), jnp.asarray(problem.counts)
    nugget = jnp.asarray(setting.nugget)
    match solver:
        case Cholesky():
            rule, factor, used = _dense_rule(tile, nugget, *data)
            steps = 0
            if method.nugget is not None and float(used) > method.nugget * 1.001:
                status = Status.NUGGET_RAISED
        case ConjugateGradients():
            rule, factor, products, converged = solve_iterative(tile, nugget, solver, *data)
            steps, used = int(products), nugget
            if not bool(converged):
                status = Status.NOT_CONVERGED
    per_state = np.asarray(rule) / np.maximum(problem.counts, 1.0)
    weights = per_state[problem.inverse].reshape(trace.draws.shape[:2])
    info = setting.describe() | {"method": method.label, "nugget_used": float(used), "num_products": steps}
    return SteinWeights(weights, float(factor), status, info)


@eqx.filter_jit
def _dense_rule(
    tile: Tile,
    nugget: Float[Array, ""],
    rows: PyTree,
    basis: Float[Array, "m q"],
    counts: Float[Array, " m"],
) -> tuple[Float[Array, " m"], Float[Array, ""], Float[Array, ""]]:
    gram, noise = normalised_gram(tile, rows, counts, mean_diagonal(tile, rows, counts))
    factor = factorise(gram, noise, nugget)
    q, r = jnp.linalg.qr(solve_triangular(factor.lower, basis, lower=True))
    first = jnp.zeros(r.shape[0], r.dtype).at[0].set(1.0)
    along = solve_triangular(r, first, lower=False, trans=1)
    rule = solve_triangular(factor.lower, q @ along, lower=True, trans=1)
    return rule, along @ along, factor.nugget
