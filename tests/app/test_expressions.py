"""Expressions: values against NumPy, NaN in means NaN out, and everything else refused with its
place."""

import string

import numpy as np
import pytest
import xarray
from hypothesis import given, settings, strategies as st

from mcmcpost.app.expressions import (
    MAX_DEPTH,
    compile_expression,
    evaluate_expressions,
    evaluate_sides,
    parse_expression,
)
from mcmcpost.app.quantities import ValuesOnDemand

CHAINS, DRAWS = 2, 7


@pytest.fixture
def posterior(rng):
    return {
        "mu": rng.normal(size=(CHAINS, DRAWS)),
        "tau": rng.gamma(2.0, size=(CHAINS, DRAWS)),
        "theta": rng.normal(size=(CHAINS, DRAWS, 3)),
        "cov": rng.normal(size=(CHAINS, DRAWS, 3, 3)),
        "prey[1912.2]": rng.gamma(2.0, size=(CHAINS, DRAWS)),
        "y[0]": rng.normal(size=(CHAINS, DRAWS)),
        "theta[1]": rng.normal(size=(CHAINS, DRAWS)),
        "z": rng.integers(0, 2, size=(CHAINS, DRAWS)),
    }


def value(text, posterior):
    return evaluate_expressions(posterior, {"x": text})["x"]


CASES = {
    "mu": lambda p: p["mu"],
    "-mu ** 2 + 3 * tau / 2 - 1": lambda p: -(p["mu"] ** 2) + 1.5 * p["tau"] - 1,
    "+mu": lambda p: p["mu"],
    "theta * mu": lambda p: p["theta"] * p["mu"][..., None],
    "theta + cov[1]": lambda p: p["theta"] + p["cov"][:, :, 1],
    "theta[0] - theta[-1]": lambda p: p["theta"][..., 0] - p["theta"][..., 2],
    "cov[0, -1]": lambda p: p["cov"][..., 0, 2],
    "cov[0][1]": lambda p: p["cov"][..., 0, 1],
    "mu > 0": lambda p: (p["mu"] > 0) * 1.0,
    "0 < mu <= 1": lambda p: ((p["mu"] > 0) & (p["mu"] <= 1)) * 1.0,
    "z == 1": lambda p: p["z"] * 1.0,
    "z != 1": lambda p: 1.0 - p["z"],
    "mu > 0 and tau > 1 or not z >= 1": lambda p: (
        (((p["mu"] > 0) & (p["tau"] > 1)) | (p["z"] < 1)) * 1.0
    ),
    "(mu > 0) & (tau > 1) | ~(z >= 1)": lambda p: (
        (((p["mu"] > 0) & (p["tau"] > 1)) | (p["z"] < 1)) * 1.0
    ),
    "exp(mu) + log(tau) + log1p(tau) + expm1(mu)": lambda p: (
        np.exp(p["mu"]) + np.log(p["tau"]) + np.log1p(p["tau"]) + np.expm1(p["mu"])
    ),
    "sqrt(tau) + abs(mu) + sin(mu) + cos(mu) + tan(mu) + tanh(mu)": lambda p: (
        np.sqrt(p["tau"])
        + np.abs(p["mu"])
        + np.sin(p["mu"])
        + np.cos(p["mu"])
        + np.tan(p["mu"])
        + np.tanh(p["mu"])
    ),
    "minimum(mu, 0) + maximum(theta[1], mu)": lambda p: (
        np.minimum(p["mu"], 0) + np.maximum(p["theta"][..., 1], p["mu"])
    ),
    "where(mu > 0, log(mu), 0)": lambda p: np.log(np.where(p["mu"] > 0, p["mu"], 1.0)),
    "sum(theta) + mean(cov)": lambda p: p["theta"].sum(-1) + p["cov"].mean((-2, -1)),
    "sum(mu)": lambda p: p["mu"],
    "`prey[1912.2]` / mu": lambda p: p["prey[1912.2]"] / p["mu"],
    "y[0] * `theta[1]` - theta[1]": lambda p: p["y[0]"] * p["theta[1]"] - p["theta"][..., 1],
    "2": lambda p: np.full(p["mu"].shape, 2.0),
    "mu +\n  tau": lambda p: p["mu"] + p["tau"],
}


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_numpy(text, posterior):
    result = value(text, posterior)
    expected = CASES[text](posterior)
    assert result.dtype == np.float64
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "mu > 0",
            "mu ** 0",
            "1 ** mu",
            "not mu > 0",
            "mu > 0 or tau > 0",
            "tau > 1e9 and mu > 0",
        ),
        *(
            "maximum(mu, 0)",
            "where(mu > 0, 1, 2)",
            "~(mu > 0)",
            "(mu > 0) | (tau > 0)",
            "0 < mu < 1",
            "mu != mu",
        ),
    ],
)
def test_a_nan_stays_a_nan_and_stays_where_it_is(text, posterior):
    posterior["mu"][1, 3] = np.nan
    missing = np.isnan(value(text, posterior))
    assert missing[1, 3]
    assert missing.sum() == 1


