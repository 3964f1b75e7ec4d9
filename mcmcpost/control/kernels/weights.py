"""Stein weights: one weighted average of the draws serves every expectation."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from mcmcpost.control.features.families import exponents_of_degree, polynomial_basis
from mcmcpost.control.kernels.choice import REML, GridREML, tune
from mcmcpost.control.kernels.functional import ControlFunctional, SemiExact, solver_of
from mcmcpost.control.kernels.systems import mean_diagonal, normalised_gram, solve_iterative
from mcmcpost.control.linear import DRAWS_PER_FEATURE
from mcmcpost.control.problem import Options, Problem, make_problem
from mcmcpost.core.arguments import as_real, check_kind, check_trace_type
from mcmcpost.core.errors import InputError, Status
from mcmcpost.core.precision import beyond_rounding, in_units, units_of
from mcmcpost.core.runtime import json_able, number_of_draws
from mcmcpost.solve import Cholesky, ConjugateGradients, factorise
from mcmcpost.stein import SteinTile
from mcmcpost.stein.products import Tile
from mcmcpost.trace import Trace, fingerprint, moving

if TYPE_CHECKING:
    import xarray


AMPLITUDE_STATES = 1_000
"""Largest number of states, evenly spaced, in the dense system that gives the amplitude of an
integrand."""

GAIN = 1e-3
"""Relative fall of the variance of the rule by one product below which the default solver stops."""


class AmplitudeSubset(NamedTuple):
    """A dense system on some states.

    draws : (s,) positions among the draws of all chains. lower : (s, s) Cholesky factor of A. basis
        : (s, q).
    """

    draws: Int[np.ndarray, " s"]
    lower: Float[np.ndarray, "s s"]
    basis: Float[np.ndarray, "s q"]


class SteinWeights(NamedTuple):
    """A linear rule on the draws of one trace.

    values : (c, n) weights, summing to one; they may be negative.
    variance_factor : wᵀAw, the variance of the weighted mean of an integrand of unit amplitude
        under the kernel's own model; never a substitute for the cross-fitted error, as integrands
        need not lie in the kernel's space.
    status : ``controlled``, ``nugget_raised`` or ``not_converged``.
    info : JSON-able facts: kernel, nugget, cost.
    subset : where `model_error` takes amplitudes from.
    trace : the `fingerprint` of the trace.
    """

    values: Float[np.ndarray, "c n"]
    variance_factor: float
    status: Status
    info: dict[str, Any]
    subset: AmplitudeSubset
    trace: int

    def __repr__(self) -> str:
        """Return the counts: the arrays of a tuple fill screens."""
        chains, draws = self.values.shape
        return f"SteinWeights of {number_of_draws(chains, draws)}, {self.status}"

    def mean(self, values: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
        """Return Σ w f over chains and draws, for values (c, n) or (c, n, ...)."""
        return np.tensordot(self.values, self._checked("mean", values), axes=2)

    def model_error(self, values: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
        """Return √(a·wᵀAw), the kernel model's own error of each mean, computational uncertainty
        included.

        NaN where an integrand is not finite at some draw. The amplitude a of an integrand is its
        restricted maximum likelihood on at most 1,000 evenly spaced states: the lower bound that an
        unfinished solve gives is overconfident (docs/mathematics.md section 5). An integrand
        outside the kernel's space has a larger error than this says; `expectation` reports the one
        that holds.
        """
        array = self._checked("model_error", values)
        rows = array.reshape(-1, *array.shape[2:])[self.subset.draws]
        flat = rows.reshape(len(rows), -1)
        # At every draw: the subset of states may miss the one that is not finite.
        finite = np.isfinite(array).all(axis=(0, 1)).ravel()
        flat = np.where(finite, flat, 0.0)
        basis = scipy.linalg.solve_triangular(self.subset.lower, self.subset.basis, lower=True)
        white = scipy.linalg.solve_triangular(self.subset.lower, flat, lower=True)
        # (f − Hγ) in white coordinates: its square over s − q is fᵀPf/(s − q), as in `amplitude`.
        residual = white - basis @ np.linalg.lstsq(basis, white)[0]
        amplitude = np.sum(residual**2, axis=0) / (len(flat) - basis.shape[1])
        return np.where(finite, np.sqrt(amplitude * self.variance_factor), np.nan).reshape(
            rows.shape[1:]
        )

    def to_datatree(self, tree: "xarray.DataTree") -> "xarray.DataTree":
        """Return a new tree: `tree` with ``sample_stats.stein_weight`` (chain, draw), whose sum is
        one.

        Any expectation is then ``(tree.sample_stats.stein_weight * f).sum()``. Attrs: kernel,
        nugget and status.
        """
        import xarray

        where, cure = (
            "SteinWeights.to_datatree",
            "Pass the trace that the weights were computed for.",
        )
        check_trace_type(where, tree)
        stats = (
            tree["sample_stats"].to_dataset()
            if "sample_stats" in tree.children
            else xarray.Dataset()
        )
        if "unconstrained_draw" not in stats or set(stats.sizes) < {"chain", "draw"}:
            raise InputError(where, "`tree` with the draws of the weights", "none", cure)
        draws = (
            stats["unconstrained_draw"]
            .transpose("chain", "draw", ...)
            .values.astype(float, copy=False)
        )
        # Fixed coordinates are no part of the trace that was fingerprinted.
        moves = moving(draws)
        if fingerprint(draws if moves.all() else draws[..., moves]) != self.trace:
            raise InputError(where, "`tree` with the draws of the weights", "others", cure)
        new = tree.copy()
        stats["stein_weight"] = xarray.DataArray(
            self.values,
            dims=("chain", "draw"),
            attrs={
                "status": str(self.status),
                "variance_factor": self.variance_factor,
                "info": json.dumps(json_able(self.info), allow_nan=False),
            },
        )
        new["sample_stats"] = xarray.DataTree(stats)
        return new

    def _checked(
        self, name: str, values: Float[np.ndarray, "c n *p"]
    ) -> Float[np.ndarray, "c n *p"]:
        array = as_real(f"SteinWeights.{name}", "values", values).astype(float, copy=False)
        if array.shape[:2] != self.values.shape:
            raise InputError(
                f"SteinWeights.{name}",
                f"`values` with leading shape {self.values.shape}",
                array.shape,
                "Weights belong to one trace; evaluate the integrand at its draws.",
            )
        return array


def solve_stein_weights(
    trace: Trace,
    values: Float[np.ndarray, "c n p"],
    method: ControlFunctional | SemiExact,
    *,
    moments: tuple[Any, Any] | None = None,
    initial: SteinWeights | None = None,
) -> SteinWeights:
    """Return w = A⁻¹H(HᵀA⁻¹H)⁻¹e₁, which is A⁻¹1/(1ᵀA⁻¹1) for a control functional
    (docs/mathematics.md section 5).

    The `values` (c, n, p) tune the kernel where the method leaves it open, all in one group; the
    weights do not depend on them otherwise. Copies of a state share its weight. `initial` are
    weights of the same draws under a kernel or a temperature nearby, from which conjugate gradients
    start.
    """
    check_kind(
        "stein_weights",
        "method",
        method,
        (ControlFunctional, SemiExact),
        "Such as ControlFunctional().",
    )
    check_kind(
        "stein_weights",
        "initial",
        initial,
        (SteinWeights, None),
        "Pass what stein_weights returned.",
    )
    Options(standardize=moments).check(trace)
    if method.max_states is not None:
        cure = "Thin the trace, or use ConjugateGradients."
        raise InputError("stein_weights", "a method without `max_states`", method.max_states, cure)
    values = in_units(values, units_of(values))
    usable = values[..., beyond_rounding(values)]
    # Without an integrand that varies the draws themselves tune the kernel.
    problem = make_problem(trace, usable if usable.shape[-1] else trace.draws, moments=moments)
    degree = method.degree if isinstance(method, SemiExact) else 0
    basis = polynomial_basis(problem, exponents_of_degree(problem.draws.shape[1], degree))
    needed = DRAWS_PER_FEATURE * basis.shape[1]
    if problem.num_states < needed:
        raise InputError(
            "stein_weights",
            f"at least {needed:.0f} distinct draws for {method.label}",
            problem.num_states,
            "Use more draws, or a lower degree.",
        )
    solver = solver_of(method, problem.num_states, ConjugateGradients(gain=GAIN))
    start = None if initial is None else _start(initial, problem, basis.shape[1], trace)
    tuning: REML | GridREML | None = method.tuning
    if tuning is None and method.kernel is None:
        # One rule for all integrands needs one kernel: the grid's best for all together, polished.
        tuning = GridREML(polish=True, max_steps=20, shared=True)
    elif isinstance(tuning, GridREML):
        tuning = dataclasses.replace(tuning, shared=True)
    setting = tune(problem, basis, method.kernel, method.nugget, tuning, solver)[0]

    status = Status.CONTROLLED
    tile = SteinTile(setting.kernel)
    data: tuple[tuple[Array, Array], Array, Array]
    data = jax.device_put(((problem.draws, problem.scores), basis, problem.counts))
    nugget = jnp.asarray(setting.nugget)
    match solver:
        case Cholesky():
            rule, factor, used = _dense_rule(tile, nugget, *data)
            steps = 0
            if method.nugget is not None and float(used) > method.nugget * 1.001:
                status = Status.NUGGET_RAISED
        case ConjugateGradients():
            rule, factor, products, converged = solve_iterative(tile, nugget, solver, *data, start)
            steps, used = int(products), nugget
            if not bool(converged):
                status = Status.NOT_CONVERGED
    # Copies share the weight of their state; padding has weight zero and no copies.
    per_state = np.asarray(rule) / np.maximum(problem.counts, 1.0)
    weights = per_state[problem.inverse].reshape(trace.draws.shape[:2])
    info = setting.describe() | {
        "method": method.label,
        "nugget_used": float(used),
        "num_products": steps,
    }
    subset = _amplitude_subset(tile, float(used), problem, basis)
    return SteinWeights(weights, float(factor), status, info, subset, fingerprint(trace.draws))


def _start(initial: SteinWeights, problem: Problem, size: int, trace: Trace) -> Float[Array, " m"]:
    """Return the weight of each state under `initial`."""
    # A rule of polynomial features has q constraints, which one vector of weights cannot start.
    if size > 1:
        cure = "Weights give no first guess where there are polynomial features."
        raise InputError("stein_weights", "`initial` with a ControlFunctional", "a SemiExact", cure)
    check_weights("stein_weights", "initial", initial, trace)
    return jnp.zeros(len(problem.counts)).at[problem.inverse].add(initial.values.reshape(-1))


def check_weights(where: str, name: str, weights: object, trace: Trace) -> None:
    """Refuse what are no Stein weights of the draws of `trace`."""
    check_kind(where, name, weights, SteinWeights, "Pass what stein_weights returned.")
    assert isinstance(weights, SteinWeights)
    shape = trace.draws.shape[:2]
    if weights.values.shape != shape or weights.trace != fingerprint(trace.draws):
        got = f"those of other draws, of shape {weights.values.shape}"
        raise InputError(
            where, f"`{name}` of the draws of this trace, of shape {shape}", got, "Compute its own."
        )


def _amplitude_subset(
    tile: Tile, nugget: float, problem: Problem, design: np.ndarray
) -> AmplitudeSubset:
    """Return the dense system on evenly spaced states, on the scale of all of them."""
    size = min(AMPLITUDE_STATES, problem.num_states)
    states = np.linspace(0, problem.num_states - 1, size).astype(int)
    first = np.empty(len(problem.counts), int)
    # Backwards, so that the first draw of each state is what remains.
    first[problem.inverse[::-1]] = np.arange(len(problem.inverse))[::-1]
    *points, counts = jax.device_put((problem.draws, problem.scores, problem.counts))
    # The scale is that of all states, so that the nugget means the same on the subset.
    scale = mean_diagonal(tile, tuple(points), counts)
    rows = jax.device_put((problem.draws[states], problem.scores[states]))
    gram, noise = normalised_gram(tile, rows, counts[states], scale)
    factor = factorise(gram, noise, jnp.asarray(nugget))
    return AmplitudeSubset(first[states], np.asarray(factor.lower), design[states])


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
    # L⁻¹H = QR: w = L⁻ᵀQR⁻ᵀe₁, and wᵀAw = |R⁻ᵀe₁|².
    q, r = jnp.linalg.qr(solve_triangular(factor.lower, basis, lower=True))
    first = jnp.zeros(r.shape[0], r.dtype).at[0].set(1.0)
    along = solve_triangular(r, first, lower=False, trans=1)
    rule = solve_triangular(factor.lower, q @ along, lower=True, trans=1)
    return rule, along @ along, factor.nugget
