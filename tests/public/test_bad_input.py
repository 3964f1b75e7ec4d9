# ruff: noqa: ARG005  (most calls use one of the two arguments that all have)
"""Bad arguments of every public constructor and function: an `InputError` or `InputTypeError` that
names them.

Here the tests' own checker of types, which would refuse many of them first, is off.
"""

import inspect
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import mcmcpost as mp
from mcmcpost import control, gp, ladders, solve, stein, tasks
from mcmcpost.gp import (
    actions,
    gradient_solvers,
    linear_solvers,
    optimizers,
    surrogate,
    surrogate_hmc,
)
from mcmcpost.stein import products

INF, NAN, KEY = float("inf"), float("nan"), jax.random.key(0)
RBF = stein.SquaredExponential(2.0)

COUNT = (0, -1, 2.5, "3", True, NAN, [3], 10**400)
OPTIONAL_COUNT = (*COUNT,)
RATE = (0, -1.0, NAN, INF, "0.1", True, None, [0.1], 1j)
FLAG = ("no", 1, 0.0, None, [])
LEVEL = (0, 1, -0.5, 89, NAN, "0.89", True, [0.89])
KIND = ("name", 3, object(), [])
POSITIVE = (
    0.0,
    -1.0,
    NAN,
    INF,
    "2",
    True,
    None,
    1e160,
    1e-160,
    [],
    [1.0, -1.0],
    [[1.0], [1.0, 2.0]],
    np.ones((2, 2)),
    1j,
)
STRUCTURE = (
    *KIND,
    {"z": "ab"},
    {"z": 3},
    {"z": ("a", 3)},
    {"z": ("a",)},
    {"z": ("a", "b"), "w": ("b", "c")},
)
COVARIANCE = (
    "B",
    3.0,
    np.ones(2),
    np.ones((2, 3)),
    np.ones((2, 2)),
    [[1.0, 0.5], [0.4, 1.0]],
    np.full((2, 2), NAN),
)

CONSTRUCTORS = [
    (
        mp.ZeroVariance,
        {},
        {"degree": (*COUNT, None, 17), "penalty": (*KIND, mp.Ridge), "max_interaction": COUNT},
    ),
    (
        mp.VectorFields,
        {},
        {"degree": (*COUNT, None, 16), "penalty": (*KIND, mp.Ridge), "max_interaction": COUNT},
    ),
    (mp.Ridge, {}, {"strength": (-1.0, 0, NAN, INF, "a", True, [1.0])}),
    (mp.Lasso, {}, {"path_length": (*COUNT, None)}),
    (mp.Auto, {}, {"max_degree": COUNT, "kernel": FLAG, "max_work": (0, -1.0, np.nan, "a")}),
    (mp.Auto, {}, {"structure": STRUCTURE}),
    (mp.Structured, {}, {"structure": STRUCTURE}),
    (
        mp.REML,
        {},
        {
            "squared_lengthscales": ((), 3.0, "a", (0.0,), (-1.0,), (NAN,), ("a",)),
            "free_nugget": FLAG,
        },
    ),
    (mp.REML, {}, {"max_draws": (*COUNT, None), "max_steps": (*COUNT, None)}),
    (
        mp.GridREML,
        {},
        {"max_draws": (*COUNT, None), "max_steps": COUNT, "polish": ("yes", 1), "shared": FLAG},
    ),
    (
        mp.ControlFunctional,
        {},
        {"kernel": (*KIND, stein.Matern32), "nugget": (0, -1.0, NAN, INF, "a", True)},
    ),
    (
        mp.ControlFunctional,
        {},
        {"tuning": KIND, "solver": KIND, "budget": COUNT, "max_states": (*COUNT, 9)},
    ),
    (
        mp.SemiExact,
        {},
        {
            "degree": (*COUNT, None),
            "kernel": KIND,
            "nugget": (0, "a"),
            "tuning": KIND,
            "solver": KIND,
        },
    ),
    (mp.SemiExact, {}, {"budget": COUNT, "max_states": COUNT}),
    (
        mp.VectorValued,
        {},
        {
            "kernel": KIND,
            "covariance": COVARIANCE,
            "nugget": (0, -1.0, NAN, "a"),
            "degree": ("a", -1),
        },
    ),
    (
        mp.VectorValued,
        {},
        {"order": (0, 3, "1", 1.0), "tuning": KIND, "solver": KIND, "guard": FLAG},
    ),
    (
        mp.TaskREML,
        {},
        {"squared_lengthscales": ((), 3.0, ("a",)), "nugget": (*RATE, 1.0), "rank": COUNT},
    ),
    (mp.TaskREML, {}, {"max_draws": COUNT, "max_steps": COUNT}),
    (
        mp.ConvexTaskCovariance,
        {},
        {"penalty": RATE, "deltas": ((), 0.1, (0.1, 0.1), (0.1, 0.2), ("a",)), "kernel": KIND},
    ),
    (
        mp.Stochastic,
        {},
        {
            "num_epochs": COUNT,
            "batch_size": COUNT,
            "learning_rate": RATE,
            "penalty": (-1.0, NAN, "a"),
        },
    ),
    (mp.Stochastic, {}, {"learn_covariance": FLAG, "objective": KIND}),
    (mp.ChainVariance, {}, {"block": COUNT}),
    (mp.KernelFamily, {"kernel": RBF}, {"kernel": (*KIND, None), "covariance": COVARIANCE}),
    (mp.PolynomialFamily, {}, {"degree": (*COUNT, None), "covariance": COVARIANCE}),
    (mp.NeuralNetwork, {}, {"width": COUNT, "depth": COUNT, "num_functions": COUNT}),
    (mp.NeuralNetwork, {}, {"activation": ("tanh", None, lambda: 0.0, lambda a, b: a + b)}),
    (
        mp.TrainedVectorValued,
        {"family": mp.PolynomialFamily(), "key": KEY},
        {"family": KIND, "training": KIND},
    ),
    (
        mp.TrainedVectorValued,
        {"family": mp.PolynomialFamily(), "key": KEY},
        {"key": (None, 0, "key", np.zeros(2))},
    ),
    (
        mp.Coregionalisation,
        {"kernels": (RBF,), "covariances": np.eye(2)[None]},
        {"kernels": (RBF, "k", (), ("k",), [RBF])},
    ),
    (
        mp.Coregionalisation,
        {"kernels": (RBF,), "covariances": np.eye(2)[None]},
        {"order": (0, 3, "1")},
    ),
    (
        mp.Coregionalisation,
        {"kernels": (RBF,)},
        {"covariances": ("B", np.eye(2), [np.eye(2), np.eye(3)], 1j * np.eye(2))},
    ),
    (
        mp.ConjugateGradients,
        {},
        {"rtol": (0, 1, -1.0, NAN, "a", None), "budget": (0, -1, NAN, "a", None)},
    ),
    (mp.ConjugateGradients, {}, {"rank": (-1, 2.5, "a", True), "gain": (-1.0, 1.0, "a", NAN)}),
    (solve.AlternatingProjections, {}, {"rtol": (0, "a"), "budget": (0, "a"), "block_size": COUNT}),
    (
        solve.StochasticGradientDescent,
        {},
        {"rtol": (1, "a"), "budget": (0, "a"), "batch_size": COUNT},
    ),
    (solve.StochasticGradientDescent, {}, {"momentum": (1.0, -0.1, "a"), "step_size": (0, "a")}),
    (stein.SquaredExponential, {}, {"lengthscale": POSITIVE}),
    (stein.Matern32, {}, {"lengthscale": POSITIVE}),
    (stein.Matern52, {}, {"lengthscale": POSITIVE}),
    (stein.RationalQuadratic, {}, {"lengthscale": POSITIVE, "alpha": (*POSITIVE, [1.0])}),
    (stein.InverseMultiquadric, {}, {"lengthscale": POSITIVE, "exponent": (0, "a", NAN, [1.0])}),
    (
        stein.Polynomial,
        {"degree": 2},
        {"degree": COUNT, "offset": (-1.0, "a", NAN), "scale": POSITIVE, "centre": ("a", NAN)},
    ),
    (stein.ExponentialDotProduct, {}, {"scale": POSITIVE, "centre": ("a", INF, 1e160)}),
    (
        stein.Scaled,
        {"amplitude": 1.0, "kernel": RBF},
        {"amplitude": (*POSITIVE, [1.0]), "kernel": (*KIND, None)},
    ),
    (stein.Sum, {"first": RBF, "second": RBF}, {"first": KIND, "second": KIND}),
    (stein.Product, {"first": RBF, "second": RBF}, {"first": KIND, "second": KIND}),
    (stein.Weighted, {"kernel": RBF, "alpha": 1.0}, {"kernel": KIND, "alpha": (-1.0, "a", NAN)}),
    (
        gp.IterativeGP,
        {},
        {
            "kernel": KIND,
            "noise": RATE,
            "optimise": FLAG,
            "solver": KIND,
            "estimator": KIND,
            "scale": KIND,
        },
    ),
    (
        gp.IterativeGP,
        {},
        {"learning_rate": RATE, "num_steps": COUNT, "warm_start": FLAG, "subset_start": KIND},
    ),
    (gp.IterativeGP, {}, {"precision": ("half", 64, None), "progress": FLAG}),
    (
        gp.ComputationAwareGP,
        {},
        {"kernel": KIND, "noise": RATE, "num_actions": COUNT, "policy": KIND, "objective": KIND},
    ),
    (gp.ComputationAwareGP, {}, {"optimiser": KIND, "optimise": FLAG}),
    (
        gp.GradientGP,
        {},
        {
            "kernel": KIND,
            "noise": (-1.0, NAN, "a"),
            "solver": KIND,
            "tune": FLAG,
            "max_steps": COUNT,
        },
    ),
    (gp.GradientGP, {}, {"mean": ("a", 0.0, lambda: 0.0)}),
    (gp.SubsetStart, {}, {"num_subsets": COUNT, "size": COUNT, "num_steps": COUNT}),
    (gp.LBFGS, {}, {"max_steps": COUNT, "max_seconds": (0, -1, NAN, "a", None), "memory": COUNT}),
    (
        gp.Adam,
        {},
        {"rate": RATE, "max_steps": COUNT, "max_seconds": (0, "a"), "final": (-1.0, "a")},
    ),
    (gp.BlockActions, {}, {"learn": FLAG, "near": FLAG}),
    (
        actions.GivenActions,
        {"matrix": np.eye(3)},
        {"matrix": ("a", np.ones(3), [[1.0], [1.0, 2.0]]), "learn": FLAG},
    ),
    (
        gradient_solvers.GradientCG,
        {},
        {"rtol": (0, 1, "a"), "max_steps": COUNT, "project": FLAG, "precondition": ("a", 1)},
    ),
    (gp.Automatic, {}, {"dense_order": (-1, 2.5, "a"), "rtol": (0, "a"), "max_steps": COUNT}),
    (gp.GPX, {}, {"memory": COUNT, "window": COUNT, "kernel": KIND, "quasi_newton": FLAG}),
    (
        gp.GPH,
        {},
        {
            "memory": COUNT,
            "window": COUNT,
            "kernel": (*KIND, stein.Polynomial(2)),
            "quasi_newton": FLAG,
        },
    ),
    (linear_solvers.MatrixBased, {}, {"own_metric": FLAG}),
    (linear_solvers.SolutionBased, {}, {"own_metric": FLAG}),
    (
        gp.SubspaceSurrogate,
        {},
        {"num_training": COUNT, "dimension": COUNT, "kernel": KIND, "num_tuning": COUNT},
    ),
    (gp.SubspaceSurrogate, {}, {"tuning_steps": COUNT}),
    (
        gp.SurrogateHMC,
        {"model": print},
        {"model": ("m", 3), "surrogate": KIND, "num_steps": COUNT, "refinement": COUNT},
    ),
    (gp.SurrogateHMC, {"model": print}, {"true_gradient_probability": (-0.1, 1.1, "a", NAN, None)}),
    (
        gp.SurrogateHMC,
        {"model": print},
        {"delayed_acceptance": COUNT, "max_gradient_error": (-1.0, NAN, "a")},
    ),
    (
        gp.SurrogateHMC,
        {"model": print},
        {"history_size": COUNT, "step_size": RATE, "dense_mass": FLAG},
    ),
    (
        gp.SurrogateHMC,
        {"model": print},
        {"target_accept_prob": (0, 1, "a"), "init_strategy": ("a", 3)},
    ),
    (gp.SurrogateHMC, {}, {"potential_fn": ("a", 3, lambda: 0.0)}),
]
"""Classes, arguments that are right, and by name values that are wrong."""


