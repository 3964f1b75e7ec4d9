"""`joint_expectation` on trees: names, covariance, files, bad input, calibration."""

import json

import jax
import numpy as np
import pytest
from scipy.stats import chi2

import mcmcpost as mp
from mcmcpost.control import Options, Sample
from mcmcpost.stein import Matern52, Scaled, SquaredExponential, Sum
from mcmcpost.tasks import TaskInput, estimate_jointly
from mcmcpost.trace import make_trace

KERNEL = SquaredExponential(2.0)
METHOD = mp.VectorValued(KERNEL, np.array([[1.0, 0.7], [0.7, 1.2]]), 1e-2, guard=False)
LEARNT = mp.VectorValued(KERNEL, nugget=1e-2, guard=False, tuning=mp.TaskREML(max_steps=3))


def smooth(x):
    return np.sin(x[..., 0]) + 0.4 * x[..., 1] ** 2


@pytest.fixture
def draws(rng):
    return rng.normal(size=(2, 40, 2)), rng.normal(size=(2, 24, 2))


@pytest.fixture
def tasks(draws):
    a, b = draws
    return {
        "high": (mp.from_arrays(a, -a), smooth(a)),
        "low": (mp.from_arrays(b, -b), 2 * smooth(b) + 1.0),
    }


@pytest.mark.slow
def test_the_result_is_a_dict_of_estimates_in_the_order_of_the_tasks(tasks):
    before = {name: tree.copy(deep=True) for name, (tree, _) in tasks.items()}
    found = mp.joint_expectation(tasks, METHOD)
    assert isinstance(found, dict)
    assert list(found) == ["high", "low"]
    assert list(mp.joint_expectation(dict(reversed(tasks.items())), METHOD)) == ["low", "high"]
    assert all(isinstance(part, mp.Estimate) for part in found.values())
    for (name, part), truth in zip(found.items(), (0.4, 1.8), strict=True):
        assert abs(part.mean[0] - truth) < 4.5 * part.mcse[0]
        assert part.status == (mp.Status.CONTROLLED,)
        values = tasks[name][1]
        np.testing.assert_allclose(part.mean_plain, values.mean())
        assert part.residuals.shape == (*values.shape, 1)
    for name, (tree, _) in tasks.items():
        assert before[name].identical(tree)


@pytest.mark.slow
def test_the_covariance_is_symmetric_positive_semidefinite_and_has_the_errors_on_its_diagonal(
    draws,
):
    a, b = draws
    several = {"cos": np.cos(a[..., 0]), "square": a[..., 1] ** 2}
    tasks = {
        "high": (mp.from_arrays(a, -a), several),
        "low": (mp.from_arrays(b, -b), {"f": smooth(b)}),
    }
    found = mp.joint_expectation(tasks, LEARNT)
    assert found.labels == (("high", "cos"), ("high", "square"), ("low", "f"))
    assert found.task_labels == found.labels
    mcse = np.concatenate([part.mcse for part in found.values()])
    np.testing.assert_allclose(found.covariance, found.covariance.T)
    np.testing.assert_allclose(np.diag(found.covariance), mcse**2)
    assert np.linalg.eigvalsh(found.covariance)[0] > -1e-12 * np.trace(found.covariance)
    assert np.linalg.eigvalsh(found.task_covariance)[0] > 0
    np.testing.assert_allclose(np.diag(found.task_correlation), 1.0)


@pytest.mark.slow
def test_the_covariance_is_positive_semidefinite_where_residuals_and_model_contradict_each_other(
    rng,
):
    """Two integrands of one trace with opposite residuals, and a covariance that takes all three
    tasks for alike."""
    alike = mp.VectorValued(
        SquaredExponential(1.5), np.full((3, 3), 0.9) + 0.1 * np.eye(3), 1e-3, guard=False
    )
    for _ in range(30):
        x, y = rng.normal(size=(2, 1, 20, 1))
        wave = rng.uniform(0.5, 3)
        pair = np.concatenate([np.sin(wave * x), -np.sin(wave * x) + 0.1 * np.cos(x)], axis=-1)
        inputs = {
            "a": TaskInput(Sample.of(make_trace(x, -x), ("f", "g"), pair)),
            "b": TaskInput(Sample.of(make_trace(y, -y), ("h",), np.sin(wave * y))),
        }
        found = estimate_jointly(inputs, alike, Options())
        error = np.concatenate([part.mcse for part in found.values()])
        np.testing.assert_allclose(np.diag(found.covariance), error**2)
        assert np.linalg.eigvalsh(found.covariance / np.outer(error, error))[0] > -1e-9


