"""Optimisers that infer from gradients by Gaussian processes.

Search directions are inferred by a gradient Gaussian process from the last points and gradients.
The interfaces are those of ``scipy.optimize.minimize`` and of optax.
"""

import abc
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int
from scipy.optimize import OptimizeResult, line_search

from mcmcpost.core.arguments import (
    as_float64,
    check_count,
    check_flags,
    check_function,
    check_kind,
    check_number,
)
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import in_float64
from mcmcpost.gp.gradient_operator import GradientGram, ScalarProfile, gradient_gram, scalar_profile
from mcmcpost.gp.gradient_posterior import DiagonalPlusLowRank, posterior_hessian, posterior_mean
from mcmcpost.gp.gradient_solvers import ProjectedCholesky
from mcmcpost.stein import AbstractKernel, Matern52

CURVATURE = 1e-10
"""A pair of step and gradient change is used where its cosine exceeds this."""


class Memory(NamedTuple):
    """The last m + 1 evaluations, newest last; only the last `filled` rows hold any. points,
    gradients : (m + 1, d)."""

    points: Float[Array, "m d"]
    gradients: Float[Array, "m d"]
    filled: Int[Array, ""]


class Secants(NamedTuple):
    """Steps S and gradient changes Y (m, d), zero where unusable; usable : (m,); scale : γ =
    sᵀy/yᵀy of the newest."""

    S: Float[Array, "p d"]
    Y: Float[Array, "p d"]
    usable: Bool[Array, " p"]
    scale: Float[Array, ""]


def empty_memory(pairs: int, x: Float[Array, " d"]) -> Memory:
    """Return an empty memory for so many pairs."""
    zeros = jnp.zeros((pairs + 1, x.shape[0]), x.dtype)
    return Memory(zeros, zeros, jnp.zeros((), int))


def remember(memory: Memory, x: Float[Array, " d"], gradient: Float[Array, " d"]) -> Memory:
    """Return the memory with one more evaluation, the oldest forgotten."""
    # Fixed shapes, newest last: the compiled step is the same while the memory fills.
    points = jnp.concatenate([memory.points[1:], x[None]])
    gradients = jnp.concatenate([memory.gradients[1:], gradient[None]])
    return Memory(points, gradients, jnp.minimum(memory.filled + 1, len(points)))


def held(memory: Memory) -> Bool[Array, " m"]:
    """Return which rows hold an evaluation."""
    return jnp.arange(len(memory.points)) >= len(memory.points) - memory.filled


def recent(memory: Memory, pairs: int) -> Memory:
    """Return the newest `pairs` + 1 evaluations."""
    points, gradients = memory.points[-pairs - 1 :], memory.gradients[-pairs - 1 :]
    return Memory(points, gradients, jnp.minimum(memory.filled, len(points)))


def secants(memory: Memory) -> Secants:
    """Return the pairs of positive curvature."""
    both = held(memory)[:-1]
    S = jnp.where(both[:, None], jnp.diff(memory.points, axis=0), 0)
    Y = jnp.where(both[:, None], jnp.diff(memory.gradients, axis=0), 0)
    along = jnp.sum(S * Y, 1)
    # Strong Wolfe steps have positive curvature; what fails here is rounding or a step that was
    # cut.
    usable = along > CURVATURE * jnp.linalg.norm(S, axis=1) * jnp.linalg.norm(Y, axis=1)
    S, Y = jnp.where(usable[:, None], S, 0), jnp.where(usable[:, None], Y, 0)
    newest = len(S) - 1 - jnp.argmax(usable[::-1])
    any_usable = usable[newest]
    # γ = sᵀy/yᵀy, the usual scale of L-BFGS; one before the first pair.
    scale = jnp.where(
        any_usable, along[newest] / jnp.where(any_usable, jnp.sum(Y[newest] ** 2), 1), 1
    )
    return Secants(S, Y, usable, scale)