@pytest.fixture(scope="module", autouse=True)
def unchecked_types():
    """Call the library as users do, without the tests' checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def refuses(call, name):
    """Whether a call ends in an error of ours that has the argument's name and the three parts of a
    message."""
    with pytest.raises((mp.InputError, mp.InputTypeError)) as error:
        call()
    text = str(error.value)
    return (
        name in text
        and ": expected " in text
        and ", got " in text
        and text.endswith((".", "…", ")"))
    )


@pytest.mark.parametrize(
    ("kind", "right", "name", "wrong"),
    [
        pytest.param(kind, right, name, wrong, id=f"{kind.__name__}-{name}")
        for kind, right, arguments in CONSTRUCTORS
        for name, wrong in arguments.items()
    ],
)
def test_constructors_refuse(kind, right, name, wrong):
    for value in wrong:
        assert refuses(lambda value=value: kind(**(right | {name: value})), name), repr(value)


NO_CHOICE = (
    "Abstract",
    "Fitted",
    "Matrix",
    "SteinTile",
    "SecondOrder",
    "ScalarProfile",
    "GradientGram",
    "JointEstimate",
    "DenseActions",
    "SparseActions",
    "Planned",
    "PositiveMatrix",
    "_",
)


BEHIND_THE_DOOR = (actions, gradient_solvers, linear_solvers, optimizers, surrogate, surrogate_hmc)


def public_classes():
    """Yield every class of the documented packages whose constructor takes arguments of a user."""
    for package in (mp, stein, control, solve, tasks, ladders, gp, *BEHIND_THE_DOOR):
        for name in getattr(package, "__all__", dir(package)):
            kind = getattr(package, name)
            if package in BEHIND_THE_DOOR and getattr(kind, "__module__", "") != package.__name__:
                continue
            record = isinstance(kind, type) and issubclass(kind, (tuple, Exception, str, int))
            if isinstance(kind, type) and not record and not name.startswith(NO_CHOICE):
                yield kind


def test_every_argument_of_every_constructor_stands_above():
    asked = {(kind, name) for kind, _, arguments in CONSTRUCTORS for name in arguments}
    there = {
        (kind, name) for kind in public_classes() for name in inspect.signature(kind).parameters
    }
    assert {(kind.__name__, name) for kind, name in there - asked} <= {
        ("MatrixBased", "own_metric")
    }


@pytest.mark.slow
def test_right_choices_pass_also_where_jax_traces_them():
    slope = jax.grad(
        lambda length: jnp.sum(stein.gram(stein.Scaled(length, stein.Matern32(length)), jnp.eye(2)))
    )
    assert jnp.isfinite(jax.jit(slope)(1.5))
    assert mp.ControlFunctional(RBF, np.float32(1e-4), budget=np.int64(3)).budget == 3
    assert isinstance(gp.IterativeGP(noise=1).noise, float)


# Functions: what they are given, and the cases.
# -----------------------------------------------------------------------


def density(x):
    return -0.5 * jnp.sum(x**2)


def draw_of_prior(key):
    return jax.random.normal(key, (2,))


@pytest.fixture(scope="module")
def given():
    """A small trace and ladder, and what was computed from them."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 50, 2))
    tree = mp.from_arrays(draws, -draws, names=("a", "b"))
    levels = np.array([0.0, 0.5, 1.0])
    rungs = rng.normal(size=(2, 20, 3, 2)) / np.sqrt(1 + levels)[:, None]
    arrays = {
        "temperatures": levels,
        "draws": rungs,
        "log_likelihood": -0.5 * (rungs**2).sum(-1),
        "gradient_log_likelihood": -rungs,
        "gradient_log_prior": -rungs,
    }
    equal = mp.SteinWeights(np.full((4, 50), 1 / 200), 1.0, mp.Status.CONTROLLED, {}, None, 0)
    return SimpleNamespace(
        draws=draws,
        tree=tree,
        other=mp.from_arrays(draws[:, :40], -draws[:, :40]),
        ladder=mp.ladder_from_arrays(**arrays),
        arrays=arrays,
        weights=equal,
        estimate=mp.expectation(tree, method="plain"),
        check=mp.check_tree(tree),
        evidence=mp.EvidenceEstimate("bridge", -1.0, 0.1, mp.Status.PLAIN, {}),
        ladder_evidence=mp.Evidence(**dict.fromkeys(mp.Evidence._fields)),
    )


