"""How the coefficients of a polynomial control variate are regularised."""

import equinox as eqx
import numpy as np
from jaxtyping import Float

GCV_INFLATION = 1.4
"""Each degree of freedom counts 1.4 in generalised cross-validation, against undersmoothing (Kim and Gu 2004)."""


class LeastSquares(eqx.Module):
    """No penalty; refused where the training draws do not exceed the features."""


class Ridge(eqx.Module):
    """A quadratic penalty on standardised features.

    strength : relative to the largest eigenvalue of the features' covariance; chosen per integrand by generalised
        cross-validation when None.
    """

    strength: float | None = None


class Lasso(eqx.Module):
    """An absolute-value penalty that selects features, followed by least squares on those selected.

    path_length : penalties tried, log-spaced over three decades; the best by the held-out folds is used. Selection
        is repeated inside every fold.
    """

    path_length: int = 20


def ridge_strengths(
    features: Float[np.ndarray, "m q"], values: Float[np.ndarray, "m p"], counts: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " p"]:
    """Return the penalty per integrand, relative to the largest squared singular value, by cross-validation.

    Generalised cross-validation RSS/(1 − 1.4·df/m)² on a grid of 25 values from 1e-12 to 1, on weighted features with
    the constant removed.
    """
    root = np.sqrt(counts)[:, None]
    total = counts.sum()
    centred = (features - counts @ features / total) * root
    target = (values - counts @ values / total) * root
    u, singular, _ = np.linalg.svd(centred, full_matrices=False)
    along = (u.T @ target) ** 2
    outside = np.maximum((target**2).sum(axis=0) - along.sum(axis=0), 0.0)
    m = np.count_nonzero(counts)
    grid = np.logspace(-12, 0, 25)
    scores = []
    for strength in grid:
        shrink = singular**2 / (singular**2 + strength * singular[0] ** 2)
        rss = ((1 - shrink)[:, None] ** 2 * along).sum(axis=0) + outside
        room = 1 - GCV_INFLATION * (1 + shrink.sum()) / m
        scores.append(rss / room**2 if room > 0 else np.full(rss.shape, np.inf))
    best = np.array(scores)
    return np.where(np.isfinite(best).any(axis=0), grid[np.argmin(best, axis=0)], 1.0) * singular[0] ** 2