@pytest.mark.slow
def test_tasks_of_own_draws_that_the_kernel_takes_for_one_keep_a_part_of_their_errors(rng):
    """The kernel is too rough for what it is fitted to: its own error is often more than that of
    the refits."""
    method = mp.VectorValued(
        SquaredExponential(0.3), np.ones((2, 2)) + 1e-12 * np.eye(2), 1e-8, guard=False
    )
    largest = 0.0
    for _ in range(10):
        x, y = rng.normal(size=(2, 2, 20, 1))
        tasks = {
            "a": (mp.from_arrays(x, -x), np.sin(x[..., 0])),
            "b": (mp.from_arrays(y, -y), np.sin(y[..., 0])),
        }
        found = mp.joint_expectation(tasks, method, fallback=False)
        error = np.sqrt(np.diag(found.covariance))
        largest = max(largest, (found.covariance / np.outer(error, error))[0, 1])
    assert largest == pytest.approx(40 / 41, abs=1e-4)


@pytest.mark.slow
def test_tasks_of_the_same_draws_share_their_errors_whatever_the_others_are(tasks, draws):
    a = draws[0]
    tree = tasks["high"][0]
    pair = {"f": (tree, {"f": smooth(a)}), "g": (tree, {"g": np.cos(a[..., 0])})}
    method = mp.VectorValued(KERNEL, nugget=1e-2)
    together = mp.joint_expectation(pair, method).covariance
    assert together[0, 1] != 0.0
    constant = mp.joint_expectation(pair | {"one": (tasks["low"][0], np.ones((2, 24)))}, method)
    np.testing.assert_allclose(constant.covariance[:2, :2], together, rtol=1e-10)
    plain = {"f": pair["f"], "again": pair["f"], "low": tasks["low"]}
    alike = np.array([[1.0, 1.0, 0.7], [1.0, 1.0, 0.7], [0.7, 0.7, 1.2]]) + 1e-6 * np.eye(3)
    twice = mp.joint_expectation(plain, mp.VectorValued(KERNEL, alike, 1e-2, guard=False))
    correlation = twice.covariance[0, 1] / twice["f"].mcse[0] ** 2
    # not one: the model's noise at a repeated draw is another
    assert 0.5 < correlation < 1.0 + 1e-6


@pytest.mark.slow
def test_the_tree_of_a_joint_estimate_survives_a_file(tasks, draws, tmp_path):
    a = draws[0]
    tasks = {
        "high": (tasks["high"][0], {"cos": np.cos(a[..., 0]), "f": smooth(a)}),
        "low": tasks["low"],
    }
    found = mp.joint_expectation(tasks, LEARNT)
    tree = found.to_datatree()
    whole = tree["control_variates"]
    assert list(whole["task"].values) == ["high: cos", "high: f", "low"]
    assert whole["covariance"].dims == ("task", "task_bis")
    assert whole["task_correlation"].dims == ("fitted_task", "fitted_task_bis")
    np.testing.assert_allclose(np.diag(whole["task_correlation"]), 1.0)
    np.testing.assert_array_equal(
        whole["mean_cv"], np.concatenate([part.mean for part in found.values()])
    )
    assert [str(s) for part in found.values() for s in part.status] == list(whole["status"].values)
    assert [tree[f"task_{k}"].attrs["task"] for k in range(2)] == ["high", "low"]
    loaded = mp.load_tree(mp.save_tree(tree, tmp_path / "joint.nc"))
    for name, variable in tree["control_variates"].data_vars.items():
        np.testing.assert_array_equal(loaded["control_variates"][name].values, variable.values)
    assert list(loaded.children) == list(tree.children)
    table = found.to_dataframe()
    assert list(table.index) == [("high", "cos"), ("high", "f"), ("low", "f")]
    assert table.loc[("high", "f"), "mean_cv"] == found["high"].mean[1]
    assert found.to_json_dict()["tasks"]["low"] == found["low"].to_json_dict()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["own draws", "shared draws"])
