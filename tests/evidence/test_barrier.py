"""The barrier of a path and what replica exchange does on it, against closed forms and brute
force."""

import numpy as np
import pytest
from ladder_cases import gaussian_path
from scipy.stats import norm

import mcmcpost as mp
from mcmcpost.evidence import (
    Barrier,
    check_ladder,
    examine_rungs,
    ladder_barrier,
    make_ladder,
    power_ladder,
)
from mcmcpost.evidence.barrier import path_barrier, rejection_rates, round_trips

SLOPE = 3.0
"""With ℓ = SLOPE·x on a standard normal prior, λ(t) = SLOPE/√π everywhere and rejection has a
closed form."""


def linear_ladder(rng, temperatures, num_draws=2000):
    x = SLOPE * temperatures + rng.normal(size=(2, num_draws, len(temperatures)))
    slopes = np.full((*x.shape, 1), SLOPE), -x[..., None]
    return make_ladder(temperatures, x[..., None], SLOPE * x, *slopes)


@pytest.mark.slow
def test_the_barrier_of_a_linear_log_likelihood_is_known(rng):
    temperatures = np.array([0.0, 0.2, 0.5, 0.75, 1.0])
    ladder = linear_ladder(rng, temperatures)
    found = ladder_barrier(ladder)
    np.testing.assert_allclose(
        found.cumulative, SLOPE / np.sqrt(np.pi) * found.temperatures, rtol=0.03, atol=1e-3
    )
    assert found.advised_size == 5
    np.testing.assert_allclose(found.place(), np.linspace(0.0, 1.0, 5), atol=0.02)
    exact = 1 - 2 * norm.cdf(-SLOPE * np.diff(temperatures) / np.sqrt(2))
    np.testing.assert_allclose(rejection_rates(ladder), exact, atol=0.02)


def test_rejection_is_that_of_all_pairs_and_zero_likelihood_never_moves(rng):
    values = rng.normal(size=(1, 30, 2))
    values[0, :3, 0] = -np.inf
    points = np.zeros((1, 30, 2, 1))
    found = rejection_rates(make_ladder([0.0, 1.0], points, values, points, points))
    hot, cold = values[0, :, 0], values[0, :, 1]
    assert found[0] == pytest.approx(1 - np.minimum(1, np.exp(hot[:, None] - cold[None, :])).mean())


def test_equal_rungs_have_no_barrier_to_place():
    with pytest.raises(
        mp.InputError, match=r"barrier_ladder: expected a log likelihood that varies"
    ):
        path_barrier(np.zeros(10), np.zeros(10), power=1.0).place()
    with pytest.raises(mp.InputError, match="Ask for fewer rungs"):
        Barrier(np.array([0.0, 0.5, 0.5, 1.0]), np.array([0.0, 0.1, 1.0, 1.1])).place(5)


def test_round_trips_are_those_of_the_states_that_were_swapped(rng):
    """Labels are swapped as the sampler swaps states, pairs of one parity at a time, and followed
    one by one."""
    rounds, rungs, chains = 300, 3, 2
    accepted, trips = np.zeros((rounds, rungs - 1, chains), bool), 0
    label = np.tile(np.arange(rungs)[:, None], (1, chains))
    last_end = np.full((rungs, chains), "", dtype=object)
    for i in range(rounds):
        accepted[i, i % 2] = rng.random(chains) < 0.7
        for chain in range(chains):
            for pair in np.flatnonzero(accepted[i, :, chain]):
                label[[pair, pair + 1], chain] = label[[pair + 1, pair], chain]
            bottom, top = label[0, chain], label[-1, chain]
            trips += last_end[bottom, chain] == "returning"
            last_end[bottom, chain] = "started"
            if last_end[top, chain] == "started":
                last_end[top, chain] = "returning"
    assert trips > 20
    assert round_trips(accepted) == trips


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_short_rungs_are_tested_together(rng, scale):
    """Thirty-one rungs of twenty draws: none of them shows by itself that gradients are too large
    by a half."""
    wrong = gaussian_path(1).ladder(rng, 20, power_ladder(31, 3))
    ladder = wrong._replace(
        gradient_log_likelihood=scale * wrong.gradient_log_likelihood,
        gradient_log_prior=scale * wrong.gradient_log_prior,
    )
    check = check_ladder(ladder, examine_rungs(ladder))
    assert check.tested
    assert check.passed == (scale == 1.0)
    assert check.passed or "over all rungs together" in check.message


def test_what_cannot_be_tested_is_said(rng):
    ladder = gaussian_path(1).ladder(rng, 6, power_ladder(9, 3))
    check = check_ladder(ladder, examine_rungs(ladder))
    assert check.passed
    assert not check.tested
