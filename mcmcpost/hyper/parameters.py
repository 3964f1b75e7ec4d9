"""Free parameters of kernels, noises and whatever is tuned with them as one vector of unconstrained numbers."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

VARIANCES = ("amplitude", "noise")
"""Names of leaves that are variances."""

LOCATIONS = ("centre",)
"""Names of leaves that are points and not sizes: they are held wherever the origin is."""


class Hyperparameters(NamedTuple):
    """A kernel and the variance of the noise, or the nugget, that is added to it."""

    kernel: Any
    noise: Any


class AbstractScale(eqx.Module):
    """A smooth increasing map from unconstrained to positive numbers."""

    @abc.abstractmethod
    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        """Return the positive values of unconstrained parameters."""

    @abc.abstractmethod
    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        """Return the unconstrained parameters of positive values."""

    @abc.abstractmethod
    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the unconstrained parameters of the positive values of x divided by the factor, and times it."""


class Softplus(AbstractScale):
    """log(1 + eˣ), as in Lin et al. (2024), Appendix B."""

    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        return jax.nn.softplus(x)

    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        return positive + np.log(-np.expm1(-positive))

    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        middle = np.asarray(self.positive(jnp.asarray(x)))
        return self.unconstrained(middle / factor), self.unconstrained(middle * factor)


class Log(AbstractScale):
    """eˣ."""

    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        return jnp.exp(x)

    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        return np.log(positive)

    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        return x - np.log(factor), x + np.log(factor)


def is_positive(leaf: Any) -> bool:
    """Return whether a leaf of a kernel can be tuned: a positive number or an array of them."""
    return eqx.is_inexact_array_like(leaf) and bool(np.all(np.asarray(leaf) > 0))


class Packing(eqx.Module):
    """The free leaves of a tree, such as `Hyperparameters`, as one vector x of unconstrained numbers.

    Positive numbers go through the scale, others are taken as they are. Leaves that are not free, such as the centre
    of a kernel, keep the values that they have in the tree.

    Parameters
    ----------
    tree : kernels and numbers; gives the structure and the values of the leaves that are not free.
    scale : `Log()` by default.
    free : filter of the free leaves, a prefix of the tree; by default, every positive leaf.
    positive : which free numbers go through the scale, a prefix of the tree with bools or arrays of them.
    relative : whether amplitudes and noises are counted as standard deviations and everything else in units of its
        value in `tree`. A search on a scale other than the logarithm then does not depend on the units of the inputs.
    """

    fixed: Any
    scale: AbstractScale
    is_scaled: Bool[np.ndarray, " h"]
    units: Float[np.ndarray, " h"] | None
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    squared: tuple[bool, ...] = eqx.field(static=True)
    mixed: bool = eqx.field(static=True)

    def __init__(
        self,
        tree: Any,
        scale: AbstractScale | None = None,
        *,
        free: Any = is_positive,
        positive: Any = True,
        relative: bool = False,
    ) -> None:
        chosen, fixed = eqx.partition(tree, free)
        places = jax.tree_util.tree_map_with_path(lambda path, _: _field(path) not in LOCATIONS, chosen)
        chosen, held = eqx.partition(chosen, places)
        self.fixed = eqx.combine(fixed, held)
        found = jax.tree_util.tree_flatten_with_path(chosen)[0]
        self.scale = Log() if scale is None else scale
        self.structure = jax.tree.structure(chosen)
        self.shapes = tuple(np.shape(leaf) for _, leaf in found)
        self.is_scaled = self.where(positive)
        self.mixed = not self.is_scaled.all()
        self.squared = tuple(relative and _field(path) in VARIANCES for path, _ in found)
        pairs = zip(found, self.squared, strict=True)
        units = [np.ones(np.shape(leaf)) if square else np.asarray(leaf) for (_, leaf), square in pairs]
        self.units = _join(units, float) if relative else None

    def pack(self, tree: Any) -> Float[np.ndarray, " h"]:
        """Return the unconstrained parameters of a tree of the same structure."""
        chosen = eqx.filter(tree, jax.tree.map(_is_none, self.fixed, is_leaf=_is_none))
        leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(chosen)]
        pairs = zip(leaves, self.squared, strict=True)
        values = _join([np.sqrt(leaf) if square else leaf for leaf, square in pairs], float)
        if self.units is not None:
            values = values / self.units
        if self.mixed:
            return np.where(self.is_scaled, self.scale.unconstrained(np.where(self.is_scaled, values, 1.0)), values)
        return self.scale.unconstrained(values)

    def values(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        """Return the parameters themselves; with `relative`, variances as standard deviations."""
        if self.mixed:
            values = jnp.where(self.is_scaled, self.scale.positive(jnp.where(self.is_scaled, x, 0)), x)
        else:
            values = self.scale.positive(x)
        return values if self.units is None else values * jnp.asarray(self.units, values.dtype)

    def unpack(self, x: Float[Array, " h"]) -> Any:
        """Return the tree of unconstrained parameters."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes], dtype=int)
        parts = jnp.split(self.values(x), ends)[:-1]
        leaves = [
            (part**2 if square else part).reshape(shape)
            for part, square, shape in zip(parts, self.squared, self.shapes, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(self.structure, leaves), self.fixed)

    def where(self, marks: Any) -> Bool[np.ndarray, " h"]:
        """Return which entries of x stand for marked leaves; a prefix of the tree with bools or arrays of them."""
        tree = jax.tree.unflatten(self.structure, [np.empty(shape) for shape in self.shapes])
        return _join(jax.tree.leaves(jax.tree.map(_broadcast, marks, tree)), bool)

    def box(self, x: Float[np.ndarray, " h"], factor: float) -> Float[np.ndarray, "h 2"]:
        """Return bounds that keep positive parameters within a factor of their values at x."""
        box = np.stack(self.scale.interval(x, factor), axis=1)
        return np.where(self.is_scaled[:, None], box, np.array([[-np.inf, np.inf]]))


def _field(path: tuple[Any, ...]) -> str:
    """Return the name of the field at which a path into a tree ends."""
    return getattr(path[-1], "name", "") if path else ""


def _broadcast(mark: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.broadcast_to(mark, np.shape(leaf)), tree)


def _join(parts: list[Any], dtype: type) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts] or [np.zeros(0)]).astype(dtype)


def _is_none(leaf: Any) -> bool:
    return leaf is None
