"""The cache of the hare–lynx pool: blocks are made once, kept whole, and the same however many are
asked for."""

import numpy as np
import pytest

from benchmarks.control import _lotka_volterra_pool as pool


@pytest.fixture
def sampler(monkeypatch, tmp_path):
    """Replace NUTS and the ODE by noise that depends on the key alone; return the sizes of the
    calls."""
    calls = []

    def sample(key, num_chains, num_warmup, num_draws):
        calls.append((num_chains, num_warmup, num_draws))
        draws = np.random.default_rng(pool.jax.random.key_data(key).tolist()).standard_normal(
            (num_chains, num_draws, 8)
        )
        return draws, -draws

    monkeypatch.setattr(pool, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(pool, "sample_lotka_volterra", sample)
    monkeypatch.setattr(pool, "expected_prey", lambda draws: np.repeat(draws[..., :1], 20, axis=-1))
    return calls


def test_replications_are_a_prefix_of_more_and_thinned(sampler):
    few = pool.replications(5, num_draws=20, block_size=3)
    more = pool.replications(8, num_draws=20, block_size=3)
    assert sampler == [(3, pool.NUM_WARMUP, 20)] * 3
    assert {name: array.shape for name, array in few.items()} == {
        "draws": (5, 1, 10, 8),
        "scores": (5, 1, 10, 8),
        "values": (5, 1, 10, 20),
    }
    for name, array in few.items():
        np.testing.assert_array_equal(array, more[name][:5])
    assert len(np.unique(more["draws"][:, 0, 0, 0])) == 8


def test_a_block_that_was_stopped_is_made_again(sampler):
    first = pool.replications(3, num_draws=20, block_size=3)
    (path,) = pool.CACHE.glob("*.npz")
    path.rename(path.with_suffix(".partial.npz"))
    again = pool.replications(3, num_draws=20, block_size=3)
    assert len(sampler) == 2
    np.testing.assert_array_equal(first["draws"], again["draws"])


@pytest.mark.slow
def test_the_truth_is_the_mean_of_pieces_of_their_own(sampler, monkeypatch):
    monkeypatch.setattr(pool, "METHOD", pool.mp.ZeroVariance(degree=2))
    found = pool.truth(3, num_draws=100)
    assert sampler == [(pool.PIECE_CHAINS, pool.NUM_WARMUP, 100)] * 3
    np.testing.assert_allclose(found.mean, found.pieces.mean(0))
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-8)  # a coordinate of a normal: exact
    np.testing.assert_allclose(found.standard_error, found.pieces.std(0, ddof=1) / np.sqrt(3))