NOT_TREES = (
    "trace.nc",
    3,
    np.ones((4, 50, 2)),
    {"posterior": 1},
    pd.DataFrame({"a": [1.0]}),
    xr.Dataset(),
    xr.DataTree,
)
NAMES = ("ab", ("a",), ("a", "a"), ("a", 3), 3, b"ab", {})
MOMENTS = (
    1.0,
    "ab",
    (1,),
    (0.0, 1.0, 2.0),
    (0.0, -1.0),
    (0.0, 0.0),
    (np.zeros(3), 1.0),
    (NAN, 1.0),
    ("a", "b"),
    {},
    (1j, 1),
)
FOLDS = (1, 0, -3, "a", 2.0, True, NAN, [4], 10**9)
METHODS = ("zv9", "", None, 3, mp.ZeroVariance, [mp.PlainMean()], RBF)
ARRAYS = (
    "a",
    None,
    [[1.0], [1.0, 2.0]],
    np.zeros(0),
    np.full((4, 50, 2), "a"),
    1j * np.ones((4, 50, 2)),
    np.ones((4, 50)),
)
NOT_ONE = (None, 3, "x", np.ones((4, 50, 2)), np.ones(50))
KEYS = (None, 3, "key", np.zeros(3), jax.random.split(KEY, 2))
NO_DENSITY = (
    "f",
    3,
    lambda: 0.0,
    lambda a, b: 0.0,
    lambda x: x,
    lambda x: None,
    lambda x: "a",
    lambda x: (1.0, 2.0),
)
NO_DENSITIES = (
    *NO_DENSITY,
    lambda x: 1j * x.sum(),
    lambda x: 1,
    lambda x: float(np.asarray(x).sum()),
)
PRIORS = (
    {"m": 1},
    {"m": 1, "n": -1},
    {"m": 1, "n": 0},
    "a",
    [0.5, 0.5],
    {"m": "x", "n": 1},
    {"m": NAN, "n": 1},
)
X = np.random.default_rng(1).normal(size=(8, 2))


def plain(g, integrands=None, **options):
    return mp.expectation(g.tree, integrands, "plain", **options)


def ladder_with(g, **changes):
    return mp.ladder_from_arrays(**(g.arrays | changes))


def nested(**changes):
    right = {
        "samples": np.eye(2),
        "logwt": np.zeros(2),
        "samples_n": np.ones(2),
        "logz": np.zeros(2),
        "logzerr": [0, 0],
    }
    return SimpleNamespace(**(right | changes))


def sampled(**changes):
    short = {
        "temperatures": [0.0, 0.5, 1.0],
        "key": KEY,
        "num_warmup": 2,
        "num_samples": 2,
        "num_chains": 1,
    }
    functions = {"log_likelihood": density, "log_prior": density, "sample_prior": draw_of_prior}
    return mp.sample_power_posteriors(**(short | functions | changes))


def labelled(values, **coords):
    return xr.DataArray(values, dims=("chain", "draw"), coords=coords)


