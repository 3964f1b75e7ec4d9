"""The score gate of a ladder: rung by rung, and all rungs together for what no single rung can show."""

from typing import NamedTuple

import numpy as np

from mcmcpost.evidence._ladder import Ladder
from mcmcpost.evidence._rungs import RungHealth
from mcmcpost.scores import check_scores

ALONE = ("not_converged", "too_few_draws", "constant", "boundary")
"""Findings of a rung's gate that do not accuse the scores."""


MIN_DRAWS = 100
"""Draws per rung from which what is not recognised counts, and z-scores are added up.

The sample mean in E[(x−x̄)s] biases each z by 1/√(2n), and of 620 rungs of ten right draws two failed by chance.
"""


class LadderCheck(NamedTuple):
    """What the score gate found on a ladder.

    passed : whether control variates may be used. message : what failed and where; empty for a pass.
    """

    passed: bool
    message: str


def check_ladder(ladder: Ladder, health: RungHealth) -> LadderCheck:
    """Test Stein's identities at every rung, and their z-scores added up over the rungs.

    A short rung cannot show scores that are wrong by a tenth; thirty of them can: the sums of the z-scores of
    E[s_i] = 0 and E[(x_i − x̄_i)s_i] = −1 over t rungs, divided by √t, are standard normal too,
    if a rung has a hundred draws.
    """
    z_mean, z_product, failing, threshold = [], [], [], 0.0
    enough = ladder.draws.shape[0] * ladder.draws.shape[1] >= MIN_DRAWS
    for i in np.flatnonzero(health.usable & (health.impossible == 0)):
        check = check_scores(ladder.rung(int(i)))
        threshold = max(threshold, check.threshold)
        if check.pattern not in ALONE and (check.verdict == "error" or (enough and check.verdict == "warn")):
            failing.append(f"at t = {ladder.temperatures[i]:.3g}: {check.message}")
        if enough and np.isfinite(check.z_mean).all():
            z_mean.append(check.z_mean)
            z_product.append(np.diagonal(check.z_product))
    if failing:
        more = f" ({len(failing)} rungs fail)" if len(failing) > 1 else ""
        return LadderCheck(False, failing[-1] + more)
    if z_mean:
        together = np.abs([np.sum(z, axis=0) / np.sqrt(len(z)) for z in (z_mean, z_product)])
        if together.max() > threshold:
            worst = ladder.names[int(together.max(axis=0).argmax())]
            return LadderCheck(
                False,
                f"Score gate: over all rungs together Stein's identity fails for {worst} by {together.max():.1f}"
                " standard errors: the gradients are not those of the stored log likelihood and prior.",
            )
    return LadderCheck(True, "")
