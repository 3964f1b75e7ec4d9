"""Kernel parameters: how they are stored, checked, and brought to the dtype and dimension of the data."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._checks import fault

if TYPE_CHECKING:
    type Parameter = Any  # type checkers do not follow the converter of a field, which takes any number
else:
    type Parameter = Float[Array | np.ndarray, "..."]
type Points = Float[Array, "n d"]
type OtherPoints = Float[Array, "m d"]
type Point = Float[Array | np.ndarray, " d"]


def parameter(value: object) -> Array | np.ndarray:
    """Return `value` unchanged if JAX owns it (it may be traced or differentiated), else as a float64 NumPy array."""
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.result_type(float))
    return np.asarray(value, dtype=np.float64)


def check_parameter(
    where: str, name: str, value: Parameter, *, positive: bool = True, lower: float = 0.0, scalar: bool = False
) -> None:
    """Refuse a parameter of the wrong rank, not finite, or out of range; a traced value is checked for rank only.

    positive : whether the value must exceed `lower`, instead of being at least `lower`.

    Raises
    ------
    ValueError
        naming the kernel, the parameter and what was expected.
    """
    rank = np.ndim(value)
    shape = "a scalar" if scalar else "a scalar or one value per coordinate (d,)"
    if rank > (0 if scalar else 1):
        raise ValueError(fault(where, f"`{name}` to be {shape}", f"shape {np.shape(value)}", "Pass fewer axes."))
    if isinstance(value, jax.core.Tracer):
        return
    number = np.asarray(value)
    inside = number > lower if positive else number >= lower
    if not (inside & np.isfinite(number)).all():
        bound = f"greater than {lower:g}" if positive else f"at least {lower:g}"
        raise ValueError(
            fault(where, f"`{name}` to be finite and {bound}", number.tolist(), "Optimise its logarithm if it is free.")
        )


def spread(where: str, name: str, value: Parameter, like: Array | np.ndarray) -> Float[Array, " d"]:
    """Return a scalar or (d,) parameter as one value per coordinate of `like` (…, d), in its floating dtype."""
    d = like.shape[-1]
    if value.ndim == 1 and value.shape[0] != d:
        raise ValueError(
            fault(where, f"`{name}` scalar or of length d = {d}", f"shape {value.shape}", "Give one per coordinate.")
        )
    return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(float, like.dtype)), (d,))
