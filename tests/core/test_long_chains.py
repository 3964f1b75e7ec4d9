"""Errors of long chains from means of neighbouring draws, and R-hat of every so many, whatever
holds the draws."""

import numpy as np
import pytest
import scipy.signal

from mcmcpost.core import arrays, mcse
from mcmcpost.core.arrays import column_variance, columns_of
from mcmcpost.scores import check_scores
from mcmcpost.trace import make_trace


@pytest.fixture
def series(rng):
    """Four chains with a lag-one correlation of 0.9, whose error is known: √(19/n) of n draws."""
    noise = rng.normal(size=(4, 40_003, 2)) * np.sqrt(1 - 0.9**2)
    return scipy.signal.lfilter([1.0], [1.0, -0.9], noise, axis=1)


def test_means_of_neighbouring_draws_have_the_error_of_all(series, monkeypatch):
    whole = mcse.mcse_mean(series)
    monkeypatch.setattr(mcse, "LONG", 10_000)
    assert mcse.spacing(*series.shape[:2]) == 17
    few = mcse.mcse_mean(series)
    np.testing.assert_allclose(few, np.sqrt(19 / series[..., 0].size), rtol=0.15)
    np.testing.assert_allclose(few, whole, rtol=0.1)


def test_what_is_not_finite_is_seen_in_draws_that_are_left_out(series, monkeypatch):
    monkeypatch.setattr(mcse, "LONG", 10_000)
    series[3, -1, 1] = np.nan
    error = mcse.mcse_mean(series)
    assert np.isfinite(error[0])
    assert np.isnan(error[1])


def test_chains_that_disagree_are_told_by_some_of_their_draws(series, monkeypatch):
    monkeypatch.setattr(mcse, "LONG", 10_000)
    assert (mcse.rank_rhat(series) < 1.02).all()
    series[0] += 2.0
    assert (mcse.rank_rhat(series) > 1.1).all()


@pytest.mark.parametrize(
    ("chains", "draws", "size"), [(4, 1_000, 1), (4, 4_000_000, 4), (10_000, 1_000, 1), (1, 9, 1)]
)
def test_a_thousand_draws_of_each_chain_are_left(chains, draws, size):
    assert mcse.spacing(chains, draws) == size


def test_the_gate_tests_some_draws_of_many(rng, monkeypatch):
    draws = rng.normal(size=(2, 3_000, 3))
    trace = make_trace(draws, -1.5 * draws)
    every = check_scores(trace)
    monkeypatch.setattr(arrays, "SAMPLED", 4_000)
    found = check_scores(trace)
    assert not np.allclose(found.z_product, every.z_product)
    assert found.verdict == every.verdict == "warn"


def test_columns_that_follow_each_other_are_not_copied(rng):
    array = rng.normal(size=(3, 50, 6))
    assert np.shares_memory(columns_of(array, np.array([2, 3, 4])), array)
    for index in ([2, 3, 4], [0, 2], [5, 1], []):
        np.testing.assert_array_equal(columns_of(array, np.array(index, int)), array[..., index])


def test_variances_by_blocks_are_those_of_all_rows(rng, monkeypatch):
    monkeypatch.setattr("mcmcpost.core.arrays.ENTRIES", 100)
    columns = 1e6 + rng.normal(size=(1_003, 3))
    np.testing.assert_allclose(
        column_variance(columns, ddof=1), columns.var(axis=0, ddof=1), rtol=1e-9
    )
