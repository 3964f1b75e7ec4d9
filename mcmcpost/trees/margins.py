"""Events that compare two quantities, as ``draw["a"] + draw["b"] > 0.5``: by how much they differ.

This margin tells more than the event, which is all that its values show: whatever controls the mean
of the margin controls the event, too (`mcmcpost.control.functions`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, Float

COMPARISONS = ("gt", "ge", "lt", "le")
"""JAX's names of them; which it is does not matter, since a complement has the same step."""


class Compared(NamedTuple):
    """Values of an event at every draw (c, n, ...), and the two sides that it compares (c, n, ...,
    2)."""

    values: np.ndarray
    sides: np.ndarray


def sides_of(function: Callable[[Any], Any], row: Any) -> Callable[[Any], Array] | None:
    """Return what an event compares, (..., 2), as a function of one draw; None where it compares
    nothing.

    What makes a number of the comparison, as a product with one, is not looked into: `margins_of`
    sees from the values whether the sides are those of the event.

    function : the event, traceable by JAX. row : a draw, for its shapes.
    """
    closed = jax.make_jaxpr(function)(row)
    jaxpr = closed.jaxpr
    if len(jaxpr.outvars) != 1:
        return None
    made_by = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    comparisons = _comparisons(jaxpr.outvars[0], made_by)
    if len(comparisons) != 1:
        return None
    both = jaxpr.replace(outvars=list(comparisons[0].invars))
    compared = jaxpr_as_fun(ClosedJaxpr(both, closed.consts))
    return lambda row: jnp.stack(jnp.broadcast_arrays(*compared(*jax.tree.leaves(row))), axis=-1)


def _comparisons(result: Any, made_by: Mapping[Any, Any]) -> list[Any]:
    """Return the last comparisons that a variable comes from, of its own shape."""
    comparisons, left, seen = [], [result], set[Any]()
    while left:
        variable = left.pop()
        if isinstance(variable, Literal) or variable in seen or variable not in made_by:
            continue
        seen.add(variable)
        equation = made_by[variable]
        if equation.primitive.name in COMPARISONS:
            comparisons.append(equation)
        else:
            left += [one for one in equation.invars if one.aval.shape == result.aval.shape]
    return comparisons


def margins_of(
    event: Float[np.ndarray, "c n"], sides: Float[np.ndarray, "c n 2"]
) -> list[Float[np.ndarray, "c n"]]:
    """Return the difference of the sides and, where both are positive, that of their logarithms, as
    of a ratio of scales; none that does not decide the event."""
    left, right = sides[..., 0], sides[..., 1]
    margins = [left - right]
    if (sides > 0).all():
        margins.append(np.log(left) - np.log(right))
    return [margin for margin in margins if _decides(margin, event)]


def _decides(margin: Float[np.ndarray, "c n"], event: Float[np.ndarray, "c n"]) -> bool:
    """Return whether an event has one value where the margin is positive, and the other where it is
    negative."""
    values = [np.unique(event[side]) for side in (margin > 0, margin < 0)]
    known = np.isfinite(margin).all() and all(len(value) == 1 for value in values)
    return bool(known and values[0] != values[1])
