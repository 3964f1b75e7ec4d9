"""GP optimisers with the interfaces of ``scipy.optimize.minimize`` and of optax."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.optimize import OptimizeResult, line_search

from mcmcpost._core.arguments import as_float64, check_count, check_function, check_kind, check_number
from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.precision import in_float64
from mcmcpost.optimize.directions import GPX, AbstractMethod, Memory, empty_memory, remember

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
    args: tuple = (),
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
    OptimizeResult with x, fun, jac, nit, success, status, message, and nfev = njev, the joint evaluations of value and
    gradient. Trial points that are not finite count as +∞, which the line search backs away from.

    Raises
    ------
    TypeError, ValueError : a start or a gradient of the wrong shape, no gradient, a method that is none.
    """
    check_kind("minimize", "method", method, (AbstractMethod, type(None)), "Such as GPX().")
    check_number("minimize", "gtol", gtol, "Use 1e-5.", inside="[0, inf)")
    check_count("minimize", "max_iter", max_iter, "Use 1,000.", least=0)
    check_kind("minimize", "args", args, tuple, "Write (y,) for one argument.")
    check_function("minimize", "fun", fun, 1 + len(args), "Its first argument is the point (d,).")
    if not isinstance(jac, bool):
        check_function("minimize", "jac", jac, 1 + len(args), "Pass the gradient, or True.")
    check_function("minimize", "callback", callback, 1, "It is given the result so far.", optional=True)
    start = as_float64("minimize", "x0", x0, "d")
    if not len(start) or not np.isfinite(start).all():
        raise InputError("minimize", "`x0` finite, of at least one entry", start, "Start elsewhere.")
    solver = GPX() if method is None else method
    evaluate = _Evaluations(fun, jac, args)
    x = start
    value, gradient = evaluate(x)
    before = value + np.linalg.norm(gradient) / 2  # so that the first trial step has length one, as in SciPy's BFGS
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return _result(x, value, gradient, 0, 3, evaluate)
    memory = _start(solver, x)
    for iteration in range(max_iter):
        if np.abs(gradient).max() <= gtol:
            return _result(x, value, gradient, iteration, 0, evaluate)
        memory, direction = _advance(solver, memory, x, gradient)
        if not np.isfinite(direction).all() or direction @ gradient >= 0:
            direction = -gradient
        evaluate.forget(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of failing, which the status reports
            old = before if iteration == 0 else None
            step, *_ = line_search(evaluate.value, evaluate.gradient, x, direction, gradient, value, old, maxiter=20)
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

    def __init__(self, fun: Callable[..., Any], jac: Callable[..., Any] | bool, args: tuple) -> None:
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
                raise InputTypeError("minimize", "`fun` to return (value, gradient)", type(both).__name__, cure)
            value = float(as_float64("minimize", "fun(x)", both[0], ""))
            gradient = as_float64("minimize", "gradient", both[1], "d")
            if gradient.shape != x.shape:
                raise InputError("minimize", f"a gradient of shape {x.shape}", gradient.shape, "Return it flat.")
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
    method: AbstractMethod, memory: Memory, x: Float[np.ndarray, " d"], gradient: Float[np.ndarray, " d"]
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

    To be chained with a line search: ``optax.chain(scale_by_gp(GPX()), optax.scale_by_zoom_linesearch(15,
    initial_guess_strategy="one"))``. `update` needs the parameters. Parameters are any pytree of one dtype.
    """

    check_kind("scale_by_gp", "method", method, AbstractMethod, "Such as GPX().")

    def init(params: Any) -> Memory:
        return empty_memory(method.memory, ravel_pytree(params)[0])

    def update(updates: Any, state: Memory, params: Any = None, **extra: Any) -> tuple[Any, Memory]:
        del extra
        if params is None:
            raise InputError("scale_by_gp: expected the parameters in `update`, got None. Pass `params`.")
        g, unravel = ravel_pytree(updates)
        state = remember(state, ravel_pytree(params)[0], g)
        direction = method.direction(state)
        return unravel(jnp.where(jnp.all(jnp.isfinite(direction)), direction, -g)), state

    return optax.GradientTransformationExtraArgs(init, update)


def gp_optimizer(method: AbstractMethod, *, max_linesearch_steps: int = 20) -> optax.GradientTransformationExtraArgs:
    """Return the method with optax's zoom line search (strong Wolfe); `update` takes value, grad and value_fn."""
    check_count("gp_optimizer", "max_linesearch_steps", max_linesearch_steps, "Use 20.")
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps, initial_guess_strategy="one")
    return optax.chain(scale_by_gp(method), search)