def test_what_was_fitted_survives_a_file_for_kernels_made_of_kernels(tasks, shared, tmp_path):
    kernel = Sum(KERNEL, Scaled(2.0, Matern52(3.0)))
    method = mp.VectorValued(kernel, np.array([[1.0, 0.7], [0.7, 1.2]]), 1e-2, guard=False)
    if shared:
        tasks = {"high": tasks["high"], "low": (tasks["high"][0], tasks["high"][1] ** 2)}
    found = mp.joint_expectation(tasks, method)
    loaded = mp.load_tree(mp.save_tree(found.to_datatree(), tmp_path / "joint.nc"))
    for group, name in (("control_variates", "high"), ("task_0", "high"), ("task_1", "low")):
        info = json.loads(loaded[group].attrs["info"])
        known = dict(found[name].info)
        trace = known.pop("trace")
        # Each task has its own trace, and the fit of all has none.
        assert info.pop("trace", None) == (None if group == "control_variates" else list(trace))
        assert info == known
        flat = [float(value) for value in jax.tree.leaves(info["parameters"])]
        assert flat == [float(value) for value in jax.tree.leaves(kernel)]


def rewritten(trace, fixed):
    """Return draws with a coordinate held fixed, which says nothing of the others, and their
    scores."""
    draws, scores = trace.copy(), -trace
    draws[..., fixed], scores[..., fixed] = 0.5, -0.5
    return mp.from_arrays(draws, scores)


@pytest.mark.slow
def test_a_parameter_that_no_task_moves_is_left_out(draws, rng):
    a, b = draws
    wide = [
        np.concatenate([x[..., :1], np.full((*x.shape[:2], 1), 3.0), x[..., 1:]], axis=-1)
        for x in draws
    ]
    slopes = [np.where(np.arange(3) == 1, rng.normal(), -x) for x in wide]
    values = (smooth(a), 2 * smooth(b))
    moments = (np.array([0.1, 7.0, 0.0]), np.array([1.0, 0.1, 2.0]))
    for known, kept in ((None, None), (moments, tuple(moment[[0, 2]] for moment in moments))):
        fixed = {
            n: (mp.from_arrays(x, s), f)
            for n, x, s, f in zip("ab", wide, slopes, values, strict=True)
        }
        plain = {n: (mp.from_arrays(x, -x), f) for n, x, f in zip("ab", draws, values, strict=True)}
        found = mp.joint_expectation(fixed, METHOD, standardize=known)
        expected = mp.joint_expectation(plain, METHOD, standardize=kept)
        for name in "ab":
            np.testing.assert_allclose(found[name].mean, expected[name].mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9)


def test_a_parameter_that_some_tasks_hold_fixed_is_refused(draws):
    """Each task moves one parameter, and not the same: as many, so that only their names tell them
    apart."""
    a, b = draws
    tasks = {"a": (rewritten(a, 0), a[..., 1]), "b": (rewritten(b, 1), b[..., 0])}
    words = r"move in every task or in none.*'x\[0\]', fixed in task 'a' and not in task 'b'"
    with pytest.raises(mp.InputError, match=words):
        mp.joint_expectation(tasks, METHOD)
    constant = {"a": tasks["a"], "b": (tasks["b"][0], np.full(b.shape[:2], 2.5))}
    alone = mp.VectorValued(KERNEL, nugget=1e-2)
    # it takes no part in the fit
    assert mp.joint_expectation(constant, alone)["b"].status == (mp.Status.CONSTANT,)


