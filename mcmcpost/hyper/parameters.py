"""Positive parameters of a kernel and its noise as one vector, on the scale that an optimiser walks on."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.hyper.restricted_likelihood import is_positive
from mcmcpost.kernels import AbstractKernel


class AbstractScale(eqx.Module):
    """A smooth increasing map from the line to the positive numbers."""

    @abc.abstractmethod
    def positive(self, walked: Float[Array, " h"]) -> Float[Array, " h"]:
        """Return the positive values."""

    @abc.abstractmethod
    def walked(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        """Return what maps to them."""


class Softplus(AbstractScale):
    """log(1 + eˣ), as in Lin et al. (2024), Appendix B."""

    def positive(self, walked: Float[Array, " h"]) -> Float[Array, " h"]:
        return jax.nn.softplus(walked)

    def walked(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        return positive + np.log(-np.expm1(-positive))


class Log(AbstractScale):
    """eˣ."""

    def positive(self, walked: Float[Array, " h"]) -> Float[Array, " h"]:
        return jnp.exp(walked)

    def walked(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        return np.log(positive)


class Template(eqx.Module):
    """A kernel whose positive parameters, with the noise last, are one vector.

    Amplitudes and the noise are variances in the kernel and standard deviations in the vector, so that all its entries
    are on the scale of lengthscales. The others are counted in units of those of the kernel that the template is made
    from, where a search starts, so that it does not depend on the units of the inputs. Parameters that are zero or
    negative (a centre) are held fixed.

    units : (h,), in which the vector counts.
    """

    fixed: Any
    units: Float[np.ndarray, " h"]
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    variances: tuple[bool, ...] = eqx.field(static=True)

    def __init__(self, kernel: AbstractKernel) -> None:
        free, self.fixed = eqx.partition(kernel, is_positive)
        found = jax.tree_util.tree_flatten_with_path(free)[0]
        self.structure = jax.tree.structure(free)
        self.shapes = tuple(np.shape(leaf) for _, leaf in found)
        self.variances = tuple(getattr(path[-1], "name", "") == "amplitude" for path, _ in found)
        pairs = zip(found, self.variances, strict=True)
        units = [np.ones(np.shape(leaf)) if square else np.asarray(leaf) for (_, leaf), square in pairs]
        self.units = np.concatenate([*map(np.ravel, units), np.ones(1)])

    def vector(self, kernel: AbstractKernel, noise: float) -> Float[np.ndarray, " h"]:
        """Return the positive parameters of `kernel`, and the noise, as one vector."""
        leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(eqx.filter(kernel, is_positive))]
        parts = [np.sqrt(leaf) if square else leaf for leaf, square in zip(leaves, self.variances, strict=True)]
        return np.concatenate([*parts, [np.sqrt(noise)]]) / self.units

    def build(self, vector: Float[Array, " h"]) -> tuple[AbstractKernel, Float[Array, ""]]:
        """Return the kernel and the noise variance of a vector."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        parts = jnp.split(vector * jnp.asarray(self.units, vector.dtype), ends)
        shaped = [
            (part**2 if square else part).reshape(shape)
            for part, square, shape in zip(parts[:-1], self.variances, self.shapes, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(self.structure, shaped), self.fixed), parts[-1][0] ** 2
