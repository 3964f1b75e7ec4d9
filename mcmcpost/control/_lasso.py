"""Selection of polynomial Stein features by the LASSO, then least squares on those selected."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.control._basis import Basis
from mcmcpost.control._linear import fit_linear
from mcmcpost.control._method import scatter_folds
from mcmcpost.control._penalty import Lasso
from mcmcpost.control._problem import Problem

NUM_STEPS = 200
"""Accelerated proximal steps per penalty; each penalty starts from the solution of the one before."""
MAX_SELECTED = 1 / 3
"""At most so many features are refitted per training state."""


def lasso_crossfit(
    problem: Problem, basis: Basis, penalty: Lasso, info: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean, the held-out control and the means without each fold; features are selected in every fold.

    The penalty is the one with the least held-out squared error. South et al. (2022, doi:10.1214/20-EJS1797), who
    select and regress as here; Leluc, Portier and Segers (2021), LSLASSO.
    """
    total = problem.counts.sum()
    root = np.sqrt(problem.counts)[:, None]
    features = basis.design[:, 1:]
    features = (features - problem.counts @ features / total) * root
    target = problem.values * root
    blocks = [problem.held_out[k][problem.held_out_mask[k]] for k in range(len(problem.held_out))]
    grams = np.stack([features[b].T @ features[b] for b in blocks])
    moments = np.stack([features[b].T @ target[b] for b in blocks])
    energies = np.stack([(target[b] ** 2).sum(axis=0) for b in blocks])

    gram, moment = grams.sum(axis=0), moments.sum(axis=0)
    fractions = np.logspace(-0.1, -3, penalty.path_length)
    largest = np.abs(moment).max(axis=0)
    inside = np.stack(
        [lasso_path(gram - g, moment - b, fractions, largest) for g, b in zip(grams, moments, strict=True)]
    )
    errors = (
        energies[:, None, :]
        - 2 * np.einsum("klqp,kqp->klp", inside, moments)
        + np.einsum("klqp,kqr,klrp->klp", inside, grams, inside, optimize=True)
    ).sum(axis=0)
    best = np.argmin(errors, axis=0)
    whole = lasso_path(gram, moment, fractions, largest)

    mean = np.empty(problem.values.shape[1])
    control = np.empty_like(problem.values)
    fold_means = np.empty((len(blocks), problem.values.shape[1]))
    selected_sizes = []
    for j, level in enumerate(best):
        part = problem.select(np.array([j]))
        full = _select(whole[level, :, j], problem.num_states)
        mean[j] = _refit(part, basis, full)[0][0]
        selected_sizes.append(int(full.sum()))
        for k, block in enumerate(blocks):
            chosen = _select(inside[k, level, :, j], problem.num_states - len(block))
            _, refitted, means = _refit(part, basis, chosen)
            control[block, j] = refitted[block, 0]
            fold_means[k, j] = means[k, 0]
    control[problem.counts == 0] = 0.0
    info["num_selected"] = selected_sizes
    return mean, control, fold_means


def lasso_path(
    gram: Float[np.ndarray, "q q"],
    moment: Float[np.ndarray, "q p"],
    fractions: Float[np.ndarray, " l"],
    largest: Float[np.ndarray, " p"],
) -> Float[np.ndarray, "l q p"]:
    """Minimise ½θᵀGθ − bᵀθ + λ|θ|₁ for λ = fraction·largest, along a decreasing path, by FISTA.

    Beck and Teboulle (2009, doi:10.1137/080716542), step 1/λmax(G).
    """
    return np.asarray(_lasso_path(*(jnp.asarray(a) for a in (gram, moment, fractions, largest))))


@jax.jit
def _lasso_path(
    gram: Float[Array, "q q"], moment: Float[Array, "q p"], fractions: Float[Array, " l"], largest: Float[Array, " p"]
) -> Float[Array, "l q p"]:
    step = 1.0 / jnp.linalg.eigvalsh(gram)[-1]

    def at_penalty(start: Float[Array, "q p"], fraction: Float[Array, ""]) -> tuple:
        threshold = (step * fraction * largest)[None, :]

        def advance(_: Array, state: tuple) -> tuple:
            theta, ahead, momentum = state
            moved = ahead - step * (gram @ ahead - moment)
            new = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - threshold, 0.0)
            faster = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
            return new, new + (momentum - 1) / faster * (new - theta), faster

        theta = jax.lax.fori_loop(0, NUM_STEPS, advance, (start, start, jnp.ones(())))[0]
        return theta, theta

    return jax.lax.scan(at_penalty, jnp.zeros_like(moment), fractions)[1]


def _select(theta: Float[np.ndarray, " q"], num_train: int) -> np.ndarray:
    """Return the mask of non-zero coefficients, the largest third of a coefficient per training state at most."""
    limit = max(1, int(MAX_SELECTED * num_train))
    cut = np.sort(np.abs(theta))[-limit] if len(theta) > limit else 0.0
    return (np.abs(theta) >= cut) & (theta != 0)


def _refit(problem: Problem, basis: Basis, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    design = basis.design * np.concatenate([[True], chosen])
    penalty = np.concatenate([[0.0], np.where(chosen, 0.0, 1.0)])
    fit = fit_linear(
        *(jnp.asarray(a) for a in (design, penalty, problem.values, problem.counts)),
        jnp.asarray(problem.held_out),
        jnp.asarray(problem.held_out_mask),
    )
    return np.asarray(fit.mean), scatter_folds(problem, np.asarray(fit.control)), np.asarray(fit.fold_means)