ROWS = [
    # the values of one argument, the call, and words of the message
    (NOT_TREES, lambda g, v: mp.expectation(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.summary(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.quantile(v, 0.5), "DataTree"),
    (NOT_TREES, lambda g, v: mp.variance(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.standard_deviation(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.covariance(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.correlation(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.delta_method(v, {"f": lambda mean: mean["a"]}), "DataTree"),
    (NOT_TREES, lambda g, v: mp.stein_weights(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.stein_thinning(v, 3), "DataTree"),
    (NOT_TREES, lambda g, v: mp.kernel_stein_discrepancy(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.check_tree(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.log_evidence(v), "DataTree"),
    (NOT_TREES, lambda g, v: mp.bridge_evidence(v, logdensity_fn=density, key=KEY), "DataTree"),
    (NOT_TREES, lambda g, v: mp.laplace_evidence(v, logdensity_fn=density, key=KEY), "DataTree"),
    (NOT_TREES, lambda g, v: mp.attach_scores(v, logdensity_fn=density), "DataTree"),
    (NOT_TREES, lambda g, v: mp.joint_expectation({"task": (v, None)}), "DataTree"),
    (NOT_TREES, lambda g, v: mp.adaptive_ladder(v, 5), "DataTree"),
    (NOT_TREES, lambda g, v: mp.barrier_ladder(v, 5), "DataTree"),
    (NOT_TREES, lambda g, v: sampled(reference=v), "DataTree"),
    (("ladder",), lambda g, v: sampled(reference=g.ladder), "posterior, got a ladder"),
    ((0, 1, -3, 10**9), lambda g, v: sampled(reference=g.tree, temperatures=v), "temperatures"),
    ((NAMES[0], NAMES[1]), lambda g, v: sampled(reference=g.tree, names=v), "names"),
    (NOT_TREES, lambda g, v: mp.add_rungs(v, [0.5], key=KEY), "DataTree"),
    (NOT_TREES, lambda g, v: mp.save_tree(v, "new.nc"), "DataTree"),
    (NOT_TREES, lambda g, v: mp.html_report(v), "DataTree"),
    (NOT_TREES[1:], lambda g, v: mp.ladder_from_traces({0.0: v, 1.0: v}), "DataTree"),
    (NOT_TREES, lambda g, v: g.estimate.to_datatree(v), "DataTree"),
    (NOT_TREES, lambda g, v: g.weights.to_datatree(v), "DataTree"),
    ((xr.DataTree(),), lambda g, v: mp.expectation(v), "sample_stats"),
    ((xr.DataTree(),), lambda g, v: mp.log_evidence(v), "sample_stats"),
    ((xr.DataTree(),), lambda g, v: mp.attach_scores(v, logdensity_fn=density), "posterior"),
    (
        (xr.DataTree(),),
        lambda g, v: mp.bridge_evidence(v, logdensity_fn=density, key=KEY),
        "posterior",
    ),
    (({"q": {"r": 1}},), lambda g, v: mp.expectation(g.tree, v), "real numeric array, got a dict"),
    (("ladder",), lambda g, v: mp.expectation(g.ladder), "a trace of one target"),
    (
        ("trace",),
        lambda g, v: mp.log_evidence(g.tree),
        "unconstrained draws, got|dim and coordinate|gradient",
    ),
    # integrands
    (
        (
            "zz",
            ["zz"],
            ["a", "a"],
            ("a", "zz"),
            [],
            {},
            ["a", 3],
            3,
            1.5,
            {"a", "b"},
            b"a",
            xr.DataTree(),
        ),
        plain,
        "integrands",
    ),
    (
        (np.zeros((4, 50, 0)), np.zeros(0), np.ones((50, 4)), np.ones((4, 40)), np.ones(200)),
        plain,
        "integrands",
    ),
    (
        (
            [[1.0], [1.0, 2.0]],
            np.full((4, 50), "a"),
            np.full((4, 50), object()),
            1j * np.ones((4, 50)),
        ),
        plain,
        "`f`|a mapping to such",
    ),
    (
        (np.ma.masked_equal(np.eye(4, 50), 1), pd.DataFrame(np.eye(50, 4)), object()),
        plain,
        "`f`|a mapping to such",
    ),
    (
        ("chain", "draw"),
        lambda g, v: plain(
            g, labelled(g.draws[..., 0], **{v: range(4 if v == "chain" else 50)[::-1]})
        ),
        "`f`",
    ),
    (
        (lambda: 1.0, lambda a, b: a, lambda *, key: key),
        lambda g, v: plain(g, {"q": v}),
        "q` to be a function of one",
    ),
    (
        (lambda d: None, lambda d: "a", lambda d: {"a": 1.0}, lambda d: object()),
        lambda g, v: plain(g, {"q": v}),
        "q`",
    ),
    (
        (
            lambda d: [[1.0], [1.0, 2.0]],
            lambda d: jnp.zeros(0),
            lambda d: 1j * d["a"],
            lambda d: 10**30,
        ),
        lambda g, v: plain(g, {"q": v}),
        "q`",
    ),
    (
        (lambda d: np.ones(1 + (float(d["a"]) > 0)), lambda d: [float(d["a"]), "a"]),
        lambda g, v: plain(g, {"q": v}),
        "q`",
    ),
    ((None, 3, "a", {"r": 1.0}, np.ones(200)), lambda g, v: plain(g, {"q": v}), "q`"),
    ((3, None, ("a", "b")), lambda g, v: plain(g, {v: g.draws[..., 0]}), "names"),
    # the options of expectation and its like
    (METHODS, lambda g, v: mp.expectation(g.tree, method=v), "method"),
    (METHODS, lambda g, v: mp.quantile(g.tree, 0.5, method=v), "method"),
    (METHODS, lambda g, v: mp.html_report(g.tree, method=v), "method"),
    (METHODS[:2] + METHODS[3:], lambda g, v: mp.log_evidence(g.ladder, v), "method"),
    (MOMENTS, lambda g, v: plain(g, standardize=v), "standardize"),
    (
        MOMENTS,
        lambda g, v: mp.joint_expectation({"t": (g.tree, None)}, standardize=v),
        "standardize",
    ),
    (MOMENTS, lambda g, v: mp.stein_weights(g.tree, standardize=v), "standardize"),
    (MOMENTS, lambda g, v: mp.log_evidence(g.ladder, standardize=v), "standardize"),
    (FOLDS, lambda g, v: plain(g, folds=v), "folds"),
    (FOLDS, lambda g, v: mp.quantile(g.tree, 0.5, method="plain", folds=v), "folds"),
    (FOLDS, lambda g, v: mp.joint_expectation({"t": (g.tree, None)}, folds=v), "folds"),
    (FOLDS, lambda g, v: mp.log_evidence(g.ladder, folds=v), "folds"),
    (FLAG, lambda g, v: plain(g, allow_bad_scores=v), "allow_bad_scores"),
    (FLAG, lambda g, v: mp.stein_weights(g.tree, allow_bad_scores=v), "allow_bad_scores"),
    (FLAG, lambda g, v: mp.stein_thinning(g.tree, 3, allow_bad_scores=v), "allow_bad_scores"),
    (FLAG, lambda g, v: mp.from_arrays(g.draws, -g.draws, allow_bad_scores=v), "allow_bad_scores"),
    (
        ("a", 1.0, [[0.0]], np.zeros((4, 49)), np.full((4, 50), NAN), np.full((4, 50), -INF)),
        lambda g, v: mp.from_arrays(g.draws, -g.draws, log_weights=v),
        "log_weights",
    ),
    (
        ("a", 1.0, np.zeros((4, 50)), np.full((4, 50), NAN), np.ones((50, 4))),
        lambda g, v: mp.from_arrays(g.draws, -g.draws, log_weights=np.zeros((4, 50)), num_live=v),
        "num_live",
    ),
    (
        (np.ones((4, 50)),),
        lambda g, v: mp.from_arrays(g.draws, -g.draws, num_live=v),
        "log_weights",
    ),
    (
        (None, "results", np.ones((3, 2)), {"samples": 1}),
        lambda g, v: mp.from_dynesty(v),
        "results with",
    ),
    (
        ("a", np.ones(3), [[NAN], [1.0]]),
        lambda g, v: mp.from_dynesty(nested(samples=v)),
        "samples|names|finite",
    ),
    (
        ("a", np.ones(3), np.array([NAN, 0.0])),
        lambda g, v: mp.from_dynesty(nested(logwt=v)),
        "logwt|log_weights",
    ),
    (
        ("a", np.ones(3), np.zeros(2)),
        lambda g, v: mp.from_dynesty(nested(samples_n=v)),
        "samples_n|num_live",
    ),
    (NAMES, lambda g, v: mp.from_dynesty(nested(), v), "names"),
    ((None, "tree", 3, {}), lambda g, v: mp.resample(v, key=KEY), "DataTree"),
    (("tree",), lambda g, v: mp.resample(g.tree, key=KEY), "log_weight"),
    (KEYS, lambda g, v: mp.resample(g.tree, key=v), "key"),
    (COUNT, lambda g, v: mp.resample(g.tree, key=KEY, num_draws=v), "num_draws"),
    (FLAG, lambda g, v: mp.check_tree(g.tree, v), "allow_bad_scores"),
    (FLAG, lambda g, v: mp.log_evidence(g.ladder, allow_bad_scores=v), "allow_bad_scores"),
    (
        FLAG,
        lambda g, v: mp.attach_scores(g.tree, logdensity_fn=density, allow_bad_scores=v),
        "allow_bad_scores",
    ),
    (FLAG, lambda g, v: mp.html_report(g.tree, allow_bad_scores=v), "allow_bad_scores"),
    (
        FLAG,
        lambda g, v: mp.joint_expectation({"t": (g.tree, None)}, allow_bad_scores=v),
        "allow_bad_scores",
    ),
    (FLAG, lambda g, v: plain(g, fallback=v), "fallback"),
    (FLAG, lambda g, v: mp.log_evidence(g.ladder, fallback=v), "fallback"),
    (FLAG, lambda g, v: mp.joint_expectation({"t": (g.tree, None)}, fallback=v), "fallback"),
    (
        (0, 1, -1, 95, NAN, [0.5, 2.0], [], [[0.5]]),
        lambda g, v: mp.quantile(g.tree, v),
        "probabilities",
    ),
    (("a", None, {}, 1j, ["a"]), lambda g, v: mp.quantile(g.tree, v), "probabilities"),
    (METHODS, lambda g, v: mp.standard_deviation(g.tree, method=v), "method"),
    (FOLDS, lambda g, v: mp.standard_deviation(g.tree, method="plain", folds=v), "folds"),
    (
        MOMENTS,
        lambda g, v: mp.delta_method(g.tree, {"f": lambda m: m["a"]}, method="zv1", standardize=v),
        "standard",
    ),
    (FLAG, lambda g, v: mp.covariance(g.tree, method="plain", fallback=v), "fallback"),
    (FLAG, lambda g, v: mp.correlation(g.tree, allow_bad_scores=v), "allow_bad_scores"),
    ((["a"],), lambda g, v: mp.correlation(g.tree, v), "at least two"),
    (FLAG, lambda g, v: mp.summary(g.tree, method="plain", sd=v), "sd"),
    (
        (0.0, [1.5], [NAN], "a", [[0.5]]),
        lambda g, v: mp.summary(g.tree, method="plain", quantiles=v),
        "probabilities",
    ),
    (FLAG, lambda g, v: mp.summary(g.tree, method="plain", median=v), "median"),
    (LEVEL, lambda g, v: mp.summary(g.tree, method="plain", ci_prob=v), "ci_prob"),
    (
        ("ETI", "", 3, ["eti"]),
        lambda g, v: mp.summary(g.tree, method="plain", ci_kind=v),
        "ci_kind",
    ),
    (("a", None, 3, {}, {1: abs}, [abs]), lambda g, v: mp.delta_method(g.tree, v), "functions"),
    (
        (None, 3, "a", lambda: 1.0, lambda a, b: a),
        lambda g, v: mp.delta_method(g.tree, {"q": v}),
        "q` to be",
    ),
    (
        (
            lambda m: None,
            lambda m: "a",
            lambda m: {},
            lambda m: jnp.ones(2),
            lambda m: 1j * m["a"],
            lambda m: [m["a"]],
        ),
        lambda g, v: mp.delta_method(g.tree, {"q": v}, method="plain"),
        "q` to return",
    ),
    (
        (
            lambda m: np.exp(m["a"]),
            lambda m: float(m["a"]),
            lambda m: m["a"] if m["a"] > 0 else 1.0,
        ),
        lambda g, v: mp.delta_method(g.tree, {"q": v}, method="plain"),
        "q` in operations of jax.numpy",
    ),
    (NOT_TREES, lambda g, v: mp.elpd(v), "DataTree"),
    ((3, b"y", ["y"]), lambda g, v: mp.elpd(g.tree, v), "var_name"),
    (("y", None), lambda g, v: mp.elpd(g.tree, v), "log_likelihood"),
    (FLAG, lambda g, v: mp.from_numpyro(None, log_likelihood=v), "log_likelihood"),
    (
        (1e200, 1e-200),
        lambda g, v: mp.delta_method(g.tree, {"q": abs}, g.draws * v, "plain"),
        "integrands",
    ),
    (("a", 3, [], None, [("t", (1, 2))]), lambda g, v: mp.joint_expectation(v), "tasks"),
    (({}, {3: (None, None)}), lambda g, v: mp.joint_expectation(v), "tasks"),
    ((None, 3, (1,), (1, 2, 3), [1, 2]), lambda g, v: mp.joint_expectation({"t": v}), "t"),
    (
        ("zv2", mp.ZeroVariance(2), 3, mp.VectorValued),
        lambda g, v: mp.joint_expectation({"t": (g.tree, None)}, v),
        "method",
    ),
    # weights and thinning
    (
        ("cf", mp.ZeroVariance(2), 3, "", 0),
        lambda g, v: mp.stein_weights(g.tree, method=v),
        "method",
    ),
    ((np.ones((4, 50)), "a", 3), lambda g, v: mp.stein_weights(g.tree, initial=v), "initial"),
    (
        (np.ones((4, 50)), "a", 3),
        lambda g, v: mp.kernel_stein_discrepancy(g.tree, weights=v),
        "weights",
    ),
    (
        ("of other draws",),
        lambda g, v: mp.kernel_stein_discrepancy(g.tree, weights=g.weights),
        "weights",
    ),
    (
        ("of other draws",),
        lambda g, v: mp.kernel_stein_discrepancy(g.other, weights=g.weights),
        "weights",
    ),
    (("of other draws",), lambda g, v: g.weights.to_datatree(g.tree), "draws of the weights"),
    (
        ("a", np.ones((50, 4)), np.full((4, 50), "a"), [[1], [2, 3]], None),
        lambda g, v: g.weights.mean(v),
        "values",
    ),
    (("a", np.ones(200)), lambda g, v: g.weights.model_error(v), "values"),
    (
        ("rbf", stein.Matern32, 3, 0, "", False),
        lambda g, v: mp.kernel_stein_discrepancy(g.tree, v),
        "kernel",
    ),
    (
        ("rbf", stein.Matern32, 3, 0, "", False),
        lambda g, v: mp.stein_thinning(g.tree, 3, v),
        "kernel",
    ),
    ((*COUNT, None, 201, 10**9), lambda g, v: mp.stein_thinning(g.tree, v), "size"),
    # arrays
    (ARRAYS, lambda g, v: mp.from_arrays(v, -g.draws), "draws"),
    (ARRAYS, lambda g, v: mp.from_arrays(g.draws, v), "scores"),
    (
        (*ARRAYS[:1], *ARRAYS[2:], np.zeros((4, 50, 0))),
        lambda g, v: mp.from_arrays(g.draws, -g.draws, v),
        "values",
    ),
    ((1e-200, 1e200, NAN, INF), lambda g, v: mp.from_arrays(g.draws * v, -g.draws), "draws"),
    (NAMES, lambda g, v: mp.from_arrays(g.draws, -g.draws, names=v), "names"),
    (NAMES, lambda g, v: mp.from_arrays(g.draws, -g.draws, g.draws, value_names=v), "value_names"),
    (
        (("chain", "b"), ("a/b", "c")),
        lambda g, v: mp.from_arrays(g.draws, -g.draws, names=v),
        "names",
    ),
    (
        ("draw",),
        lambda g, v: mp.from_arrays(
            *(
                xr.DataArray(g.draws, dims=("chain", v, "p"), coords={v: order})
                for order in (range(50), range(50)[::-1])
            )
        ),
        "scores",
    ),
    # log densities
    (NO_DENSITIES, lambda g, v: mp.attach_scores(g.tree, logdensity_fn=v), "logdensity_fn"),
    (
        NO_DENSITIES,
        lambda g, v: mp.bridge_evidence(g.tree, logdensity_fn=v, key=KEY),
        "logdensity_fn",
    ),
    (
        NO_DENSITIES,
        lambda g, v: mp.laplace_evidence(g.tree, logdensity_fn=v, key=KEY),
        "logdensity_fn",
    ),
    (
        (*COUNT, None),
        lambda g, v: mp.attach_scores(g.tree, logdensity_fn=density, batch_size=v),
        "batch_size",
    ),
    (("model", 3), lambda g, v: mp.attach_scores(g.tree, v), "model"),
    (("neither",), lambda g, v: mp.attach_scores(g.tree), "logdensity_fn"),
    ((lambda y: None,), lambda g, v: mp.attach_scores(g.tree, v), "arguments of `model"),
    (
        (lambda y: None,),
        lambda g, v: mp.attach_scores(g.tree, v, 1.0, zz=2.0),
        "arguments of `model",
    ),
    (KEYS, lambda g, v: mp.bridge_evidence(g.tree, logdensity_fn=density, key=v), "key"),
    (KEYS, lambda g, v: mp.laplace_evidence(g.tree, logdensity_fn=density, key=v), "key"),
    (KEYS, lambda g, v: sampled(key=v), "key"),
    (KEYS, lambda g, v: mp.add_rungs(g.ladder, [0.5], key=v), "key"),
    (
        (-1, "a", 1.5, True, [1], 50),
        lambda g, v: mp.bridge_evidence(g.tree, logdensity_fn=density, key=KEY, degree=v),
        "degree",
    ),
    (
        ("yes", 1, None),
        lambda g, v: mp.bridge_evidence(g.tree, logdensity_fn=density, key=KEY, allow_bad_scores=v),
        "allow_bad_scores",
    ),
    (("x", 3, True), lambda g, v: mp.log_evidence(g.ladder, bridge=v), "bridge"),
    (
        (*COUNT, 1),
        lambda g, v: mp.laplace_evidence(g.tree, logdensity_fn=density, key=KEY, num_proposals=v),
        "num_p",
    ),
    (
        ("x", 3, True, []),
        lambda g, v: mp.bridge_evidence(g.tree, logdensity_fn=density, key=KEY, method=v),
        "method",
    ),
    # evidence
    (("x", 3, None, []), lambda g, v: mp.log_evidence(g.ladder, path=v), "path"),
    ((-1, "a", 1.5, True, 10**5), lambda g, v: mp.log_evidence(g.ladder, degree=v), "degree"),
    ((*COUNT, 1, 201, 10**9), lambda g, v: mp.log_evidence(g.ladder, num_nodes=v), "num_nodes"),
    (
        ([0.0, 0.5], [0.5, 1.0], [0.0, 1.0, 0.5], [0.0, 0.5, 0.5], [0.0, NAN, 1.0]),
        lambda g, v: ladder_with(g, temperatures=v),
        "ladder|temperatures",
    ),
    (
        (None, "a", ["a"], [], 1.0, [[1], [2, 3]], 1j),
        lambda g, v: ladder_with(g, temperatures=v),
        "temperatures",
    ),
    (ARRAYS, lambda g, v: ladder_with(g, draws=v), "draws"),
    (ARRAYS, lambda g, v: ladder_with(g, log_likelihood=v), "log_likelihood"),
    (ARRAYS, lambda g, v: ladder_with(g, gradient_log_likelihood=v), "gradient_log_likelihood"),
    (ARRAYS, lambda g, v: ladder_with(g, gradient_log_prior=v), "gradient_log_prior"),
    (NAMES, lambda g, v: ladder_with(g, names=v), "names"),
    (
        (1e200, 1e-200),
        lambda g, v: ladder_with(g, log_likelihood=v * g.arrays["log_likelihood"]),
        "log_likelihood",
    ),
    ((1e200, 1e-200), lambda g, v: ladder_with(g, draws=v * g.arrays["draws"]), "draws"),
    ((*COUNT, 1, None, 10**10), lambda g, v: mp.power_ladder(v), "size"),
    ((*COUNT, 1, None, 10**10), lambda g, v: mp.geometric_ladder(v), "size"),
    ((*COUNT, 1, None, 10**10), lambda g, v: mp.adaptive_ladder(g.ladder, v), "size"),
    ((*COUNT, 1, 10**10), lambda g, v: mp.barrier_ladder(g.ladder, v), "size"),
    ((*RATE, 1e5), lambda g, v: mp.power_ladder(5, v), "power"),
    ((*RATE, 1.0), lambda g, v: mp.geometric_ladder(5, v), "smallest"),
    (([], None, 3, "ab"), lambda g, v: mp.compare_evidence(v), "evidences"),
    ((1, None), lambda g, v: mp.compare_evidence({v: g.evidence}), "got [1]|got [None]"),
    (
        ({}, {"m": None}, {"m": 1.0, "n": 2.0}, {"m": None, "n": "x"}),
        lambda g, v: mp.compare_evidence(v),
        "compare_evidence",
    ),
    ((1, None), lambda g, v: mp.compare_evidence({v: g.evidence, "n": g.evidence}), "evidences"),
    (
        (NAN, INF),
        lambda g, v: mp.compare_evidence({"m": g.evidence, "n": g.evidence._replace(value=v)}),
        "for n",
    ),
    (PRIORS, lambda g, v: mp.compare_evidence({"m": g.evidence, "n": g.evidence}, v), "prior"),
    # prior sensitivity
    (NOT_TREES, lambda g, v: mp.reweight_prior(v, np.zeros((4, 50))), "DataTree"),
    (NOT_TREES, lambda g, v: mp.hyper_derivatives(v, np.zeros((4, 50))), "DataTree"),
    (
        (None, 3, "x", np.ones((4, 50, 2)), np.ones(50)),
        lambda g, v: mp.reweight_prior(g.tree, v),
        "log_ratio|integrand",
    ),
    (NOT_ONE, lambda g, v: mp.hyper_derivatives(g.tree, v), "slope|integrand"),
    (
        (np.full((4, 50), NAN), np.full((4, 50), INF)),
        lambda g, v: mp.reweight_prior(g.tree, v),
        "log_ratio",
    ),
    (
        (lambda draw: draw["a"] > 0, np.ones((4, 50), bool)),
        lambda g, v: mp.reweight_prior(g.tree, v),
        "`log_ratio` to be a number a draw, got True or False",
    ),
    (METHODS, lambda g, v: mp.reweight_prior(g.tree, np.zeros((4, 50)), method=v), "method"),
    (METHODS, lambda g, v: mp.hyper_derivatives(g.tree, np.zeros((4, 50)), method=v), "method"),
    (
        FLAG,
        lambda g, v: mp.reweight_prior(g.tree, np.zeros((4, 50)), allow_bad_scores=v),
        "allow_bad_scores",
    ),
    (
        FLAG,
        lambda g, v: mp.hyper_derivatives(g.tree, np.zeros((4, 50)), allow_bad_scores=v),
        "allow_bad_scores",
    ),
    # sampling of ladders
    ((*COUNT, None), lambda g, v: sampled(num_warmup=v), "num_warmup"),
    ((*COUNT, None), lambda g, v: sampled(num_samples=v), "num_samples"),
    ((*COUNT, None), lambda g, v: sampled(num_chains=v), "num_chains"),
    (COUNT, lambda g, v: sampled(exchange=v), "exchange"),
    (
        ("a", None, [], [0.5], [0.0, 1.0, 0.5], {}, 3),
        lambda g, v: sampled(temperatures=v),
        "temperatures|ladder",
    ),
    (("nuts", 3, mp.HamiltonianKernel), lambda g, v: sampled(kernel=v), "kernel"),
    ((0, 2.5, "a"), lambda g, v: sampled(kernel=mp.HamiltonianKernel(num_steps=v)), "num_steps"),
    (
        (5, (6,), (0, 1), ("a", 1), (100, 100)),
        lambda g, v: sampled(kernel=mp.HamiltonianKernel(max_tree_depth=v)),
        "max_tree",
    ),
    (
        (0, 1, "a", NAN),
        lambda g, v: sampled(kernel=mp.HamiltonianKernel(target_accept=v)),
        "target_accept",
    ),
    (FLAG, lambda g, v: sampled(kernel=mp.HamiltonianKernel(dense_mass=v)), "dense_mass"),
    (
        ("a", [1.0], NAN, [1.0, NAN], {"x": 1.0}, 1j, [[1], [2, 3]]),
        lambda g, v: sampled(init=v),
        "init",
    ),
    (FLAG, lambda g, v: sampled(progress=v), "progress"),
    ((3, "no/such/file", "/"), lambda g, v: sampled(checkpoint=v), "checkpoint"),
    (("model", 3), lambda g, v: sampled(model=v), "model"),
    (
        ("model", 3),
        lambda g, v: sampled(model=v, log_likelihood=None, log_prior=None, sample_prior=None),
        "model",
    ),
    (
        (1.0, [1.0], "a", None),
        lambda g, v: sampled(
            model=print, args=v, log_likelihood=None, log_prior=None, sample_prior=None
        ),
        "args",
    ),
    (
        (3, "a", [1]),
        lambda g, v: sampled(
            model=print, kwargs=v, log_likelihood=None, log_prior=None, sample_prior=None
        ),
        "kwargs",
    ),
    ((*NO_DENSITY, None), lambda g, v: sampled(log_likelihood=v), "log_likelihood"),
    ((*NO_DENSITY, None), lambda g, v: sampled(log_prior=v), "log_prior"),
    (
        (
            None,
            "a",
            lambda: 0.0,
            lambda k: jnp.ones((2, 2)),
            lambda k: None,
            lambda k: "a",
            lambda k: 1.0,
        ),
        lambda g, v: sampled(sample_prior=v),
        "sample_prior",
    ),
    (NAMES, lambda g, v: sampled(names=v), "names"),
    (
        ([0.0], [1.0], ["a"], "a", [], [2.0], [0.3, 0.3], None, [NAN], [0.5]),
        lambda g, v: mp.add_rungs(
            g.ladder,
            v,
            log_likelihood=density,
            log_prior=density,
            sample_prior=draw_of_prior,
            key=KEY,
        ),
        "temperatures",
    ),
    ((3, "a", None), lambda g, v: mp.ladder_from_traces(v), "traces"),
    (([(0,)], [0, 1], [(0.0, 1.0, 2.0)]), lambda g, v: mp.ladder_from_traces(v), "pairs"),
    (
        ("a", None, 2.0, -0.5, NAN, True),
        lambda g, v: mp.ladder_from_traces({v: g.tree, 1.0: g.tree}),
        "temperature",
    ),
    (
        ("trace",),
        lambda g, v: mp.ladder_from_traces({0.0: g.tree, 1.0: g.other}),
        "log_likelihood|chains and draws",
    ),
    (([], {}), lambda g, v: mp.ladder_from_traces(v), "two traces"),
    # samplers
    ((None, "run", {"x": np.ones(3)}, xr.DataTree()), lambda g, v: mp.from_numpyro(v), "mcmc"),
    (
        (None, "states", {"position": 1}, np.ones((4, 50, 2))),
        lambda g, v: mp.from_blackjax(v),
        "position",
    ),
    (
        (("draw", "step"), "draw", 3, (), ("chain",)),
        lambda g, v: mp.from_blackjax(SimpleNamespace(position=g.draws), dims=v),
        "dims",
    ),
    (
        ("f", lambda: 0.0, None),
        lambda g, v: mp.from_blackjax(SimpleNamespace(position=g.draws), logdensity_fn=v),
        "logdensity",
    ),
    (
        ("a", np.ones(3), [[1], [2, 3]]),
        lambda g, v: mp.from_blackjax(SimpleNamespace(position=v)),
        "states|leaves",
    ),
    # plots and the report
    ((None, "a", 3, {}, xr.DataTree()), lambda g, v: mp.plot_controlled_forest(v), "estimate"),
    ((None, "a", 3, {}, xr.DataTree()), lambda g, v: mp.plot_gain(v), "estimate"),
    (
        ("a", 3, {}, xr.DataTree()),
        lambda g, v: mp.plot_controlled_forest(g.estimate, intervals=v),
        "intervals",
    ),
    ((None, "a", 3, {}), lambda g, v: mp.plot_distribution(v), "DataTree"),
    (LEVEL, lambda g, v: mp.plot_distribution(g.tree, ci_prob=v), "ci_prob"),
    (("ETI", 3), lambda g, v: mp.plot_distribution(g.tree, ci_kind=v), "ci_kind"),
    (FLAG, lambda g, v: mp.plot_distribution(g.tree, kde=v), "kde"),
    ((3, [1], ["nobody"]), lambda g, v: mp.plot_distribution(g.tree, v), "nobody|var_names"),
    ((None, "a", 3, {}, xr.DataTree()), lambda g, v: mp.plot_evidence_path(v), "evidence"),
    ((None, "a", 3, []), lambda g, v: mp.plot_evidence_path(g.ladder_evidence, show=v), "show"),
    ((None, "a", 3, {}, xr.DataTree()), lambda g, v: mp.plot_score_check(v), "check"),
    ((None, "a", 3, {}, xr.DataTree()), lambda g, v: mp.plot_task_correlation(v), "joint"),
    (
        (None, "a", 3, {}, xr.DataTree()),
        lambda g, v: mp.plot_residual_autocorrelation(v, g.draws),
        "estimate",
    ),
    (
        (None, "a", np.ones((4, 50)), np.ones((4, 40, 2)), xr.DataTree()),
        lambda g, v: mp.plot_residual_autocorrelation(g.estimate, v),
        "values",
    ),
    (
        (*COUNT, None),
        lambda g, v: mp.plot_residual_autocorrelation(g.estimate, g.draws, max_lag=v),
        "max_lag",
    ),
    (COUNT, lambda g, v: mp.plot_score_check(g.check, rows=v), "rows"),
    (NAMES, lambda g, v: mp.plot_score_check(g.check, v), "names"),
    (("gnuplot", 3, []), lambda g, v: mp.plot_gain(g.estimate, backend=v), "backend"),
    (
        ("estimate", "check", "evidence"),
        lambda g, v: mp.plot_task_correlation(getattr(g, v)),
        "joint",
    ),
    (("check", "evidence", "tree"), lambda g, v: mp.plot_gain(getattr(g, v)), "estimate"),
    (("a", 3, []), lambda g, v: mp.html_report(g.tree, evidence=v), "evidence"),
    (("a", 3, {}), lambda g, v: mp.html_report(g.tree, joint=v), "joint"),
    ((3, None, b"a"), lambda g, v: mp.html_report(g.tree, title=v), "title"),
    (("a", [1], {"a": 1}, {1: "a"}), lambda g, v: mp.html_report(g.tree, asked=v), "asked"),
    ((3, b"a"), lambda g, v: mp.html_report(g.tree, command=v), "command"),
    (
        (0, 1, 2.0, [0.5, 5], "a", None),
        lambda g, v: mp.html_report(g.tree, quantiles=v),
        "probabilities",
    ),
    (LEVEL, lambda g, v: mp.html_report(g.tree, ci_prob=v), "ci_prob"),
    (("ETI", 3), lambda g, v: mp.html_report(g.tree, ci_kind=v), "ci_kind"),
    (FLAG, lambda g, v: mp.html_report(g.tree, overwrite=v), "overwrite"),
    (
        (3, "", b"a.html", "report.pdf", "report"),
        lambda g, v: mp.html_report(g.tree, v),
        "path|html",
    ),
    (("nothing",), lambda g, v: mp.html_report(None), "html_report"),
    (FOLDS[:-1], lambda g, v: mp.html_report(g.ladder, folds=v), "folds"),
    (METHODS, lambda g, v: mp.html_report(g.ladder, method=v), "method"),
    (FLAG, lambda g, v: mp.html_report(g.ladder, fallback=v), "fallback"),
    # files
    (
        (3, None, b"x.nc", "", "a\0b.nc", "x" * 300 + ".nc", ["x.nc"]),
        lambda g, v: mp.load_tree(v),
        "path",
    ),
    ((3, None, b"x.nc", "", "a\0b.nc", ["x.nc"]), lambda g, v: mp.load_tree("x.nc", v), "path"),
    (FLAG, lambda g, v: mp.load_tree("x.nc", lazy=v), "lazy"),
    (
        (3, None, b"lotka_volterra", "", "lotka", "../x", ["lotka_volterra"]),
        lambda g, v: mp.load_example(v),
        "name",
    ),
    (
        (3, None, b"x.nc", "", "a\0b.nc", "x" * 300 + ".nc"),
        lambda g, v: mp.save_tree(g.tree, v),
        "path",
    ),
    (
        (3, b"x.html", "", "a\0b.html", "x" * 300 + ".html"),
        lambda g, v: mp.html_report(g.tree, v),
        "path",
    ),
    ((3, None, "", "a\0b.csv", [3], [""], []), lambda g, v: mp.from_cmdstan(v), "diagnostics|path"),
    # processes, solvers, optimisers
    (
        ("a", None, X[:, 0], np.zeros((0, 2)), X * NAN, X * 1e-200, X * 1e200, [[1], [2, 3]]),
        lambda g, v: gp.IterativeGP().fit(v, X[:, 0]),
        "`X`",
    ),
    (
        ("a", None, X, X[:3, 0], X[:, 0] * INF, X[:, 0] * 1e-200, ["a"] * 8),
        lambda g, v: gp.IterativeGP().fit(X, v),
        "`y`",
    ),
    (
        ("a", None, X, X[:3, 0], X[:, 0] * NAN, X[:, 0] * 1e200),
        lambda g, v: gp.ComputationAwareGP().fit(X, v),
        "`y`",
    ),
    (
        ("a", None, X[:3], X[:, 0], X * NAN, X * 1e200),
        lambda g, v: gp.GradientGP().fit(X, v),
        "gradients",
    ),
    (("a", X, X[:3, 0], X[:, 0] * NAN), lambda g, v: gp.GradientGP().fit(X, X, v), "values"),
    (
        (lambda x: x, lambda x: "a", lambda x: None),
        lambda g, v: gp.GradientGP(mean=v).fit(X, X),
        "mean",
    ),
    (KEYS[1:], lambda g, v: gp.IterativeGP().fit(X, X[:, 0], key=v), "key"),
    (KEYS[1:], lambda g, v: gp.ComputationAwareGP().fit(X, X[:, 0], key=v), "key"),
    (KIND, lambda g, v: stein.gram(v, X), "kernel"),
    (("a", None, X[:, 0], [[1], [2, 3]]), lambda g, v: stein.gram(RBF, v), "`X`"),
    (("a", None, X[:, 0]), lambda g, v: products.kernel_operator(RBF, v), "`X`"),
    (KIND, lambda g, v: solve.solve(v, X, mp.Cholesky()), "system"),
    (("a", np.eye(3), 1j, np.ones((2, 2, 2))), lambda g, v: gp.solve_linear(v, [1.0, 2.0]), "A"),
    (
        (lambda: 1, lambda v: "a", lambda v: v[:1], lambda v: None),
        lambda g, v: gp.solve_linear(v, [1.0, 2.0]),
        "A",
    ),
    (
        ([NAN, 1.0], "a", [], [[1.0]], None, [1e-200, 1e-200]),
        lambda g, v: gp.solve_linear(np.eye(2), v),
        "`b`",
    ),
    (([1.0], "a", [NAN, 1.0]), lambda g, v: gp.solve_linear(np.eye(2), [1.0, 2.0], x0=v), "x0"),
    (
        (*KIND, linear_solvers.SolutionBased),
        lambda g, v: gp.solve_linear(np.eye(2), [1.0, 2.0], method=v),
        "method",
    ),
    ((-1, 1, "a", NAN), lambda g, v: gp.solve_linear(np.eye(2), [1.0, 2.0], rtol=v), "rtol"),
    ((-1, 2.5, "a"), lambda g, v: gp.solve_linear(np.eye(2), [1.0, 2.0], max_steps=v), "max_steps"),
    (
        ("f", None, lambda: 1.0, lambda x: x @ x, lambda x: (1.0, None), lambda x: ("a", x)),
        lambda g, v: gp.minimize(v, [1.0, 2.0]),
        "minimize",
    ),
    (
        (lambda x: (1.0, x[:1]), lambda x: (x, x), lambda x: None),
        lambda g, v: gp.minimize(v, [1.0, 2.0]),
        "minimize",
    ),
    (("a", [NAN], [[1.0]], [], None), lambda g, v: gp.minimize(lambda x: (x @ x, 2 * x), v), "x0"),
    (
        ("2-point", None, lambda: 1.0),
        lambda g, v: gp.minimize(lambda x: x @ x, [1.0], jac=v),
        "jac",
    ),
    (
        ("BFGS", 3, gp.GPX),
        lambda g, v: gp.minimize(lambda x: (x @ x, 2 * x), [1.0], method=v),
        "method",
    ),
    ((-1.0, "a", NAN), lambda g, v: gp.minimize(lambda x: (x @ x, 2 * x), [1.0], gtol=v), "gtol"),
    (
        (-1, 2.5, "a"),
        lambda g, v: gp.minimize(lambda x: (x @ x, 2 * x), [1.0], max_iter=v),
        "max_iter",
    ),
    ((3, [1.0]), lambda g, v: gp.minimize(lambda x, y: (x @ x, 2 * x), [1.0], args=v), "args"),
    (
        (3, lambda: None),
        lambda g, v: gp.minimize(lambda x: (x @ x, 2 * x), [1.0], callback=v),
        "callback",
    ),
    (KIND, lambda g, v: optimizers.scale_by_gp(v), "method"),
    (KIND, lambda g, v: gp.gp_optimizer(v), "method"),
    (COUNT, lambda g, v: gp.gp_optimizer(gp.GPX(), max_linesearch_steps=v), "max_linesearch_steps"),
    # Stein kernels and polynomials
    (("rbf", stein.Matern52, None), lambda g, v: stein.stein_gram(v, X, -X), "kernel"),
    ((X[:, 0], X.astype(int), X[:3], "a", None), lambda g, v: stein.stein_gram(RBF, X, v), "SX"),
    ((X[:, 0], X.tolist(), X[:0], "a", None), lambda g, v: stein.stein_diagonal(RBF, v, v), "X"),
    ((X[:3], X[:, 0], None), lambda g, v: stein.stein_operator(RBF, X, v), "SX"),
    ((None, X[:, :1]), lambda g, v: stein.stein_gram(RBF, X, -X, v, -X), "Y"),
    (("rbf", None), lambda g, v: stein.second_order_stein_gram(v, X, -X), "kernel"),
    ((X[:3], "a"), lambda g, v: stein.second_order_stein_diagonal(RBF, X, v), "SX"),
    (
        (np.ones(3), np.ones((8, 1))),
        lambda g, v: stein.stein_discrepancy(RBF, X, -X, weights=v),
        "weights",
    ),
    (COUNT, lambda g, v: stein.stein_thin(RBF, X, -X, v), "size"),
    (COUNT, lambda g, v: stein.polynomial_exponents(v, 2), "`d`"),
    (COUNT, lambda g, v: stein.polynomial_exponents(2, v), "degree"),
    (COUNT, lambda g, v: stein.polynomial_exponents(2, 2, max_interaction=v), "max_interaction"),
    (
        ((2000, 3), (10**9, 1), (2, 10**9), (3, 10**6)),
        lambda g, v: stein.polynomial_exponents(*v),
        "at most",
    ),
    ((-1, 2.5, "a"), lambda g, v: stein.num_polynomial_features(2, v), "degree"),
    (
        ("a", [1, 2], np.eye(2), -np.eye(2, dtype=int), np.eye(3, dtype=int)),
        lambda g, v: stein.polynomial_features(X, -X, v),
        "exponents",
    ),
    ((X[:3], "a", None), lambda g, v: stein.polynomial_features(X, v, np.eye(2, dtype=int)), "T"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "call", "words"), ROWS, ids=[f"{i}-{row[2][:20]}" for i, row in enumerate(ROWS)]
)
def test_functions_refuse(given, values, call, words):
    for value in values:
        with pytest.raises(
            (mp.InputError, mp.InputTypeError), match=r": expected .*, got "
        ) as error:
            call(given, value)
        assert any(word in str(error.value) for word in words.split("|")), (value, str(error.value))


def test_there_are_at_least_four_hundred_cases():
    constructors = sum(
        len(wrong) for _, _, arguments in CONSTRUCTORS for wrong in arguments.values()
    )
    assert constructors + sum(len(values) for values, _, _ in ROWS) >= 400


@pytest.mark.parametrize(
    ("ask", "rtol"),
    [
        (plain, 1e-9),
        (lambda g, values: mp.quantile(g.tree, 0.3, values, "plain"), 1e-9),
        (lambda g, values: mp.expectation(g.tree, values, "zv1"), 1e-9),
        pytest.param(  # its lengthscales come from a search, whose end rounding moves
            lambda g, values: mp.joint_expectation({"task": (g.tree, values)})["task"],
            1e-3,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["plain", "quantile", "zv1", "joint"],
)
def test_integrands_of_any_size_have_the_same_gains(given, ask, rtol):
    def numbers(estimate):
        return np.array(
            [estimate.mean, estimate.mcse, estimate.mean_plain, estimate.mcse_plain, estimate.sd]
        )

    values = np.exp(given.draws)
    own = ask(given, values)
    for unit in (1e-200, 1e200):
        with np.errstate(all="raise", under="ignore"):
            found = ask(given, values * unit)
        np.testing.assert_allclose(numbers(found), unit * numbers(own), rtol=rtol)
        np.testing.assert_allclose(found.gain, own.gain, rtol=10 * rtol)
        assert found.status == own.status
    np.testing.assert_allclose(
        ask(given, values * 1e-80).covariance, 1e-160 * own.covariance, rtol=10 * rtol
    )


def test_exponents_with_few_interactions_are_some_of_all():
    limited = stein.polynomial_exponents(2000, 3, max_interaction=1)
    assert limited.shape == (6000, 2000)
    every = stein.polynomial_exponents(4, 5)
    few = stein.polynomial_exponents(4, 5, max_interaction=2)
    np.testing.assert_array_equal(few, every[(every > 0).sum(1) <= 2])


@pytest.mark.parametrize(
    ("call", "cure"),
    [
        (lambda g: mp.summary("trace.nc"), "load_tree.'trace.nc'. reads a file"),
        (lambda g: mp.html_report("trace.nc"), "html_report: .*load_tree\\('trace.nc'\\)"),
        (lambda g: mp.load_tree(["a.nc", "b.nc"]), "of several pass each"),
        (lambda g: mp.expectation(g.tree.posterior), "Pass the whole tree, .* group posterior"),
        (lambda g: mp.expectation(g.tree, {"q": "a**2"}), "`q` .* got 'a\\*\\*2'. Such as lambda"),
        (lambda g: mp.expectation(g.tree, [lambda d: d["a"]]), "list of functions. Name each"),
        (lambda g: g.estimate + g.estimate, "no \\+ .*pool_estimates"),
        (lambda g: sum([g.estimate, g.estimate]), "no \\+ .*pool_estimates"),
    ],
)
def test_what_was_meant_is_in_the_cure(given, call, cure):
    with pytest.raises((mp.InputError, mp.InputTypeError), match=cure):
        call(given)


def test_what_a_function_of_the_user_raises_is_passed_on(given):
    with pytest.raises(ZeroDivisionError):
        plain(given, {"q": lambda d: 1 / 0})


def test_known_moments_of_all_parameters_serve_where_one_is_fixed(given):
    draws = np.insert(given.draws, 1, 2.0, axis=-1)
    tree = mp.from_arrays(draws, np.where(draws == 2.0, 0.0, -draws))
    assert mp.expectation(
        tree, method="plain", standardize=(np.zeros(3), np.ones(3))
    ).mean.shape == (3,)
