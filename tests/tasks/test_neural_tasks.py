"""Neural vector-valued control variates: zero mean for any weights, and what training buys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_cases import draw_rows, integrand, means_by_quadrature, variance_ratio

from mcmcpost.tasks import NeuralNetwork, Stochastic
from mcmcpost.tasks.trained import fit_stochastic


def random_weights(control, key):
    """Fill the silent last layer."""
    last = control.network.layers[-1]
    filled = jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape, leaf.dtype), last)
    return eqx.tree_at(lambda c: c.network.layers[-1], control, filled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "functions"),
    [
        (jax.nn.tanh, None),
        (jax.nn.silu, 1),
        (jax.nn.tanh, 3),
    ],
    ids=["tanh", "silu, one function", "tanh, three functions"],
)
def test_any_weights_integrate_to_zero_under_both_targets(activation, functions, key):
    shape = NeuralNetwork(width=8, depth=2, num_functions=functions, activation=activation)
    control = random_weights(shape.start(2, 2, key=key), key)
    mean, size = means_by_quadrature(control)
    assert (size > 0.1).all()
    np.testing.assert_allclose(mean / size, 0, atol=1e-7)


@pytest.mark.slow
def test_it_is_the_mixed_langevin_operator(rng, key):
    control = random_weights(NeuralNetwork(width=8, num_functions=3).start(2, 2, key=key), key)
    rows = draw_rows(rng, (4, 4))

    @jax.jit
    @jax.vmap
    def by_definition(x, s, task):
        jacobian = jax.jacrev(control.network)(x).reshape(3, 2, 2)
        operated = jnp.trace(jacobian, axis1=1, axis2=2) + control.network(x).reshape(3, 2) @ s
        return control.mixing[task] @ operated

    np.testing.assert_allclose(control(rows), by_definition(*rows), rtol=1e-10)


@pytest.mark.slow
def test_it_starts_at_zero_and_training_lowers_variance(rng, key):
    rows = draw_rows(rng, (300, 200))
    start, train = jax.random.split(key)
    control = NeuralNetwork(width=16, depth=1).start(2, 2, key=start)
    np.testing.assert_array_equal(control(rows), 0)
    choice = Stochastic(num_epochs=100, batch_size=20, learning_rate=3e-3)
    fit = fit_stochastic(control, rows, integrand(rows), choice, key=train)
    assert bool(fit.finite)
    assert (variance_ratio(fit.control, rng) > 10).all()
    assert np.abs(fit.control.mixing - control.mixing).max() > 0
    mean, size = means_by_quadrature(fit.control)
    np.testing.assert_allclose(mean / size, 0, atol=1e-7)


@pytest.mark.slow
def test_the_same_key_gives_the_same_network(key):
    first, again = (NeuralNetwork(width=4).start(2, 3, key=key) for _ in range(2))
    assert eqx.tree_equal(first, again)
    assert first.release_covariance() is first


@pytest.mark.parametrize("name", ["width", "depth", "num_functions"])
def test_an_empty_network_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` of at least 1"):
        NeuralNetwork(**{name: 0})