def test_one_trace_in_all_tasks_is_the_expectation_of_its_integrands(draws):
    """The Kronecker way: B is learnt in closed form, nothing is searched."""
    a = draws[0]
    tree = mp.from_arrays(a, -a)
    values = {"f": smooth(a), "g": np.cos(a[..., 0])}
    method = mp.VectorValued(KERNEL, nugget=1e-2)
    found = mp.joint_expectation(
        {name: (tree, {name: value}) for name, value in values.items()}, method
    )
    together = mp.expectation(tree, values, method)
    assert np.shape(found["f"].info["task_covariance"]) == (2, 2)
    assert "solver" not in found["f"].info
    np.testing.assert_allclose([found[name].mean[0] for name in values], together.mean, rtol=1e-10)
    np.testing.assert_allclose([found[name].mcse[0] for name in values], together.mcse, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, together.covariance, rtol=1e-10)
    equal = mp.from_arrays(a.copy(), -a)
    again = mp.joint_expectation(
        {"f": (tree, {"f": values["f"]}), "g": (equal, {"g": values["g"]})}, method
    )
    np.testing.assert_allclose(again["g"].mean, found["g"].mean, rtol=1e-12)


def test_a_task_alone_is_the_expectation(draws):
    a = draws[0]
    tree = mp.from_arrays(a, -a)
    method = mp.VectorValued(KERNEL, nugget=1e-2)
    (found,) = mp.joint_expectation({"only": (tree, smooth(a))}, method).values()
    alone = mp.expectation(tree, smooth(a), method)
    assert (found.mean, found.mcse, found.status) == (alone.mean, alone.mcse, alone.status)


@pytest.mark.slow
def test_the_default_method_finds_the_relation(rng):
    x, y = rng.normal(size=(2, 2, 12, 1))
    tasks = {
        "a": (mp.from_arrays(x, -x), np.sin(x[..., 0] + 1)),
        "b": (mp.from_arrays(y, -y), -np.sin(y[..., 0] + 1)),
    }
    found = mp.joint_expectation(tasks)
    truth = np.exp(-0.5) * np.sin(1.0)
    for part, expected in zip(found.values(), (truth, -truth), strict=True):
        assert abs(part.mean[0] - expected) < 4.5 * part.mcse[0]
    assert found.task_correlation[0, 1] < -0.9


def test_known_moments_and_folds_are_used(tasks):
    default = mp.joint_expectation(tasks, METHOD)
    known = mp.joint_expectation(tasks, METHOD, standardize=(np.zeros(2), 1.0), folds=4)
    assert known["low"].info["num_folds"] == known["high"].info["num_folds"] == 4
    assert known["low"].mean != default["low"].mean
    with pytest.raises(ValueError, match="`folds` of at least 2"):
        mp.joint_expectation(tasks, METHOD, folds=1)
    with pytest.raises(ValueError, match="positive sd"):
        mp.joint_expectation(tasks, METHOD, standardize=(0.0, 0.0))


# Bad input.


def test_tasks_of_other_dimensions_are_named(tasks, rng):
    x = rng.normal(size=(2, 24, 3))
    with pytest.raises(ValueError, match=r"one unconstrained space.*'high': 2.*'odd': 3"):
        mp.joint_expectation(tasks | {"odd": (mp.from_arrays(x, -x), x[..., 0])}, METHOD)


@pytest.mark.parametrize(
    ("change", "method", "kind", "words"),
    [
        (lambda _: {}, METHOD, ValueError, "`tasks`, at least one"),
        (
            lambda t: {"a": t["high"][0]},
            METHOD,
            TypeError,
            r"task 'a' to be a pair \(tree, integrands\)",
        ),
        (lambda t: {"a": (*t["high"], 1)}, METHOD, TypeError, "pair"),
        (lambda _: {"a": ("no tree", None)}, METHOD, TypeError, "DataTree"),
        (lambda t: t, mp.ZeroVariance(2), TypeError, "VectorValued"),
        (lambda t: t, "auto", TypeError, "VectorValued"),
        (
            lambda t: t,
            mp.VectorValued(KERNEL, np.eye(3), 1e-2),
            ValueError,
            "a covariance of 2 tasks",
        ),
        (
            lambda t: t | {"low": (t["low"][0], ["nope"])},
            METHOD,
            ValueError,
            "a variable of the posterior group",
        ),
    ],
)
def test_bad_arguments_are_named(tasks, change, method, kind, words):
    with pytest.raises(kind, match=words):
        mp.joint_expectation(change(tasks), method)


