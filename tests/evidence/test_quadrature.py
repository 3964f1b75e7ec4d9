"""The nested quadrature of the path: its nodes, and that its discretisation error is neither too
small nor decisive."""

import numpy as np
import pytest
from ladder_cases import GaussianPath, gaussian_path

from mcmcpost.evidence import pooled_path, power_ladder
from mcmcpost.evidence.path import MOST_NODES, NUM_NODES, kronrod, path_rule

STEEP = GaussianPath(np.array([2.0, -1.0]), 0.003)
"""Nearly all of the path happens below t = 1e-4."""

# QUADPACK's qk15 and qk21: the largest node, the largest of the Gauss nodes, and their weights; the
# weight at zero.
QUADPACK = {
    7: (
        0.991455371120812639,
        0.022935322010529225,
        0.949107912342758525,
        0.063092092629978553,
        0.209482141084727828,
    ),
    10: (
        0.995657163025808081,
        0.011694638867371874,
        0.973906528517171720,
        0.032558162307964727,
        0.149445554002916906,
    ),
}


@pytest.mark.parametrize("n", QUADPACK)
def test_the_rules_of_quadpack(n: int) -> None:
    nodes, weights = kronrod(n)
    found = (nodes[-1], weights[-1], nodes[-2], weights[-2], weights[n])
    np.testing.assert_allclose(found, QUADPACK[n], rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 48, 100])
def test_kronrod_keeps_the_gauss_nodes_and_is_exact_to_its_degree(n: int) -> None:
    nodes, weights = kronrod(n)
    assert (weights > 0).all()
    assert (np.diff(nodes) > 0).all()
    np.testing.assert_allclose(nodes[1::2], np.polynomial.legendre.leggauss(n)[0], atol=1e-14)
    beyond = 3 * n + 2 + n % 2  # the next even degree
    moments = weights @ np.polynomial.legendre.legvander(nodes, beyond)
    np.testing.assert_allclose(moments[:-1], np.eye(1, beyond)[0] * 2, atol=1e-13)
    if n < 48:
        assert abs(moments[-1]) > 1e-4


@pytest.mark.parametrize("path", [gaussian_path(2), STEEP], ids=["smooth", "steep"])
@pytest.mark.parametrize("n", [4, 8, 12, 24, 48])
def test_the_distance_of_the_two_rules_covers_the_error_on_exact_means(
    n: int, path: GaussianPath
) -> None:
    rule, fine = path_rule(n, 5.0), path_rule(4 * n, 5.0)
    value = rule.weights @ path.log_likelihood_moments(rule.temperatures)[0]
    reported = abs(value - rule.coarse @ path.log_likelihood_moments(rule.temperatures)[0])
    truth = path.log_evidence(np.ones(1))[0]
    rounding = 1e-13 * abs(truth)
    assert abs(value - truth) < reported + rounding
    assert (
        abs(value - fine.weights @ path.log_likelihood_moments(fine.temperatures)[0])
        < reported + rounding
    )


@pytest.mark.slow
def test_too_few_nodes_are_seen_and_by_default_doubled(rng: np.random.Generator) -> None:
    ladder, truth = STEEP.ladder(rng, 60, power_ladder(17, 5)), STEEP.log_evidence(np.ones(1))[0]
    few = pooled_path(ladder, degree=2, num_nodes=4)
    assert len(few.temperatures) == 9
    assert 1e-4 < abs(few.value - truth) < few.discretisation_error
    found = pooled_path(ladder, degree=2)
    assert NUM_NODES < found.info["num_nodes"] <= MOST_NODES
    assert found.discretisation_error < 0.01 * few.discretisation_error
    assert abs(found.value - truth) < found.discretisation_error + 4.5 * found.mcse + 1e-9 * abs(
        truth
    )
