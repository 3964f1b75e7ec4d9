"""A warning points at the line of the user's program, so that Python shows it again at another
line."""

import re
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from ladder_cases import RUNGS, gaussian_path
from numpyro.infer import MCMC

import mcmcpost as mp
from mcmcpost.gp import IterativeGP
from mcmcpost.solve import ConjugateGradients
from mcmcpost.stein import SquaredExponential

PACKAGE = Path(mp.__file__).parent


def gate(rng):
    draws = rng.normal(size=(1, 3, 2))  # too few to be tested
    return partial(mp.from_arrays, draws, -draws)


def evidence(rng):
    """Return a call that warns of gradients of the wrong sign some frames down, under 64 bits."""
    ladder = gaussian_path(2).ladder(rng, 100, RUNGS[::4])
    arrays = (
        ladder.draws,
        ladder.log_likelihood,
        -ladder.gradient_log_likelihood,
        ladder.gradient_log_prior,
    )
    return partial(
        mp.log_evidence, mp.ladder_from_arrays(ladder.temperatures, *arrays), "plain", path="rungs"
    )


def process(rng):
    """Return a call of a method that Equinox wraps."""
    x = rng.normal(size=(40, 2))
    loose = ConjugateGradients(1e-2, 2, 20)
    return partial(
        IterativeGP(SquaredExponential(1.0), 1e-3, optimise=False, solver=loose).fit, x, x[:, 0]
    )


def sampler(_):
    """Return a run of NumPyro, which calls the kernel."""
    kernel = mp.SurrogateHMC(potential_fn=lambda z: jnp.sum(z**2))
    mcmc = MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
    return partial(mcmc.run, jax.random.key(0), init_params=jnp.zeros(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        gate,
        evidence,
        process,
        sampler,
    ],
)
def test_a_warning_points_at_the_caller_and_is_shown_again_at_another_line(case, rng):
    call = case(rng)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        call()
        call()
    ours = [one for one in found if "donated" not in str(one.message)]
    assert {one.filename for one in ours} == {__file__}
    for text in {str(one.message) for one in ours}:
        first, second = (one.lineno for one in ours if str(one.message) == text)
        assert second == first + 1


def test_the_package_warns_in_no_other_way():
    where = [
        str(path)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"warnings\.warn\(|stacklevel", path.read_text())
    ]
    assert where == [str(PACKAGE / "core" / "errors.py")]
