"""What surrogate HMC is compared with: the ODE posterior of the epidemics, and adjusted MCLMC with
its gradients."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density

from benchmarks.surrogate import _epidemics

pytestmark = pytest.mark.usefixtures("rank_promotion")


def fine_cases(values):
    """Return the expected reported cases by another solver at a tight tolerance."""
    start = np.exp(values["log_starts"])
    rates = _epidemics.Rates(
        *(np.exp(values[name]) for name in ("log_betas", "log_sigma", "log_gamma"))
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_epidemics._flow),
        diffrax.Dopri8(),
        t0=0.0,
        t1=float(_epidemics.WEEKS),
        dt0=0.1,
        y0=jnp.stack([1 - 2 * start, start, start]),
        args=rates,
        saveat=diffrax.SaveAt(ts=jnp.arange(_epidemics.WEEKS + 1.0)),
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-13),
    )
    not_yet_ill = np.asarray(solution.ys[:, 0] + solution.ys[:, 1])
    return (
        _epidemics.POPULATION
        / (1 + np.exp(-values["logit_reported"]))
        * -np.diff(not_yet_ill, axis=0)
    )


@pytest.mark.slow
def test_fixed_steps_are_short_enough_for_the_epidemics():
    rng = np.random.default_rng(0)
    counts = _epidemics.data()["counts"]
    assert counts.shape == (_epidemics.WEEKS, _epidemics.TOWNS)
    concentration = np.exp(_epidemics.TRUTH["log_concentration"])
    for spread in (0.0, 0.2, 0.2):
        values = {
            name: value + spread * rng.standard_normal(value.shape)
            for name, value in _epidemics.init().items()
        }
        coarse, fine = np.asarray(_epidemics.cases(values)), fine_cases(values)
        np.testing.assert_allclose(coarse, fine, rtol=1e-3)
        log = [
            np.sum(counts * np.log(m) - (counts + concentration) * np.log(m + concentration))
            for m in (coarse, fine)
        ]
        assert abs(log[0] - log[1]) < 1e-2


@pytest.mark.slow
def test_the_epidemics_have_twenty_parameters_on_the_real_line():
    values = {name: jnp.asarray(value) for name, value in _epidemics.init().items()}
    assert sum(value.size for value in values.values()) == 20
    density, trace = log_density(_epidemics.model, (), _epidemics.data(), values)
    assert np.isfinite(density)
    sites = {name: site["fn"].support for name, site in trace.items() if not site["is_observed"]}
    assert set(sites) == set(values)
    for name, support in sites.items():
        np.testing.assert_array_equal(biject_to(support)(values[name]), values[name])


@pytest.mark.interop
@pytest.mark.parametrize("length", [2.0, 5.0])
def test_gradients_of_adjusted_mclmc_are_counted(length):
    pytest.importorskip("blackjax", reason="needs the extra `interop`")
    from benchmarks.surrogate import _mclmc

    calls = []

    @jax.custom_vjp
    def potential(x):
        return 0.5 * jnp.sum(x**2)

    def forward(x):
        jax.debug.callback(lambda _: calls.append(1), x[0])
        return 0.5 * jnp.sum(x**2), x

    potential.defvjp(forward, lambda x, cotangent: (cotangent * x,))

    @jax.jit
    def chain(start, key):
        return _mclmc.sample_chain(lambda x: -potential(x), start, key, 300, length)

    path = chain(jnp.ones(5), jax.random.key(0))
    jax.effects_barrier()
    assert len(calls) == sum(path.gradients())
    assert abs(int(path.steps) / 300 - length) < 0.5
    # A normal target: second moments are right, so that the counted chain samples it.
    square = np.asarray(path.draws) ** 2
    assert abs(square.mean() - 1) < 0.3
