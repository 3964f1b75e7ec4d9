"""Integrands at every draw: variables, arrays and functions, with names that say which element is
which."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy import stats

import mcmcpost as mp
from mcmcpost.trees import integrand_values


@pytest.fixture
def tree(rng):
    posterior = xarray.Dataset(
        {
            "mu": (("draw", "chain"), rng.normal(size=(5, 2)).astype(np.float32)),
            "theta": (("chain", "draw", "school"), rng.normal(size=(2, 5, 2))),
            "corr": (("chain", "draw", "i", "j"), rng.normal(size=(2, 5, 2, 3))),
            "count": (("chain", "draw"), rng.integers(0, 9, size=(2, 5))),
            "flag": (("chain", "draw"), rng.random((2, 5)) < 0.5),
        },
        coords={"school": ["Choate", "Deerfield"], "i": [10, 20]},
    )
    return xarray.DataTree.from_dict({"posterior": posterior})


def test_every_variable_by_default(tree):
    names, values, *_ = integrand_values(tree)
    corr = tuple(f"corr[{i}, {j}]" for i in (10, 20) for j in range(3))
    assert names == ("mu", "theta[Choate]", "theta[Deerfield]", *corr, "count", "flag")
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values[..., 0], tree["posterior"]["mu"].T)
    np.testing.assert_array_equal(values[..., 3 + 4], tree["posterior"]["corr"][..., 1, 1])
    np.testing.assert_array_equal(
        values[..., -2:].astype(int), np.stack([tree["posterior"][k] for k in names[-2:]], -1)
    )


@pytest.mark.parametrize("chosen", [["theta", "mu"], ("theta", "mu")])
def test_chosen_variables_in_the_order_asked(tree, chosen):
    assert integrand_values(tree, chosen).names == ("theta[Choate]", "theta[Deerfield]", "mu")
    assert integrand_values(tree, "mu").names == ("mu",)


def test_a_quantity_of_another_group_is_passed_by_its_values(tree):
    ratio = tree["posterior"]["theta"].rename("R0")
    tree["generated_quantities"] = xarray.DataTree(ratio.to_dataset())
    tree["observed_data"] = xarray.DataTree(xarray.Dataset({"y": ("i", [1.0])}))
    with pytest.raises(mp.InputError) as caught:
        integrand_values(tree, ["R0"])
    said, cure = str(caught.value).split(" Pass its values: ")
    assert said.endswith("got R0, which is in the group generated_quantities.")
    found = integrand_values(tree, eval(cure.removesuffix("."), {"tree": tree}))
    assert found.names == ("R0[0]", "R0[1]")
    np.testing.assert_array_equal(found.values, ratio)
    with pytest.raises(mp.InputError, match=r"got y\. .*It has mu"):
        integrand_values(tree, ["y"])


def test_arrays(tree, rng):
    values = rng.normal(size=(2, 5, 2))
    names, got, *_ = integrand_values(tree, values)
    assert names == ("f[0]", "f[1]")
    np.testing.assert_array_equal(got, values)
    assert integrand_values(tree, values[..., 0]).names == ("f",)
    labelled = xarray.DataArray(values, dims=("chain", "draw", "p")).transpose("p", "draw", "chain")
    np.testing.assert_array_equal(integrand_values(tree, {"g": labelled}).values, values)


@pytest.mark.parametrize(
    "function",
    [
        lambda d: jnp.exp(d["theta"][0]) * (d["mu"] > 0),
        lambda d: np.exp(d["theta"])[0] * (d["mu"] > 0),
        lambda d: math.exp(d["theta"][0]) * float(d["mu"] > 0),
        lambda d: math.exp(d["theta"][0]) if d["mu"] > 0 else 0.0,
        lambda d: stats.expon.pdf(-d["theta"][0] + 50) * np.exp(50) * (d["mu"] > 0),
        lambda d: (
            d["theta"][:1][d["theta"][:1] < np.inf].item() * 0
            + jnp.exp(d["theta"][0]) * (d["mu"] > 0)
        ),
    ],
    ids=["jax", "numpy", "math", "branch", "scipy", "mask"],
)
def test_functions_traceable_or_not(tree, function):
    names, values, *_ = integrand_values(
        tree, {"f": function, "n": lambda d: jnp.arange(9.0)[d["count"]]}
    )
    assert names == ("f", "n")
    theta, mu = tree["posterior"]["theta"].values[..., 0], tree["posterior"]["mu"].values.T
    np.testing.assert_allclose(values[..., 0], np.exp(theta) * (mu > 0), rtol=1e-13)
    np.testing.assert_array_equal(values[..., 1], tree["posterior"]["count"])


def test_functions_of_variables_in_the_other_byte_order(tree):
    names, values, *_ = integrand_values(tree, {"f": lambda d: d["mu"] * d["count"]})
    posterior = tree["posterior"].to_dataset()
    tree["posterior"] = posterior.assign(
        {
            name: array.astype(array.dtype.newbyteorder())
            for name, array in posterior.items()
            if array.dtype != bool
        }
    )
    assert tree["posterior"]["count"].dtype != posterior["count"].dtype
    swapped = integrand_values(tree, {"f": lambda d: d["mu"] * d["count"]})
    assert swapped.names == names
    np.testing.assert_array_equal(swapped.values, values)


def test_functions_of_arrays_name_their_elements(tree):
    names, values, *_ = integrand_values(
        tree, {"m": lambda d: d["corr"].T, "all": lambda d: [d["mu"], d["mu"] + 1]}
    )
    assert names[:3] == ("m[0, 0]", "m[0, 1]", "m[1, 0]")
    assert names[-2:] == ("all[0]", "all[1]")
    np.testing.assert_array_equal(values[..., 1], tree["posterior"]["corr"][..., 1, 0])


def test_a_single_function_is_named_f(tree):
    def function(draw):
        return 2.0 * draw["mu"]

    alone, named = integrand_values(tree, function), integrand_values(tree, {"f": function})
    assert alone.names == named.names == ("f",)
    np.testing.assert_array_equal(alone.values, named.values)


def test_a_fault_of_the_function_is_not_hidden(tree):
    with pytest.raises(KeyError, match="nu") as raised:
        integrand_values(tree, {"f": lambda d: d["nu"]})
    assert (
        "integrands: the argument of `f` has mu, theta, corr, count, flag."
        in raised.value.__notes__
    )


def test_a_label_in_place_of_a_number_is_told(tree):
    with pytest.raises(mp.InputTypeError, match=r"`f` to take elements by their number.*\[0\]"):
        integrand_values(tree, {"f": lambda d: d["theta"]["A"]})


@pytest.mark.slow
@pytest.mark.parametrize("function", [np.exp, sum, jnp.sum, float])
def test_functions_of_values_are_no_functions_of_draws(tree, function):
    words = rf"`f` to take one draw, a dict of arrays, got {function.__name__}: .*lambda draw"
    with pytest.raises(mp.InputTypeError, match=words):
        integrand_values(tree, function)


def test_nan_stays_nan(tree):
    values = integrand_values(tree, {"f": lambda d: jnp.log(-jnp.abs(d["mu"]))}).values
    assert np.isnan(values).all()


@pytest.mark.parametrize(
    ("integrands", "error", "words"),
    [
        (["nu"], ValueError, r"a variable of the posterior group, got nu. It has mu, theta"),
        ([], ValueError, "at least one integrand"),
        ({}, ValueError, "at least one integrand"),
        (np.zeros((2, 4)), ValueError, r"\(2, 5\) chains and draws, got \(2, 4\)"),
        ({"f": np.zeros(10)}, ValueError, r"`f` of shape"),
        ({"f": 3.0}, ValueError, r"`f` of shape"),
        ({"f": np.full((2, 5), "a")}, TypeError, "`f` to be a real num"),
        ({"f": np.zeros((2, 5), dtype=complex)}, TypeError, "`f` to be a real num"),
        ({"f": np.zeros((2, 5, 1)), "f[0]": np.zeros((2, 5))}, ValueError, "distinct names"),
        ({"f": lambda d: np.arange(int(d["count"]))}, ValueError, "one shape for every draw"),
        ({"f": lambda _: np.zeros(0)}, ValueError, r"`f` to return a number, got shape \(0,\)"),
        ({"f": lambda d: {"a": d["mu"]}}, TypeError, "`f` to return numbers, got dict"),
        ({"f": lambda _: None}, TypeError, "`f` to return numbers, got NoneType"),
        (
            mp.ZeroVariance(),
            TypeError,
            "a function, or a mapping to such, got a ZeroVariance. A method is passed as",
        ),
        (3, TypeError, "a function, or a mapping to such, got a int"),
    ],
)
def test_bad_input(tree, integrands, error, words):
    with pytest.raises(error, match=words):
        integrand_values(tree, integrands)


def test_chains_and_draws_in_one_dim_are_told_how_to_be_two(tree):
    flat = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    for given in (flat["flag"], {"q": flat["theta"] ** 2}, flat.rename(sample="z")["flag"]):
        with pytest.raises(mp.InputError, match=r'with dims chain and draw.*unstack\("[sz]'):
            integrand_values(tree, given)
    for asked in (None, ["mu"]):
        with pytest.raises(
            mp.InputError, match=r'`mu` with dims chain and draw, .*unstack\("sample"\)'
        ):
            integrand_values(xarray.DataTree.from_dict({"posterior": flat}), asked)
    for array in (flat["flag"], tree["posterior"]["mu"].isel(chain=0)):
        with pytest.raises(
            mp.InputError, match=r"from_arrays: expected `draws` with dims.*(unstack|chain=\[0\])"
        ):
            mp.from_arrays(array, array)
    with pytest.raises(mp.InputError, match=r"values\.reshape\(2, 5, \*values\.shape\[1:\]\)"):
        integrand_values(tree, {"q": flat["flag"].values})
    back = flat["theta"].unstack("sample")
    np.testing.assert_array_equal(integrand_values(tree, back).values, tree["posterior"]["theta"])
    # A dim of that name is any other dim beside chain and draw.
    three = tree["posterior"]["theta"].rename(school="sample")
    assert integrand_values(tree, three).values.shape == (2, 5, 2)


def test_trees_without_draws():
    with pytest.raises(ValueError, match="dims chain and draw"):
        integrand_values(xarray.DataTree())
    lonely = xarray.Dataset(
        {"a": (("chain", "draw"), np.zeros((1, 2))), "b": ("draw", np.zeros(2))}
    )
    tree = xarray.DataTree.from_dict({"posterior": lonely})
    with pytest.raises(ValueError, match="`b` with dims chain and draw"):
        integrand_values(tree, ["b"])
    with pytest.warns(UserWarning, match="left out b: not a number for every chain and draw"):
        assert integrand_values(tree).names == ("a",)


def test_the_tree_is_untouched(tree):
    before = tree.copy(deep=True)
    integrand_values(tree, {"f": lambda d: d["mu"]})
    integrand_values(tree)
    assert tree.identical(before)


def test_a_function_that_changes_its_draw_changes_a_copy(tree):
    def changed(draw):
        # JAX cannot trace this, so that the function is called with NumPy arrays
        draw["theta"][0] = float(draw["mu"])
        return draw["theta"][0]

    before = tree.copy(deep=True)
    _, values, *_ = integrand_values(
        tree, {"changed": changed, "theta": lambda draw: draw["theta"][0]}
    )
    assert tree.identical(before)
    np.testing.assert_array_equal(values[..., 1], tree["posterior"]["theta"][..., 0])


def test_an_event_has_the_margin_of_what_it_compares(tree):
    mu = tree["posterior"]["mu"].values.T.astype(float)
    theta = tree["posterior"]["theta"].values
    found = integrand_values(
        tree,
        {
            "e": lambda d: 1.0 * (d["theta"] > d["mu"]),
            "positive": lambda d: jnp.exp(d["mu"]) < 2.0 * jnp.exp(d["theta"][0]),
            "two": lambda d: (d["mu"] > 0) & (d["theta"][0] > 0),
            "no": lambda d: (d["mu"] > 0) * d["theta"][0],
            "untraced": lambda d: float(d["mu"]) > 0.0,
        },
    ).margins
    assert {name.partition("[")[0] for name in found} == {"e", "positive"}
    (label,) = (name for name in found if name.startswith("e[0"))
    np.testing.assert_allclose(found[label][0], theta[..., 0] - mu)
    np.testing.assert_allclose(found["positive"][1], mu - np.log(2) - theta[..., 0])