def test_where_does_not_look_at_the_branch_not_taken(posterior):
    assert np.isfinite(value("where(mu > 0, log(mu), sqrt(-mu))", posterior)).all()


def test_invalid_operations_give_nan_or_infinity_without_a_warning(posterior):
    assert np.isnan(value("log(-tau)", posterior)).all()
    assert np.isposinf(value("tau / 0", posterior)).all()
    assert np.isposinf(value("9 ** 9 ** 9 ** 9", posterior)).all()


def test_the_input_is_untouched_and_not_shared(posterior):
    before = {name: array.copy() for name, array in posterior.items()}
    value("mu", posterior)[:] = 0.0
    assert all(np.array_equal(posterior[name], before[name]) for name in posterior)


def test_the_name_comes_before_the_first_equals_sign(posterior):
    name, expression = parse_expression(" p(z=1) ".strip().replace("z=1", "z1") + " = z == 1")
    assert name == "p(z1)"
    np.testing.assert_array_equal(
        evaluate_expressions(posterior, {name: expression})[name], posterior["z"]
    )


@pytest.mark.parametrize("text", ["mu", "mu > 0", "x == 1", "x=", "=mu", "x<=1", "mu+1=2", ""])
def test_a_missing_name_or_expression_is_refused(text):
    with pytest.raises(ValueError, match=r"expected NAME=EXPRESSION"):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "why", "character"),
    [
        ("mu.shape", "Attribute", 1),
        ("mu + __import__('os').system('true')", "not one of the functions", 6),
        ("().__class__", "Attribute", 1),
        ("exp.__globals__", "Attribute", 1),
        ("mu + open", "'open', which is not among", 6),
        ("lambda: 1", "Lambda", 1),
        ("[x for x in mu]", "ListComp", 1),
        ("{x for x in mu}", "SetComp", 1),
        ("mu + 'text'", "not a number", 6),
        ("f'{mu}'", "JoinedStr", 1),
        ("1j", "not a number", 1),
        ("True", "not a number", 1),
        ("None", "not a number", 1),
        ("mu @ mu", "BinOp", 1),
        ("mu // 2", "BinOp", 1),
        ("mu << 2", "BinOp", 1),
        ("mu if mu else 1", "IfExp", 1),
        ("(y := 1)", "NamedExpr", 2),
        ("mu in mu", "Compare", 1),
        ("mu is mu", "Compare", 1),
        ("exp(*mu)", "Starred", 5),
        ("exp(x=mu)", "plain argument", 1),
        ("exp(mu, 2)", "1 plain argument,", 1),
        ("where(mu, 1, 2)", "where a condition belongs", 1),
        ("theta[mu]", "not made of whole numbers", 1),
        ("theta[0:2]", "not made of whole numbers", 1),
        ("theta[0.0]", "not made of whole numbers", 1),
        ("theta[True]", "not made of whole numbers", 1),
        ("theta[()]", "not made of whole numbers", 1),
        ("mu > 0 & tau > 0", "where a condition belongs", 6),
        ("mu and tau", "where a condition belongs", 1),
        ("~mu", "where a condition belongs", 1),
        ("mu +", "not an expression", 4),
        ("mu; tau", "not an expression", 3),
        ("import os", "not an expression", 1),
        ("1\x00", "not an expression", None),
        ("mu + lambda>4", "named lambda is put in backquotes, `lambda`", None),
        ("`mu", "unclosed backquote", 1),
        ("1 + ``", "empty name", 5),
        ("δ + `prey[1912.2]` + oops(1)", "not one of the functions", 22),
        (
            "mu + nope",
            "'nope', which is not among the variables \\(mu, tau, theta, cov, "
            "`prey\\[1912.2\\]`, `y\\[0\\]`",
            6,
        ),
        ("1 + `no pe`", "'no pe', which is not among", 5),
        ("1 + theta[3]", "index \\(3,\\) outside the shape \\(3,\\)", 5),
        ("mu[0]", "outside the shape \\(\\)", 1),
        ("theta[0, 0]", "outside the shape", 1),
        ("1 + cov + `w`", "do not fit", 1),
        ("cov * 2", "gives 2 axes a draw", 1),
        ("9" * 400, "too large for a float", 1),
        ("(" * 300 + "1", "not an expression", None),
        ("-" * 900 + "mu", "nested too deeply", MAX_DEPTH + 1),
        ("(" * 60 + "-" * 60 + "mu" + ")" * 60, "nested too deeply", None),
    ],
)
def test_everything_else_is_refused_with_its_place(text, why, character, posterior):
    posterior["w"] = np.ones((CHAINS, DRAWS, 2)) if "`w`" in text else posterior["mu"]
    if "among the variables" in why:
        del posterior["w"]
    place = r"\d+" if character is None else str(character)
    with pytest.raises(ValueError, match=rf"(?s){why}.*at character {place}: "):
        value(text, posterior)


