"""Public functions on the draws as a weighted sample: Stein weights, Stein thinning, the Stein
discrepancy."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mcmcpost.control import (
    ControlFunctional,
    SemiExact,
    SteinWeights,
    check_weights,
    solve_stein_weights,
    standard_coordinates,
)
from mcmcpost.core.arguments import check_count, check_kind
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64
from mcmcpost.sample import check_gate, of_moving
from mcmcpost.scores import ScoreError, where_not_finite
from mcmcpost.stein import (
    AbstractKernel,
    InverseMultiquadric,
    stein_discrepancy,
    stein_thin,
)
from mcmcpost.trace import Trace, without_fixed
from mcmcpost.trees import integrand_values, read_trace

if TYPE_CHECKING:
    import xarray


def stein_weights(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: ControlFunctional | SemiExact | None = None,
    *,
    standardize: tuple[Any, Any] | None = None,
    initial: SteinWeights | None = None,
    allow_bad_scores: bool = False,
) -> SteinWeights:
    """Compute one set of weights that serves every later expectation: Σ w f over chains and draws.

    w = A⁻¹1/(1ᵀA⁻¹1) for ``ControlFunctional()``, the default; polynomial features are integrated
    exactly too for ``SemiExact()``. `integrands` only tune the kernel. Store the weights with
    ``weights.to_datatree(tree)``. They give no valid standard error: for that, use `expectation`.
    Beyond 6,000 states conjugate gradients stop once a product lowers the variance of the rule by
    less than a thousandth; `initial` are weights of the same draws, under a kernel or temperature
    nearby, to start them from.
    """
    check_kind(
        "stein_weights",
        "method",
        method,
        (ControlFunctional, SemiExact, None),
        "Such as SemiExact().",
    )
    every = read_trace(tree)
    # Weights have no error in which bad scores could show, and no plain mean to fall back on.
    check = check_gate(tree, every, allow_bad_scores)
    if check.failed and not allow_bad_scores:
        raise InputError(
            "stein_weights",
            "scores that satisfy Stein's identity",
            check.message,
            "See allow_bad_scores.",
        )
    trace, values = without_fixed(every), integrand_values(tree, integrands).values
    return in_float64(solve_stein_weights)(
        trace,
        values,
        method or ControlFunctional(),
        moments=of_moving(every, standardize),
        initial=initial,
    )


class ThinnedDraws(NamedTuple):
    """Draws in the order in which Stein thinning chose them, with repeats.

    chain, draw : (size,) positions. discrepancy : (size,) kernel Stein discrepancy after each.
    """

    chain: np.ndarray
    draw: np.ndarray
    discrepancy: np.ndarray


def stein_thinning(
    tree: "xarray.DataTree",
    size: int,
    kernel: AbstractKernel | None = None,
    *,
    allow_bad_scores: bool = False,
) -> ThinnedDraws:
    """Choose `size` draws greedily, so that their equally weighted average has a small Stein
    discrepancy.

    Riabiz et al. (2022, doi:10.1111/rssb.12503), Algorithm 1. It removes burn-in and compresses a
    trace: `size` is at most the number of draws. Where every draw is kept, `stein_weights` has
    smaller errors. `kernel` as for `kernel_stein_discrepancy`.
    """
    where = "stein_thinning"
    check_kind(where, "kernel", kernel, (AbstractKernel, None), "Such as InverseMultiquadric().")
    check_count(where, "size", size, "Choose some draws.")
    every = read_trace(tree)
    check_gate(tree, every, allow_bad_scores)
    trace = without_fixed(every)
    # The first check is of the kind, before a trace is read; how many there are is known only now.
    check_count(
        where,
        "size",
        size,
        "Choose at most as many as there are draws.",
        most=trace.draws[..., 0].size,
    )
    thinned = in_float64(_thin)(trace, kernel, size)
    chain, draw = np.divmod(thinned.indices, trace.draws.shape[1])
    return ThinnedDraws(chain, draw, thinned.discrepancy)


def _thin(trace: Trace, kernel: AbstractKernel | None, size: int) -> Any:
    return stein_thin(kernel or _default_discrepancy_kernel(trace), *_standardised(trace), size)


def _default_discrepancy_kernel(trace: Trace) -> AbstractKernel:
    # Standardised draws are some √(2d) apart: with a lengthscale of one every pair would be far in
    # many dimensions.
    return InverseMultiquadric(np.sqrt(trace.draws.shape[-1]))


def _standardised(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d) in standard coordinates."""
    d = trace.draws.shape[-1]
    mean, lower = standard_coordinates(trace.draws)
    # z = L⁻¹(x − μ), whose score is Lᵀs (docs/mathematics.md section 2, Coordinates).
    z = np.linalg.solve(lower, (trace.draws.reshape(-1, d) - mean).T).T
    return z, trace.scores.reshape(-1, d) @ lower


def kernel_stein_discrepancy(
    tree: "xarray.DataTree",
    kernel: AbstractKernel | None = None,
    *,
    weights: SteinWeights | None = None,
) -> float:
    """Return the kernel Stein discrepancy between the draws and the target that the scores
    describe.

    √(Σᵢⱼ wᵢwⱼ k₀(xᵢ, xⱼ)), with equal weights by default, in standardised coordinates. Gorham and
    Mackey (2017, arXiv:1703.01717). Zero only for a perfect rule; memory is O(block·n).

    Parameters
    ----------
    kernel : on standardised coordinates; by default the inverse multiquadric (1 +
        ‖z−z'‖²/d)^(−1/2), which controls weak convergence.
    weights : Stein weights of this trace.

    Raises
    ------
    ScoreError : scores that are not finite. ValueError, TypeError : weights of another trace; no
        kernel.
    """
    where = "kernel_stein_discrepancy"
    check_kind(where, "kernel", kernel, (AbstractKernel, None), "Such as InverseMultiquadric().")
    trace = without_fixed(read_trace(tree))
    if not np.isfinite(trace.scores).all():
        raise ScoreError(where_not_finite(trace))
    if weights is not None:
        check_weights(where, "weights", weights, trace)
    return float(
        in_float64(_discrepancy)(
            trace, kernel, None if weights is None else weights.values.reshape(-1)
        )
    )


def _discrepancy(trace: Trace, kernel: AbstractKernel | None, weights: np.ndarray | None) -> Any:
    return stein_discrepancy(
        kernel or _default_discrepancy_kernel(trace), *_standardised(trace), weights=weights
    )