def inverse_hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS inverse Hessian in compact form, γI + [S γY] C [S γY]ᵀ.

    Source: Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices (Math. Program.
    1994), Theorem 2.2.
    """
    gamma, free = pairs.scale, jnp.where(pairs.usable, 0.0, 1.0)
    # A pair that is not usable is a row of zeros: one on its diagonal keeps the triangle
    # invertible.
    along = pairs.S @ pairs.Y.T + jnp.diag(free)
    inverse = jnp.linalg.inv(jnp.triu(along))
    corner = inverse.T @ (jnp.diag(jnp.diagonal(along)) + gamma * pairs.Y @ pairs.Y.T) @ inverse
    core = jnp.block([[corner, -inverse.T], [-inverse, jnp.zeros_like(corner)]])
    factor = jnp.concatenate([pairs.S, gamma * pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], gamma), factor, core)


def hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS Hessian in compact form, σI − [σS Y] M⁻¹ [σS Y]ᵀ, σ = 1/γ (the same source,
    Theorem 2.3)."""
    sigma, free = 1 / pairs.scale, jnp.diag(jnp.where(pairs.usable, 0.0, 1.0))
    along = pairs.S @ pairs.Y.T
    lower, diagonal = jnp.tril(along, -1), jnp.diag(jnp.diagonal(along))
    # The same for Theorem 2.3: the sign of the lower block is that of −D.
    middle = jnp.block([[sigma * pairs.S @ pairs.S.T + free, lower], [lower.T, -diagonal - free]])
    factor = jnp.concatenate([sigma * pairs.S, pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], sigma), factor, -jnp.linalg.inv(middle))


def scaled_identity(scale: Float[Array, ""], d: int) -> DiagonalPlusLowRank:
    """Return scale·I in d dimensions."""
    return DiagonalPlusLowRank(
        jnp.full((d,), scale), jnp.zeros((d, 1), scale.dtype), jnp.zeros((1, 1), scale.dtype)
    )