def test_a_task_of_one_draw_is_plain_and_leaves_the_others_alone(tasks, rng):
    x = rng.normal(size=(1, 1, 2))
    with pytest.warns(mp.ScoreWarning, match="too few"):
        lone = mp.from_arrays(x, -x)
    with pytest.warns(mp.ScoreWarning, match="too few"):
        found = mp.joint_expectation(tasks | {"lone": (lone, smooth(x))}, METHOD)
    assert found["lone"].status == (mp.Status.TOO_FEW_DRAWS,)
    assert found["lone"].mean == smooth(x)[0, 0]
    assert np.isnan(found["lone"].mcse).all()
    without = mp.joint_expectation(tasks, METHOD)
    for name in tasks:
        np.testing.assert_array_equal(found[name].mean, without[name].mean)
    np.testing.assert_allclose(found.covariance[:2, :2], without.covariance)
    assert ("lone", "f[0]") not in found.task_labels


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_integrand_that_is_not_finite_is_undefined_and_leaves_the_others_alone(
    tasks, draws, value
):
    broken = draws[0][..., 0].copy()
    broken[1, 3] = value
    found = mp.joint_expectation(tasks | {"broken": (tasks["high"][0], broken)}, METHOD)
    part = found["broken"]
    assert part.status == (mp.Status.UNDEFINED,)
    assert np.isnan([part.mean[0], part.mcse[0], part.gain[0], part.mean_crossfit[0]]).all()
    without = mp.joint_expectation(tasks, METHOD)
    for name in tasks:
        np.testing.assert_array_equal(found[name].mean, without[name].mean)
    assert np.isnan(found.covariance[2, 2])
    np.testing.assert_allclose(found.covariance[:2, :2], without.covariance)


def test_a_constant_integrand_takes_no_part(tasks):
    tree = tasks["low"][0]
    found = mp.joint_expectation(tasks | {"constant": (tree, np.full((2, 24), 7.0))}, METHOD)
    assert found["constant"].status == (mp.Status.CONSTANT,)
    assert (found["constant"].mean, found["constant"].mcse) == (7.0, 0.0)
    assert found.covariance[2].tolist() == [0.0, 0.0, 0.0]
    assert len(found.task_labels) == 2
    only = mp.joint_expectation({"constant": (tree, np.full((2, 24), 7.0))}, METHOD)
    assert only.task_covariance.shape == (0, 0)
    assert "task_covariance" not in only.to_datatree()["control_variates"]


def test_bad_scores_of_one_task_name_it_and_can_be_overridden(tasks, draws):
    b = draws[1]
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.from_arrays(b, b)
    wrong = {
        "high": tasks["high"],
        "low": (mp.from_arrays(b, b, allow_bad_scores=True), tasks["low"][1]),
    }
    with pytest.raises(mp.ScoreError, match=r"task 'low'.*wrong sign"):
        mp.joint_expectation(wrong, METHOD)
    forced = mp.joint_expectation(wrong, METHOD, allow_bad_scores=True)
    assert forced["low"].status == (mp.Status.BAD_SCORES,)
    assert forced["high"].status != (mp.Status.BAD_SCORES,)


@pytest.mark.slow
def test_an_unrecognised_failure_of_the_gate_leaves_the_task_out_of_the_fit(tasks, rng):
    x = np.abs(rng.normal(size=(4, 250, 2)))
    with pytest.warns(mp.ScoreWarning):
        half_normal = mp.from_arrays(x, -x)
    with pytest.warns(mp.ScoreWarning):
        found = mp.joint_expectation(tasks | {"half": (half_normal, x[..., 0])}, METHOD)
    assert found["half"].mean == found["half"].mean_plain
    assert found["half"].status == (mp.Status.PLAIN,)
    assert [task for task, _ in found.task_labels] == ["high", "low"]
    without = mp.joint_expectation(tasks, METHOD)
    np.testing.assert_array_equal(found["high"].mean, without["high"].mean)


