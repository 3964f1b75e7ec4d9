"""Errors and R-hat of many series at once are those of ArviZ."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from mcmcpost.core.mcse import mcse_mean, rank_rhat


@pytest.mark.parametrize("draws", [4, 5, 7, 20, 301])
@pytest.mark.parametrize("chains", [2, 5])
def test_as_arviz(chains: int, draws: int) -> None:
    rng = np.random.default_rng(draws)
    lags = np.array([-0.9, 0.0, 0.5, 0.9, 0.99])
    x = rng.normal(size=(chains, draws, len(lags) + 1))
    for t in range(1, draws):
        x[:, t, :-1] += lags * x[:, t - 1, :-1]
    x[..., -1] = np.round(x[..., -1])  # equal values share a rank
    unit = (x - x.mean((0, 1))) / x.std((0, 1), ddof=1)
    error = array_stats.mcse(unit, chain_axis=0, draw_axis=1, method="mean") * x.std((0, 1), ddof=1)
    np.testing.assert_allclose(mcse_mean(x), error, rtol=1e-10)
    np.testing.assert_allclose(
        rank_rhat(x), array_stats.rhat(x, chain_axis=0, draw_axis=1), rtol=1e-10
    )