def test_a_long_text_is_refused():
    with pytest.raises(ValueError, match="at most 1000 characters"):
        compile_expression("mu" + " + mu" * 300)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.text(
        alphabet=string.ascii_lowercase + string.digits + "+-*/%()[]{}<>=!&|~.,:'`\\ \n#@",
        max_size=40,
    )
)
def test_any_text_gives_values_or_a_value_error(text):
    try:
        result = evaluate_expressions({"a": np.ones((2, 3))}, {"x": text})["x"]
    except ValueError:
        return
    assert result.shape[:2] == (2, 3)


def test_elements_that_are_numbered_are_indexed_by_their_number(rng):
    array = xarray.DataArray(
        rng.normal(size=(2, 5, 3)),
        dims=("chain", "draw", "i"),
        coords={"i": [1, 2, 3]},
        name="theta",
    )
    names = array.rename("school").assign_coords(i=["a", "b", "c"])
    values = ValuesOnDemand({"theta": array, "school": names})
    found = evaluate_expressions(
        values,
        {"x": "theta[1] - theta[3]", "y": "`school[b]` + school[0]", "z": "1 + 1"},
        values.numbered,
    )
    np.testing.assert_array_equal(found["x"], array[..., 0] - array[..., 2])
    np.testing.assert_array_equal(found["y"], names[..., 1] + names[..., 0])
    np.testing.assert_array_equal(found["z"], np.full((2, 5), 2.0))
    for index in ("0", "-1", "4"):
        with pytest.raises(ValueError, match="names no element of theta"):
            evaluate_expressions(values, {"x": f"theta[{index}]"}, values.numbered)


def test_comparisons_have_two_sides(posterior):
    asked = {"many": "theta[0] < theta", "one": "`tau` >= 2", "none": "mu < 1 < tau", "sum": "mu"}
    sides = evaluate_sides(posterior, asked)
    assert list(sides) == ["many", "one"]
    theta = posterior["theta"]
    first = np.broadcast_to(theta[..., :1], theta.shape)
    np.testing.assert_array_equal(sides["many"], np.stack([first, theta], -1))
    twos = np.full_like(posterior["tau"], 2.0)
    np.testing.assert_array_equal(sides["one"], np.stack([posterior["tau"], twos], -1))
