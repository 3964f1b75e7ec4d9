"""Do stored log likelihoods and gradients agree with the model? Constants, scales and repeated states."""

import numpy as np
from jaxtyping import Float

from mcmcpost.evidence._ladder import Ladder

TOLERANCE = 1e-4
"""Differences that another solver tolerance explains: of ℓ in nats, of gradients relative to their size."""


class LadderWarning(UserWarning):
    """A stored ladder disagrees with its model; what was recomputed replaces what was stored."""


def likelihood_finding(stored: Float[np.ndarray, "..."], model: Float[np.ndarray, "..."]) -> str | None:
    """Say how stored log likelihoods differ from the model's, None where they agree.

    An additive constant (a normalising constant left out, or counted twice) leaves every expectation as it is and
    shifts the log evidence by its own size.
    """
    both = np.isfinite(stored) & np.isfinite(model)
    lost = int((np.isfinite(stored) != np.isfinite(model)).sum())
    if not both.any():
        return "the stored log likelihood and the model's are nowhere both finite"
    difference = (stored - model)[both]
    offset = float(np.median(difference))
    limit = TOLERANCE * (1 + np.abs(model[both]))
    around = np.abs(difference - offset)
    finding = None
    if (np.abs(difference) <= limit).all():
        pass
    elif (around <= np.maximum(limit, 1e-3 * abs(offset))).all():
        finding = (
            f"the stored log likelihood carries an additive constant of {offset:.6f}, by which its log evidence would "
            "be off, as when a normalising constant is left out or counted twice"
        )
    else:
        share = float((np.abs(difference) > limit).mean())
        finding = (
            f"the stored log likelihood differs from the model's at {share:.1%} of the draws, by {offset:.4g} in the "
            f"median and up to {np.abs(difference).max():.4g}, as with another model, other data or other draws"
        )
    if lost:
        text = f"one of the two is not finite at {lost} draws"
        finding = text if finding is None else f"{finding}; {text}"
    return finding


def gradient_finding(name: str, stored: Float[np.ndarray, "... d"], model: Float[np.ndarray, "... d"]) -> str | None:
    """Say how stored gradients differ from the model's, None where they agree."""
    both = np.isfinite(stored).all(axis=-1) & np.isfinite(model).all(axis=-1)
    ours, theirs = model[both], stored[both]
    size = np.sqrt((ours**2).sum())
    if not both.any() or size == 0:
        return None
    error = float(np.sqrt(((theirs - ours) ** 2).sum()) / size)
    if error <= TOLERANCE:
        return None
    slope = float((theirs * ours).sum() / size**2)
    kind = " (the wrong sign)" if slope < 0 else ""
    return f"the stored {name} is off by {error:.1%} of its size, {slope:.3f} times the model's on average{kind}"


def repeated_fraction(ladder: Ladder) -> Float[np.ndarray, " t"]:
    """Return the fraction of draws of every rung that repeat another: rejected proposals, or copies."""
    draws = np.moveaxis(ladder.draws, 2, 0)
    return np.array(
        [1 - len(np.unique(rung.reshape(-1, rung.shape[-1]), axis=0)) / rung[..., 0].size for rung in draws]
    )
