"""The tree that mcmcpost returns is an ArviZ tree: summary, leave-one-out, forests and weighted
means as before."""

import arviz_plots
import arviz_stats
import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib import pyplot
from matplotlib.text import Text

import mcmcpost as mp
from mcmcpost.stein import SquaredExponential


@pytest.fixture
def observed(rng):
    """A trace of a normal mean with three observations, and its pointwise log likelihood."""
    y = np.array([-0.4, 0.3, 1.0])
    mean = rng.normal(y.mean() * 3 / 4, 0.5, size=(4, 150, 1))
    tree = mp.from_arrays(mean, -4.0 * (mean - y.mean() * 3 / 4), names=["mu"])
    log_likelihood = xr.DataArray(-0.5 * (y - mean) ** 2, dims=("chain", "draw", "row"))
    return xr.DataTree.from_dict(
        tree.to_dict() | {"log_likelihood": xr.Dataset({"y": log_likelihood})}
    )


def test_summary_and_loo_of_the_controlled_tree_are_those_of_the_trace(observed):
    tree = mp.expectation(observed, method="zv2").to_datatree(observed)
    pd.testing.assert_frame_equal(arviz_stats.summary(tree), arviz_stats.summary(observed))
    assert arviz_stats.loo(tree).elpd == arviz_stats.loo(observed).elpd


def test_a_forest_of_the_controlled_tree(observed):
    matplotlib.use("agg")
    tree = mp.expectation(observed, method="zv2").to_datatree(observed)

    def texts(traces):
        figure = arviz_plots.plot_forest(traces, backend="matplotlib").viz["figure"].item()
        return [text.get_text() for text in figure.findobj(Text)]

    assert texts(tree) == texts(observed)
    pyplot.close("all")


@pytest.mark.slow
def test_stein_weights_are_weights_of_xarray(observed):
    weights = mp.stein_weights(observed, method=mp.ControlFunctional(SquaredExponential(2.0), 1e-8))
    tree = weights.to_datatree(observed)
    mean = tree["posterior"]["mu"].weighted(tree["sample_stats"]["stein_weight"]).mean()
    np.testing.assert_allclose(mean, 0.225, atol=1e-6)
    np.testing.assert_allclose(mean, weights.mean(observed["posterior"]["mu"].values), rtol=1e-10)
