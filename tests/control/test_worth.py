"""What a reduction is worth in the time of sampling."""

import re

import numpy as np
import pytest

import mcmcpost as mp
from mcmcpost.control.estimate import sampling_cost_of
from mcmcpost.core.runtime import duration


@pytest.fixture(scope="module")
def tree():
    draws = np.random.default_rng(1).standard_normal((4, 200, 2))
    scored = mp.from_arrays(draws, -draws, names=("a", "b"))
    scored.attrs["sampling_time"] = 25.0
    return scored


def gains(estimate, *values):
    """The estimate with these gains, in their order, of quantities that are controlled."""
    status = (mp.Status.CONTROLLED,) * len(values)
    return estimate.select(np.arange(len(values)))._replace(gain=np.array(values), status=status)


@pytest.fixture(scope="module")
def estimate(tree):
    return mp.expectation(
        tree, np.asarray(tree["posterior"]["a"])[..., None] ** np.arange(1, 4), method="plain"
    )


def test_a_gain_is_worth_that_many_times_the_time_of_sampling(estimate):
    text = sampling_cost_of(gains(estimate, 432.0), 25.0)
    assert (
        text == "The same errors by sampling alone would take about 3.0 h; 4 × 200 draws took 25 s."
    )
    text = sampling_cost_of(gains(estimate, 4.0, 8.0, 400.0), 30.0)
    assert "would take about 4.0 min (median; 2.0 min to 3.3 h); 4 × 200 draws took 30 s." in text
    text = sampling_cost_of(gains(estimate, 4.0, 1e13, 1e30), 25.0)
    assert text == (
        "The same errors by sampling alone would take about a century or more (median; 100 s to a "
        "century or more); 4 × 200 draws took 25 s."
    )


def test_small_gains_are_compared_with_as_many_draws_again(estimate):
    text = sampling_cost_of(gains(estimate, 1.2, 1.0), 25.0)
    assert text == (
        "4 × 200 more draws would take about 25 s and divide errors by 1.4, which for them is "
        "more than the reduction does."
    )
    both = sampling_cost_of(gains(estimate, 1.2, 3.0, 1.0), 25.0)
    assert both.startswith(
        "The same errors of 1 of 3 quantities by sampling alone would take about 75 s;"
    )
    assert "which for the other 2 is more than the reduction does." in both


def test_quantities_without_a_gain_do_not_count(estimate):
    some = gains(estimate, 4.0, 1e30, 1.0)._replace(
        status=(mp.Status.CONTROLLED, mp.Status.EXACT, mp.Status.HEAVY_TAIL)
    )
    assert sampling_cost_of(some, 25.0) == sampling_cost_of(some.select(np.arange(1)), 25.0)
    assert sampling_cost_of(some.select(np.array([1, 2])), 25.0) == ""


@pytest.mark.parametrize("seconds", [None, "soon", np.nan, 0.0, -3.0])
def test_without_a_recorded_time_nothing_is_said(tree, seconds):
    other = tree.copy()
    other.attrs = {} if seconds is None else {"sampling_time": seconds}
    assert "worth" not in mp.expectation(other, method="zv1").info


@pytest.mark.slow
def test_the_worth_stands_in_the_tree_the_report_and_nowhere_depends_on_a_clock(tree):
    cubes = {"cube": lambda draw: draw["a"] ** 3 + draw["a"]}
    found = mp.expectation(tree, cubes, method="zv2")
    expected = sampling_cost_of(found, 25.0)
    attrs = found.to_datatree()["control_variates"].attrs
    assert (attrs["sampling_time"], attrs["worth"]) == (25.0, expected)
    assert re.search(r"4 × 200 (more )?draws (would take about|took) 25 s", expected)
    moved = tree.copy()
    # where PyMC writes it
    moved.attrs, moved["posterior"].attrs = {}, {"sampling_time": np.float32(25.0)}
    assert mp.expectation(moved, cubes, method="zv2").info == found.info
    pytest.importorskip("jinja2")
    html = mp.html_report(tree, integrands=cubes, method="zv2")
    assert f"<p>{expected}</p>" in html
    assert html == mp.html_report(tree, integrands=cubes, method="zv2")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "0.012 s"),
        (25.3, "25 s"),
        (119.0, "120 s"),
        (3_600.0, "60 min"),
        (6_600.0, "110 min"),
        (10_800.0, "3.0 h"),
        (4e5, "4.6 days"),
        (3.2e7, "370 days"),
        (6.4e8, "20 years"),
        (1e12, "a century or more"),
    ],
)
def test_times_are_printed_in_a_unit_that_reads_well(seconds, text):
    assert duration(seconds) == text
