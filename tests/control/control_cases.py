"""Problems and methods that several test modules share."""

import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from mcmcpost.control import (
    Auto,
    ControlFunctional,
    Distribution,
    Estimate,
    Lasso,
    Options,
    PlainMean,
    Ridge,
    Sample,
    SemiExact,
    Structured,
    VectorFields,
    ZeroVariance,
    estimate_expectations,
)
from mcmcpost.control.features.structure import Blocks
from mcmcpost.solve import ConjugateGradients
from mcmcpost.stein import SquaredExponential
from mcmcpost.tasks import PolynomialFamily, Stochastic, TrainedVectorValued, VectorValued
from mcmcpost.trace import Trace, make_trace

METHODS = {
    "plain": PlainMean(),
    "zv1": ZeroVariance(1),
    "zv2": ZeroVariance(2),
    "zv3_ridge": ZeroVariance(3, Ridge()),
    "zv3_lasso": ZeroVariance(3, Lasso()),
    "vf2": VectorFields(2),
    "cf": ControlFunctional(),
    "cf_given": ControlFunctional(SquaredExponential(2.0), 1e-4),
    "cf_cg": ControlFunctional(
        SquaredExponential(2.0), 1e-3, solver=ConjugateGradients(1e-8, 300, 50)
    ),
    "semi_exact": SemiExact(2, SquaredExponential(3.0), 1e-6),
    "vector_valued": VectorValued(SquaredExponential(2.0), nugget=1e-4),
    "trained": TrainedVectorValued(
        PolynomialFamily(2),
        key=jax.random.key(0),
        training=Stochastic(num_epochs=60, batch_size=50, learning_rate=2e-2),
    ),
    "structured": Structured(),
    "auto": Auto(),
}
"""Every control variate; a concrete class missing here fails `test_every_method_is_registered`."""


def gaussian_trace(rng: np.random.Generator, shape: tuple[int, ...] = (4, 100, 2)) -> Trace:
    """Return iid standard normal draws with their scores."""
    x = rng.normal(size=shape)
    return make_trace(x, -x)


def estimate(
    trace: Trace,
    values: np.ndarray,
    method: object,
    events: np.ndarray | None = None,
    **options: object,
) -> Estimate:
    """Estimate with names made up."""
    names = tuple(f"f{j}" for j in range(values.shape[-1]))
    return estimate_expectations(
        Sample.of(trace, names, values, events), method, Options(**options)
    )


def quantiles(
    trace: Trace,
    values: np.ndarray,
    levels: object,
    method: object = METHODS["plain"],
    events: np.ndarray | None = None,
) -> Estimate:
    """Estimate quantiles with names made up."""
    names = tuple(f"f{j}" for j in range(values.shape[-1]))
    return Distribution.of(Sample.of(trace, names, values, events), method, Options()).quantile(
        np.array(levels)
    )


def structure_fields(
    blocks: Blocks, shift: np.ndarray, scale: np.ndarray, d: int
) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield the vector fields of the families of named dimensions, in order, as functions of raw
    coordinates.

    Neighbours are those of lags 1 and 3.
    """
    unit = np.eye(d)
    k, m = blocks.globals, len(blocks.blocks[0])
    pairs = [(a, b) for a in range(len(blocks.blocks)) for b in range(len(blocks.blocks))]
    part = [jnp.asarray(unit[block]) for block in blocks.blocks]  # (m, d)

    def standard(x):
        return (x - shift) / scale

    own = np.diag(scale)  # from scores of standardised coordinates to raw fields
    for i in range(len(k)):
        for j in range(i, len(k)):
            yield lambda x, i=i, j=j: standard(x)[k[i]] * own[k[j]] + standard(x)[k[j]] * own[k[i]]
    for a, b in pairs:
        yield lambda x, a=a, b=b: (part[a] @ x) @ part[b]
        yield lambda x, a=a, b=b: jnp.sum(part[a] @ x) * part[b].sum(0) / m
    for a in range(len(part)):
        for i in k:
            yield lambda x, a=a, i=i: jnp.sum(part[a] @ x) / np.sqrt(m) * own[i]
        for i in k:
            yield lambda x, a=a, i=i: part[a].sum(0) / np.sqrt(m) * standard(x)[i]
    for a, b in pairs:
        for i in k:
            yield lambda x, a=a, b=b, i=i: ((part[a] @ x) @ part[b]) * standard(x)[i]
    for a, b in [pair for pair in pairs if pair[0] <= pair[1]]:
        for i in k:
            yield lambda x, a=a, b=b, i=i: (jnp.dot(part[a] @ x, part[b] @ x) / m - 1) * own[i]
    for a, lag in itertools.product(range(len(part)), (1, 3)):
        ahead = lambda x, a=a, lag=lag: (part[a] @ x)[:-lag] @ part[a][lag:]  # noqa: E731
        back = lambda x, a=a, lag=lag: (part[a] @ x)[lag:] @ part[a][:-lag]  # noqa: E731
        yield ahead
        yield back
        for field in (ahead, back):
            for i in k:
                yield lambda x, field=field, i=i: field(x) * standard(x)[i]
        for i in k:
            yield (
                lambda x, a=a, i=i, lag=lag: (
                    jnp.dot((part[a] @ x)[:-lag], (part[a] @ x)[lag:]) / m * own[i]
                )
            )
    for i in range(d):
        yield lambda x, i=i: standard(x)[i] * own[i]
    for i in blocks.blocks[1]:
        yield lambda x, i=i: standard(x)[k[0]] * own[i] + standard(x)[i] * own[k[0]]
