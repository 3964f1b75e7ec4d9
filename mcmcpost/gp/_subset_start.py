"""Where to start hyper-parameters on data too large for many steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost._checks import fault
from mcmcpost.hyper import AbstractScale, Template, maximise_exact_likelihood
from mcmcpost.kernels import AbstractKernel


class SubsetStart(eqx.Module):
    """Fit exactly on random rows' nearest neighbours, several times, and start at the average.

    Lin et al. (2024), Appendix B, after Lin et al. (2023).

    num_subsets : fits to average. size : rows of each. num_steps : of L-BFGS.
    """

    num_subsets: int = 10
    size: int = 2_000
    num_steps: int = 30

    def __check_init__(self) -> None:
        for name in ("num_subsets", "size", "num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(fault("SubsetStart", f"`{name}` of at least 1", getattr(self, name), "Use more."))


def start_on_subsets(
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    choice: SubsetStart,
    scale: AbstractScale,
    key: jax.Array,
) -> tuple[AbstractKernel, float]:
    """Return kernel and noise at the mean, on the scale walked on, of the optima of the subsets."""
    template = Template(kernel)
    size = min(choice.size, len(X))
    centres = jax.random.choice(key, len(X), (min(choice.num_subsets, len(X)),), replace=False)
    ends = []
    for centre in np.asarray(centres):
        distance = np.sum((X - X[centre]) ** 2, axis=1)
        rows = np.argpartition(distance, size - 1)[:size]
        fit = maximise_exact_likelihood(kernel, noise, X[rows], y[rows], scale=scale, max_steps=choice.num_steps)
        ends.append(scale.walked(template.vector(fit.kernel, fit.noise)))
    start, level = template.build(scale.positive(jnp.asarray(np.mean(ends, axis=0))))
    return jax.tree.map(np.asarray, start), float(level)
