"""Chains that disagree and divergent transitions are told in one warning, with the cure, by every
function."""

import warnings

import jax
import numpy as np
import pytest
import xarray
from ladder_cases import short_ladder

import mcmcpost as mp
from mcmcpost.trace import repeated_draws
from mcmcpost.trees import check_convergence, ladder_to_datatree


@pytest.fixture
def tree(rng):
    draws = rng.normal(size=(4, 200, 2))
    return mp.from_arrays(draws, -draws, names=("a", "b"))


@pytest.fixture
def diverging(tree):
    flags = np.zeros((4, 200), bool)
    flags[2, 5:8] = True
    tree["sample_stats"] = (
        tree["sample_stats"].to_dataset().assign(diverging=(("chain", "draw"), flags))
    )
    return tree


ASKED = {
    "expectation": lambda tree: mp.expectation(tree, method="zv1"),
    "summary": lambda tree: mp.summary(tree, method="zv1"),
    "quantile": lambda tree: mp.quantile(tree, 0.5, method="plain"),
    "joint_expectation": lambda tree: mp.joint_expectation(
        {"one": (tree, ["a"]), "two": (tree, ["b"])}
    ),
    "html_report": lambda tree: mp.html_report(tree, method="zv1"),
    "bridge_evidence": lambda tree: mp.bridge_evidence(
        tree, logdensity_fn=lambda x: -0.5 * x @ x, key=jax.random.key(0), method="plain"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_divergences_are_told_once(diverging, name):
    with pytest.warns(mp.ConvergenceWarning) as told:
        ASKED[name](diverging)
    (warning,) = told
    assert str(warning.message).startswith("3 of 800 transitions were divergent")
    assert "target_accept_prob" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("missing", [np.nan, None])
def test_divergences_that_some_chains_do_not_record_are_none(diverging, missing):
    stats = diverging["sample_stats"].to_dataset()
    stats["diverging"] = stats["diverging"].astype(float if missing is np.nan else object)
    stats["diverging"][:2] = missing
    assert (
        check_convergence(xarray.DataTree.from_dict({"sample_stats": stats}), []).divergences == 3
    )


@pytest.mark.slow
def test_divergences_of_a_ladder_are_told(rng):
    tree = ladder_to_datatree(short_ladder(rng)[0])
    flags = np.zeros((2, 60, 5), bool)
    flags[1, 7, 2:] = True
    stats = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = stats.assign(diverging=(("chain", "draw", "temperature"), flags))
    with pytest.warns(mp.ConvergenceWarning, match="3 of 600 transitions were divergent"):
        mp.log_evidence(tree, degree=2)


@pytest.mark.parametrize("kept", [["posterior", "sample_stats"], ["posterior"]])
def test_a_chain_that_is_there_twice_is_told(tree, kept):
    twice = xarray.DataTree.from_dict(
        {name: tree[name].to_dataset().isel(chain=[0, 1, 2, 1]) for name in kept}
    )
    assert check_convergence(twice, []).repeated == (1, 3)
    assert check_convergence(tree, []).repeated is None
    if "sample_stats" in kept:
        with pytest.warns(
            mp.ConvergenceWarning, match="Chains 1 and 3 have draws in common: errors are too small"
        ):
            mp.expectation(twice, method="zv1")


def test_draws_that_are_there_again_are_told_wherever_they_are(rng):
    chain = rng.normal(size=(400, 2))

    def repeated(*windows):
        draws = np.stack([chain[window] for window in windows])
        return check_convergence(mp.from_arrays(draws, -draws), []).repeated

    assert repeated(slice(130), slice(130, 260), slice(260, 390)) is None
    assert repeated(slice(130), slice(130, 260), slice(223, 353)) == (1, 2)
    assert repeated(np.r_[:400, 100:200]) == (0, 0)
    again = mp.from_arrays(draws := chain[None, np.r_[:400, 100:200]], -draws)
    with pytest.warns(mp.ConvergenceWarning, match="Chain 0 has draws twice"):
        mp.expectation(again, method="zv1")


def test_steps_among_few_states_are_no_draws_in_common(rng):
    """As of a count that a sampler stores as floats: other chains go the same way by chance."""
    walk = np.clip(np.cumsum(rng.choice([-1.0, 1.0], size=(4, 2_000)), axis=1) % 8, 0, 8)
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"count": (("chain", "draw"), walk)})}
    )
    assert check_convergence(tree, []).repeated is None


def test_rejected_proposals_and_rounded_draws_are_no_draws_in_common(rng):
    moved = rng.uniform(size=(4, 3_000)) < 0.1
    moved[:, 0] = True
    draws = np.stack([rng.normal(size=3_000)[np.cumsum(one) - 1] for one in moved])
    for digits in (2, 15):
        rounded = np.round(draws, digits)[..., None]
        assert repeated_draws(rounded) is None
        assert repeated_draws([*rounded, rounded[2, 500:1_500]]) == (2, 4)