def apply(matrix: DiagonalPlusLowRank, V: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Return the matrix times each row of V, traced by JAX."""
    factor = jnp.asarray(matrix.factor)
    return jnp.asarray(matrix.diagonal)[None] * V + ((V @ factor) @ matrix.core) @ factor.T


NUGGET = 1e-10
"""Relative to the largest slope of κ; evaluations are exact, so it covers rounding in the
factorisation only."""

FLOOR = 1e-3
"""Eigenvalues of an inferred Hessian are kept above this multiple of its prior scale."""


class AbstractMethod(eqx.Module):
    """Turns a memory into a descent direction.

    memory : pairs of step and gradient change that are kept, as in L-BFGS.
    kernel : a stationary one; its lengthscale is in units of the last step (of the last gradient
        change for `GPX`). None is Matern52(0.8).
    window : how many of the pairs the process is conditioned on; older ones enter the quasi-Newton
        matrix only.
    quasi_newton : whether the prior mean is the L-BFGS matrix of the memory, so that the process
        models the difference from it. Otherwise the prior mean is γI; the paper has another γ.
    """

    memory: int = 10
    window: int = 2
    kernel: AbstractKernel | None = None
    quasi_newton: bool = True

    def __check_init__(self) -> None:
        name = type(self).__name__
        check_count(name, "memory", self.memory, "Keep two or more.", most=100_000)
        check_count(name, "window", self.window, "Keep two or more.", most=100_000)
        check_kind(name, "kernel", self.kernel, (AbstractKernel, None), "Such as Matern52(0.8).")
        check_flags(name, quasi_newton=self.quasi_newton)
        profile = self.profile()
        if not profile.stationary:
            kind = type(self.kernel).__name__
            raise InputError(
                name, "a stationary `kernel`", kind, "Use `solve_linear` for quadratics."
            )
        # Stationary kernels have one.
        shape = np.shape(profile.kernel.lengthscale)  # type: ignore[union-attr]
        if shape:
            cure = "Its inputs are in units of the last step, as Matern52(0.8)."
            raise InputError(name, "a `kernel` with one lengthscale", f"shape {shape}", cure)

    def profile(self) -> ScalarProfile:
        """Return the kernel's profile."""
        return scalar_profile(
            type(self).__name__, Matern52(0.8) if self.kernel is None else self.kernel
        )

    @abc.abstractmethod
    def direction(self, memory: Memory) -> Float[Array, " d"]:
        """Return a descent direction at the newest point; the steepest one while there are no
        pairs."""


class GPH(AbstractMethod):
    """Hessian inference: d = −|H̄|⁻¹g with the posterior mean H̄ of the Hessian at the current
    point.

    H̄ is diagonal plus low rank (the corrected (12) of the paper), so its eigenvalues come from a
    small problem; their absolute values, floored, make d a descent direction wherever H̄ is
    indefinite.

    Source: de Roos, Gessner and Hennig (ICML 2021), section 4.1.1 and Algorithm 1.
    """

    def direction(self, memory: Memory) -> Float[Array, " d"]:
        pairs = secants(memory)
        d = memory.points.shape[1]
        prior = hessian(pairs) if self.quasi_newton else scaled_identity(1 / pairs.scale, d)
        # Older pairs are in the prior mean already; the process learns what it misses near the last
        # ones.
        memory = recent(memory, self.window)
        steps, changes = _differences(memory)
        unit = _last(steps)
        gram, white = _white_gram(self.profile(), memory, steps / unit)
        # The process sees x/unit in white coordinates: gradients are times unit/white there,
        # Hessians divided by its square.
        weights = _weights(gram, memory, (changes - apply(prior, steps)) * (unit / white))
        here = jnp.zeros((1, d), steps.dtype)
        learned = posterior_hessian(self.profile(), gram.points, weights, here)
        change = (white / unit) ** 2
        k = prior.core.shape[0]
        factor = jnp.concatenate([prior.factor, learned.factor[0]], axis=1)
        core = jnp.zeros((factor.shape[1],) * 2, factor.dtype).at[:k, :k].set(prior.core)
        core = core.at[k:, k:].set(change * learned.core[0])
        whole = DiagonalPlusLowRank(prior.diagonal + change * learned.diagonal[0], factor, core)
        # The floor is relative to σ = 1/γ: a curvature near zero would send the step to infinity.
        return -_absolute_solve(whole, memory.gradients[-1], FLOOR / pairs.scale)


class GPX(AbstractMethod):
    """Optimum inference: the process maps gradients to points, and d leads to its prediction for a
    zero gradient.

    Where that is no descent direction, d is the direction of the prior mean: −γg or the L-BFGS
    direction.

    Source: de Roos, Gessner and Hennig (ICML 2021), section 4.1.2, (13) with its signs corrected,
    and Algorithm 1.
    """

    def direction(self, memory: Memory) -> Float[Array, " d"]:
        pairs = secants(memory)
        g = memory.gradients[-1]
        prior = (
            inverse_hessian(pairs)
            if self.quasi_newton
            else scaled_identity(pairs.scale, g.shape[0])
        )
        memory = recent(memory, self.window)
        steps, changes = _differences(memory)
        unit = _last(changes)
        gram, white = _white_gram(self.profile(), memory, changes / unit)
        weights = _weights(gram, memory, steps - apply(prior, changes))
        # Inputs are gradients less the newest one, so that −g stands for a gradient of zero.
        goal = -g[None] / unit * white
        learned = posterior_mean(self.profile(), gram.points, weights, goal)[0, 1:]
        safe = -apply(prior, g[None])[0]
        d = safe + learned
        # A cosine, so that the test has no units; at saddle points the prediction may point uphill.
        downhill = jnp.sum(d * g) < -FLOOR * jnp.linalg.norm(d) * jnp.linalg.norm(g)
        return jnp.where(downhill & jnp.all(jnp.isfinite(d)), d, safe)


def _differences(memory: Memory) -> tuple[Float[Array, "m d"], Float[Array, "m d"]]:
    """Return points and gradients relative to the newest, zero where nothing is held."""
    rows = held(memory)[:, None]
    points, gradients = memory.points - memory.points[-1:], memory.gradients - memory.gradients[-1:]
    return jnp.where(rows, points, 0), jnp.where(rows, gradients, 0)


def _last(differences: Float[Array, "m d"]) -> Float[Array, ""]:
    size = jnp.linalg.norm(differences[-2])
    return jnp.where(size > 0, size, 1)


def _white_gram(
    profile: ScalarProfile, memory: Memory, inputs: Float[Array, "m d"]
) -> tuple[GradientGram, Float[Array, ""]]:
    """Return the system at the inputs, in which rows that hold nothing stand apart, and the white
    scale 1/ℓ."""
    white = profile.root(inputs)[0]
    gram = gradient_gram(profile, inputs * white, jnp.zeros((), inputs.dtype))
    both = held(memory)[:, None] & held(memory)[None, :]
    # Rows that hold nothing get a block of their own on the diagonal: with a right-hand side of
    # zeros they have zero weights.
    slope = gram.terms.first[-1, -1]
    terms = gram.terms._replace(
        first=jnp.where(both, gram.terms.first, slope * jnp.eye(len(inputs), dtype=inputs.dtype)),
        second=jnp.where(both, gram.terms.second, 0),
    )
    return GradientGram(
        gram.points, terms, NUGGET * slope, gram.stationary, gram.with_values
    ), white


def _weights(gram: GradientGram, memory: Memory, right: Float[Array, "m d"]) -> Float[Array, "m d"]:
    return ProjectedCholesky().solve(gram, jnp.where(held(memory)[:, None], right, 0)).value


def _absolute_solve(
    matrix: DiagonalPlusLowRank, g: Float[Array, " d"], floor: Float[Array, ""]
) -> Float[Array, " d"]:
    """Return |H|⁻¹g for H of a constant diagonal, eigenvalues at least `floor` in size."""
    # H is level·I outside the span of its factor: QR leaves an eigenproblem of the factor's width.
    basis, triangle = jnp.linalg.qr(matrix.factor)
    level = matrix.diagonal[0]
    values, vectors = jnp.linalg.eigh(triangle @ matrix.core @ triangle.T)
    within = basis @ vectors
    along = within.T @ g
    outside = (g - within @ along) / jnp.maximum(jnp.abs(level), floor)
    return within @ (along / jnp.maximum(jnp.abs(level + values), floor)) + outside


MESSAGES = {
    0: "The gradient is within its tolerance.",
    1: "The budget of iterations is spent.",
    2: "The line search found no step that satisfies the strong Wolfe conditions.",
    3: "The function or its gradient is not finite at the starting point.",
}


def minimize(
    fun: Callable[..., Any],
    x0: object,
    *,
    jac: Callable[..., Any] | bool = True,
    method: AbstractMethod | None = None,
    gtol: float = 1e-5,
    max_iter: int = 1000,
    args: tuple[Any, ...] = (),
    callback: Callable[[OptimizeResult], None] | None = None,
) -> OptimizeResult:
    """Minimise a smooth function by a GP optimiser with SciPy's strong-Wolfe line search.

    Parameters
    ----------
    fun : x (d,) ↦ value, or (value, gradient) where `jac` is True.
    x0 : (d,) start.
    jac : the gradient, or True.
    method : `GPX` or `GPH`; None is ``GPX()``.
    gtol : on the largest component of the gradient.
    callback : called after each iteration with the result so far.

    Returns
    -------
    OptimizeResult with x, fun, jac, nit, success, status, message, and nfev = njev, the joint
    evaluations of value and gradient. Trial points that are not finite count as +∞, which the line
    search backs away from.

    Raises
    ------
    TypeError, ValueError : a start or a gradient of the wrong shape, no gradient, a method that is
        none.
    """
    check_kind("minimize", "method", method, (AbstractMethod, type(None)), "Such as GPX().")
    check_number("minimize", "gtol", gtol, "Use 1e-5.", inside="[0, inf)")
    check_count("minimize", "max_iter", max_iter, "Use 1,000.", least=0)
    check_kind("minimize", "args", args, tuple, "Write (y,) for one argument.")
    check_function("minimize", "fun", fun, 1 + len(args), "Its first argument is the point (d,).")
    if not isinstance(jac, bool):
        check_function("minimize", "jac", jac, 1 + len(args), "Pass the gradient, or True.")
    check_function(
        "minimize", "callback", callback, 1, "It is given the result so far.", optional=True
    )
    start = as_float64("minimize", "x0", x0, "d")
    if not len(start) or not np.isfinite(start).all():
        raise InputError(
            "minimize", "`x0` finite, of at least one entry", start, "Start elsewhere."
        )
    solver = GPX() if method is None else method
    evaluate = _Evaluations(fun, jac, args)
    x = start
    value, gradient = evaluate(x)
    # so that the first trial step has length one, as in SciPy's BFGS
    before = value + np.linalg.norm(gradient) / 2
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return _result(x, value, gradient, 0, 3, evaluate)
    memory = _start(solver, x)
    for iteration in range(max_iter):
        if np.abs(gradient).max() <= gtol:
            return _result(x, value, gradient, iteration, 0, evaluate)
        memory, direction = _advance(solver, memory, x, gradient)
        # The line search needs a descent direction; steepest descent always is one.
        if not np.isfinite(direction).all() or direction @ gradient >= 0:
            direction = -gradient
        # One line search revisits its points, the next one only its start.
        evaluate.forget(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of failing, which the status reports
            old = before if iteration == 0 else None
            step, *_ = line_search(
                evaluate.value, evaluate.gradient, x, direction, gradient, value, old, maxiter=20
            )
        if step is None:
            return _result(x, value, gradient, iteration, 2, evaluate)
        x = x + step * direction
        value, gradient = evaluate(x)
        if callback is not None:
            callback(_result(x, value, gradient, iteration + 1, 1, evaluate))
    status = 0 if np.abs(gradient).max() <= gtol else 1
    return _result(x, value, gradient, max_iter, status, evaluate)


class _Evaluations:
    """Joint evaluations of value and gradient, each point of the current line search once."""

    def __init__(
        self, fun: Callable[..., Any], jac: Callable[..., Any] | bool, args: tuple[Any, ...]
    ) -> None:
        self.fun, self.jac, self.args, self.count = fun, jac, args, 0
        self.known: dict[bytes, tuple[float, Float[np.ndarray, " d"]]] = {}

    def __call__(self, x: Float[np.ndarray, " d"]) -> tuple[float, Float[np.ndarray, " d"]]:
        name = x.tobytes()
        if name not in self.known:
            self.count += 1
            both = self.fun(x, *self.args)
            if callable(self.jac):
                both = both, self.jac(x, *self.args)
            elif not (isinstance(both, tuple) and len(both) == 2):
                cure = "Pass jac=, or a function such as jax.value_and_grad(f)."
                raise InputTypeError(
                    "minimize", "`fun` to return (value, gradient)", type(both).__name__, cure
                )
            value = float(as_float64("minimize", "fun(x)", both[0], ""))
            gradient = as_float64("minimize", "gradient", both[1], "d")
            if gradient.shape != x.shape:
                raise InputError(
                    "minimize", f"a gradient of shape {x.shape}", gradient.shape, "Return it flat."
                )
            defined = np.isfinite(value) and np.isfinite(gradient).all()
            self.known[name] = (value if defined else np.inf, gradient)
        return self.known[name]

    def value(self, x: Float[np.ndarray, " d"]) -> float:
        return self(x)[0]

    def gradient(self, x: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        return self(x)[1]

    def forget(self, x: Float[np.ndarray, " d"]) -> None:
        """Forget every point but this one."""
        self.known = {x.tobytes(): self(x)}


def _result(
    x: Float[np.ndarray, " d"],
    value: float,
    gradient: Float[np.ndarray, " d"],
    iterations: int,
    status: int,
    evaluate: _Evaluations,
) -> OptimizeResult:
    return OptimizeResult(
        x=x,
        fun=value,
        jac=gradient,
        nit=iterations,
        nfev=evaluate.count,
        njev=evaluate.count,
        success=status == 0,
        status=status,
        message=MESSAGES[status],
    )


@in_float64
def _start(method: AbstractMethod, x: Float[np.ndarray, " d"]) -> Memory:
    return empty_memory(method.memory, jnp.asarray(x))


@in_float64
def _advance(
    method: AbstractMethod,
    memory: Memory,
    x: Float[np.ndarray, " d"],
    gradient: Float[np.ndarray, " d"],
) -> tuple[Memory, Any]:
    return _compiled_advance(method, *jax.tree.map(jnp.asarray, (memory, x, gradient)))


@eqx.filter_jit
def _compiled_advance(
    method: AbstractMethod, memory: Memory, x: Float[Array, " d"], gradient: Float[Array, " d"]
) -> tuple[Memory, Any]:
    memory = remember(memory, x, gradient)
    return memory, method.direction(memory)


def scale_by_gp(method: AbstractMethod) -> optax.GradientTransformationExtraArgs:
    """Return the transformation that turns gradients into the method's descent direction.

    To be chained with a line search: ``optax.chain(scale_by_gp(GPX()),
    optax.scale_by_zoom_linesearch(15, initial_guess_strategy="one"))``. `update` needs the
    parameters. Parameters are any pytree of one dtype.
    """

    check_kind("scale_by_gp", "method", method, AbstractMethod, "Such as GPX().")

    def init(params: Any) -> Memory:
        return empty_memory(method.memory, ravel_pytree(params)[0])

    def update(updates: Any, state: Memory, params: Any = None, **extra: Any) -> tuple[Any, Memory]:
        del extra
        if params is None:
            raise InputError(
                "scale_by_gp: expected the parameters in `update`, got None. Pass `params`."
            )
        g, unravel = ravel_pytree(updates)
        state = remember(state, ravel_pytree(params)[0], g)
        direction = method.direction(state)
        # Inside `jit` nothing can be raised: a direction that is not finite becomes the steepest
        # one.
        return unravel(jnp.where(jnp.all(jnp.isfinite(direction)), direction, -g)), state

    return optax.GradientTransformationExtraArgs(init, update)


def gp_optimizer(
    method: AbstractMethod, *, max_linesearch_steps: int = 20
) -> optax.GradientTransformationExtraArgs:
    """Return the method with optax's zoom line search (strong Wolfe); `update` takes value, grad
    and value_fn."""
    check_count("gp_optimizer", "max_linesearch_steps", max_linesearch_steps, "Use 20.")
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps, initial_guess_strategy="one")
    return optax.chain(scale_by_gp(method), search)