@pytest.mark.slow
def test_a_hundred_tiny_tasks(rng):
    tasks, truths = {}, np.exp(-0.5) * np.sin(np.linspace(0, 2, 100))
    for j, phase in enumerate(np.linspace(0, 2, 100)):
        x = rng.normal(size=(1, 12, 1))
        tasks[f"t{j}"] = TaskInput(Sample.of(make_trace(x, -x), ("f",), np.sin(x + phase)))
    tuning = mp.TaskREML(squared_lengthscales=(30.0,), nugget=1e-4, max_steps=20, max_draws=300)
    found = estimate_jointly(tasks, mp.VectorValued(tuning=tuning, guard=False), Options())
    assert found.covariance.shape == (100, 100)
    assert np.linalg.eigvalsh(found.covariance)[0] > -1e-12 * np.trace(found.covariance)
    error = np.array([part.mean[0] for part in found.values()]) - truths
    plain = np.array([part.mean_plain[0] for part in found.values()]) - truths
    assert np.median(np.abs(error)) < 0.1 * np.median(np.abs(plain))


# Calibration: kernel, covariance and nugget fixed, integrands that the kernel does not reach.

REPLICATIONS = 80
WAVE = 3.0
TRUTH = np.exp(-0.5 * WAVE**2)
ROUGH = mp.VectorValued(
    SquaredExponential(1.0), np.array([[1.0, 0.8], [0.8, 1.0]]), 1e-2, guard=False
)


def band(freedom):
    return chi2.isf(1e-5, freedom) / freedom


def mean_squares(seed, replications, *, shift=0.0):
    """Return mean z² of each task and mean eᵀC⁻¹e/T over independent replications."""
    rng = np.random.default_rng(seed)
    z, together = [], []
    for _ in range(replications):
        x, y = rng.normal(size=(2, 2, 30, 1))
        inputs = {
            "a": TaskInput(Sample.of(make_trace(x, shift - x), ("f",), np.cos(WAVE * x))),
            "b": TaskInput(Sample.of(make_trace(y, shift - y), ("f",), np.cos(WAVE * y) + 0.5 * y)),
        }
        found = estimate_jointly(inputs, ROUGH, Options())
        error = np.array([part.mean[0] for part in found.values()]) - TRUTH
        z.append(error / np.array([part.mcse[0] for part in found.values()]))
        together.append(error @ np.linalg.solve(found.covariance, error) / 2)
    return (np.array(z) ** 2).mean(axis=0), np.mean(together)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_errors_are_calibrated_one_by_one_and_together(seed):
    each, together = mean_squares(seed, REPLICATIONS)
    assert (each < band(REPLICATIONS)).all()
    assert together < band(2 * REPLICATIONS)
    assert (each > 0.2).all()  # conservative, and not without bound
    # the check can fail: errors of two fifths do
    assert (each / 0.4**2 > band(REPLICATIONS)).any()
    assert together / 0.4**2 > band(2 * REPLICATIONS)


@pytest.mark.slow
def test_the_calibration_check_catches_scores_of_another_target(seed):
    each, together = mean_squares(seed, 30, shift=0.7)
    assert (each > band(30)).any()
    assert together > band(60)


@pytest.mark.parametrize("guard", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tasks_of_different_numbers_of_chains_have_the_same_folds(rng, guard):
    """Four chains make eight folds and three chains nine; chains that stand still fewer."""
    tasks = {}
    for name, chains in (("a", 4), ("b", 3), ("c", 2)):
        x = rng.normal(size=(chains, 30, 2))
        if name == "c":
            x[1] = x[1, :1]
        tasks[name] = mp.from_arrays(x, -x), smooth(x)
    with pytest.warns(mp.ConvergenceWarning, match="R-hat"):  # of a chain that stands still
        found = mp.joint_expectation(tasks, mp.VectorValued(KERNEL, np.eye(3), 1e-2, guard=guard))
    assert all(np.isfinite(part.mcse).all() for part in found.values())