def test_chains_that_do_not_move_are_not_one_chain(tree):
    still = tree.copy()
    still["sample_stats"] = tree["sample_stats"].to_dataset().map(lambda one: one * 0.0)
    assert check_convergence(still, []).repeated is None


def test_disagreement_and_divergences_are_one_warning(diverging):
    apart = {
        "apart": diverging["posterior"]["a"].values + 9.0 * np.arange(4)[:, None],
        "not": lambda draw: draw["b"],
    }
    with pytest.warns(mp.ConvergenceWarning) as told:
        mp.expectation(diverging, apart, method="plain")
    (warning,) = told
    assert "of apart is above 1.12: the chains have not converged" in str(warning.message)
    assert "3 of 800 transitions were divergent" in str(warning.message)


def test_sound_chains_are_not_told_of_and_the_class_can_be_filtered(diverging):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", mp.ConvergenceWarning)
        mp.expectation(diverging, method="zv1")
        del diverging["sample_stats"]["diverging"]
        warnings.simplefilter("error", mp.ConvergenceWarning)
        mp.expectation(diverging, method="zv1")


@pytest.mark.slow
@pytest.mark.filterwarnings("always::mcmcpost.ConvergenceWarning")
def test_the_command_line_uses_the_same_words(run, diverging, tmp_path):
    mp.save_tree(diverging, tmp_path / "trace.nc")
    for command in (["reduce"], ["report", "-o", "out.html"]):
        done = run(command[0], tmp_path / "trace.nc", *command[1:], "--method", "zv1")
        assert done.code == 0
        assert done.err.startswith("mcmcpost: warning: 3 of 800 transitions were divergent")
        assert done.err.count("\n") == 1


def test_steins_identity_is_a_diagnostic_of_each_parameter(rng):
    """Right draws are within chance; those with too large a spread, or without a tail, are not,
    though R-hat is one."""
    x = rng.normal(size=(4, 1_000, 4))
    draws = np.stack(
        [x[..., 0], 1.1 * x[..., 1], np.minimum(x[..., 2], 1.5), np.zeros_like(x[..., 0])], axis=-1
    )
    with pytest.warns(mp.scores.ScoreWarning, match="wide, cut"):
        tree = mp.from_arrays(draws, -draws, names=["right", "wide", "cut", "fixed"])
    table = mp.score_diagnostics(tree)
    assert list(table.columns) == ["stein_z0", "stein_z1", "stein_z2", "ess", "r_hat"]
    z = table.filter(like="stein").abs()
    assert (z.loc["right"] < 4).all()
    assert z.loc["wide", "stein_z1"] > 5
    assert z.loc["cut", "stein_z2"] > 5
    assert table.loc["fixed"].isna().all()
    assert (table["r_hat"].iloc[:3] < 1.01).all()
    logs = -0.5 * (x[..., 0] ** 2 - (x[..., 0] / 1.3) ** 2)  # draws that are wider by 1.3
    wide = 1.3 * x[..., :1]
    weighted = mp.from_arrays(wide, -wide, names=["right"], log_weights=1.69 * logs)
    found = mp.score_diagnostics(weighted)
    assert (found.filter(like="stein").abs() < 4).all(axis=None)
    assert found["ess"].iloc[0] < 4_000


def in_turn(rng, chains, draws, memory=0.9):
    x = rng.normal(size=(chains, draws, 2))
    for i in range(1, draws):
        x[:, i] = memory * x[:, i - 1] + np.sqrt(1 - memory**2) * x[:, i]
    return x


@pytest.mark.filterwarnings("ignore::mcmcpost.scores.ScoreWarning")
@pytest.mark.parametrize(("chains", "draws"), [(4, 1000), (4, 60), (1, 1000)])
def test_axes_of_chains_and_draws_that_have_changed_places_are_told(chains, draws, rng):
    x = in_turn(rng, chains, draws, memory=0.97).swapaxes(0, 1)
    words = rf"these are {chains} chain\(s\) of {draws} draws.*x\.swapaxes\(0, 1\)"
    tree = _quietly(x)
    with pytest.warns(mp.ConvergenceWarning, match=words):
        mp.expectation(tree, method="plain")


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.99])
@pytest.mark.parametrize(("chains", "draws"), [(1000, 4), (200, 20), (60, 4), (1000, 1)])
def test_many_short_chains_are_taken_as_they_are(rng, chains, draws, memory):
    x = in_turn(rng, chains, draws, memory)
    assert check_convergence(_quietly(x), [(("a", "b"), x)]).transposed is None


def test_pieces_of_one_long_chain_are_no_changed_axes(rng):
    x = in_turn(rng, 1, 4000).reshape(1000, 4, 2)
    assert check_convergence(_quietly(x), [(("a", "b"), x)]).transposed is None


def _quietly(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mp.ScoreWarning)
        return mp.from_arrays(x, -x)
