"""What a reduction is worth: the time that sampling alone would take for the same errors."""

import numpy as np

from mcmcpost._core.status import WITHOUT_GAIN
from mcmcpost._core.text import duration, significant
from mcmcpost.control.estimates.estimate import Estimate

DOUBLED = 2.0
"""The gain of as many draws again, which divide errors by its root."""


def worth_of(estimate: Estimate, seconds: float) -> str:
    """Return in one or two sentences what sampling more would cost, if the draws of an estimate took so many seconds.

    A gain is a factor of draws, and so of the time that they took, in which warm-up counts if the sampler's record
    counts it. Quantities whose gain is not reported are left out; without any other the text is empty.
    """
    gains = np.array([estimate.gain[j] for j in estimate.listed if estimate.status[j] not in WITHOUT_GAIN])
    chains, draws, _ = estimate.residuals.shape
    run, took = f"{chains} × {draws:,}", duration(seconds)
    large = gains[gains >= DOUBLED]
    sentences = []
    if len(large):
        few, half, most = (duration(float(q) * seconds) for q in np.quantile(large, (0.0, 0.5, 1.0)))
        which = "" if len(large) == len(gains) else f" of {len(large)} of {len(gains)} quantities"
        spread = f" (median; {few} to {most})" if len(large) > 1 else ""
        sentences.append(
            f"The same errors{which} by sampling alone would take about {half}{spread}; {run} draws took {took}."
        )
    if len(large) < len(gains):
        others = f"the other {len(gains) - len(large)}" if len(large) else "them"
        more = f"{run} more draws would take about {took} and divide errors by {significant(DOUBLED**0.5, 2)}"
        sentences.append(f"{more}, which for {others} is more than the reduction does.")
    return " ".join(sentences)
