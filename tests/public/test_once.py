"""A call reads the tree, gates the scores and evaluates the integrands once."""

import json
import sys
from collections import Counter

import numpy as np
import pytest
from ladder_cases import RUNGS, gaussian_path

import mcmcpost as mp
from mcmcpost.stein import SquaredExponential

ONCE = {"read_trace": 1, "check_scores": 1, "integrand_values": 1}
HOMES = {
    "read_trace": "mcmcpost.trees.convention",
    "read_ladder": "mcmcpost.trees.ladder_trees",
    "check_scores": "mcmcpost.scores.gate",
    "integrand_values": "mcmcpost.trees.integrands",
    "evaluate_expressions": "mcmcpost.app.expressions",
}


@pytest.fixture
def tree(rng):
    draws = rng.normal(size=(4, 100, 2))
    return mp.from_arrays(draws, -draws, names=("a", "b"))


@pytest.fixture
def entered(monkeypatch):
    """Count how often the functions of `HOMES` are entered, from whichever module of the
    package."""
    from mcmcpost import expectations, stein_rules  # noqa: F401  (their names are replaced below)
    from mcmcpost.app import commands, page, quantities  # noqa: F401  (their names are replaced below)

    counts: Counter[str] = Counter()

    def counted(name, function):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    modules = [module for name, module in sys.modules.items() if name.startswith("mcmcpost.")]
    for name, home in HOMES.items():
        function = getattr(sys.modules[home], name)
        for module in modules:
            if vars(module).get(name) is function:
                monkeypatch.setattr(module, name, counted(name, function))
    return counts


SQUARES = {"square": lambda draw: draw["a"] ** 2, "product": lambda draw: draw["a"] * draw["b"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda tree: mp.expectation(tree, SQUARES, "zv2"),
        lambda tree: mp.expectation(tree, SQUARES, "plain"),
        lambda tree: mp.quantile(tree, [0.1, 0.9], ["a"], "zv1"),
        lambda tree: mp.summary(tree, method="zv2"),
        lambda tree: mp.stein_weights(
            tree, method=mp.ControlFunctional(SquaredExponential(2.0), 1e-4)
        ),
        lambda tree: mp.html_report(tree, None, SQUARES, "zv2"),
    ],
    ids=["expectation", "plain", "quantile", "summary", "weights", "report"],
)
def test_a_call_reads_and_gates_a_tree_once(tree, entered, call):
    call(tree)
    assert entered == ONCE


def test_tasks_that_share_a_tree_share_its_gate(tree, entered):
    mp.joint_expectation(
        {"a": (tree, ["a"]), "b": (tree, ["b"])},
        mp.VectorValued(SquaredExponential(2.0), np.eye(2), 1e-2, guard=False),
    )
    assert entered == ONCE | {"integrand_values": 2}


@pytest.mark.slow
def test_the_report_of_a_ladder_reads_it_once(rng, entered, monkeypatch):
    monkeypatch.setattr("mcmcpost.app.page.evidence_of", lambda *_, **__: None)
    ladder = mp.ladder_from_arrays(*gaussian_path(1).ladder(rng, 60, RUNGS, chains=2)[:5])
    mp.html_report(ladder, method="zv1")
    assert entered == ONCE | {"read_ladder": 1}


@pytest.mark.slow
def test_the_command_line_asks_one_question(run, tree, tmp_path, entered):
    mp.save_tree(tree, tmp_path / "trace.nc")
    extra = ["--expect", "p=a > 0", "--method", "zv1", "--json"]
    done = run("reduce", tmp_path / "trace.nc", "--quantile", "0.5", *extra)
    assert entered == ONCE | {"evaluate_expressions": 1}
    assert [row["name"] for row in json.loads(done.out)["quantities"]][:4] == [
        "a",
        "b",
        "p",
        "a [0.5]",
    ]
    entered.clear()
    assert run("report", tmp_path / "trace.nc", "-o", "report.html", *extra).code == 0
    assert entered == ONCE | {"evaluate_expressions": 1}
