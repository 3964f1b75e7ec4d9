"""Folds: one record from the fold of each row, and the states of a trace looked for once."""

import numpy as np
import pytest

import mcmcpost as mp
from mcmcpost.control import problem
from mcmcpost.control.folds import PAD, Folds

LABELS = np.array([0, 0, 2, 1, 1, -1, 0, 2, -1])


def test_every_row_is_held_out_once_and_padding_never():
    folds = Folds.from_labels(LABELS)
    for k, (out, inside) in enumerate(folds.rows()):
        np.testing.assert_array_equal(out, np.flatnonzero(k == LABELS))
        np.testing.assert_array_equal(inside, np.flatnonzero((k != LABELS) & (LABELS >= 0)))
    assert (folds.num_folds, folds.num_train, folds.num_everyone) == (3, 4, 7)
    rows, real = folds.held_out()
    assert rows.shape == real.shape == (3, PAD)


def test_labels_are_those_that_the_folds_came_from():
    labels = np.array([1, 0, 0, 2, 1, 2, 2])
    folds = Folds.from_labels(np.append(labels, [-1, -1]))
    np.testing.assert_array_equal(folds.labels, labels)
    np.testing.assert_array_equal(folds.thin(3).labels, labels)


def test_thinned_fits_see_evenly_spaced_rows_and_every_row_is_still_held_out():
    labels = np.repeat(np.arange(4), 10)
    folds = Folds.from_labels(labels)
    thinned = folds.thin(5)
    kept = np.array([0, 9, 19, 29, 39])
    np.testing.assert_array_equal(thinned.everyone, kept)
    for k, ((out, inside), (all_out, _)) in enumerate(
        zip(thinned.rows(), folds.rows(), strict=True)
    ):
        np.testing.assert_array_equal(out, all_out)
        np.testing.assert_array_equal(inside, kept[labels[kept] != k])
    assert folds.thin(None) is folds
    assert folds.thin(40) is folds


@pytest.mark.parametrize("width", [(), (2,)])
def test_held_out_values_go_back_to_their_rows(rng, width):
    folds = Folds.from_labels(LABELS)
    values = rng.normal(size=(len(LABELS), *width))
    found = folds.scatter(values[folds.held_out()[0]], len(LABELS))
    np.testing.assert_array_equal(found[LABELS >= 0], values[LABELS >= 0])
    assert not found[LABELS < 0].any()


def test_a_question_looks_for_repeated_states_once(rng, monkeypatch):
    """Means, standard deviations and quantiles of one sample share its states."""
    calls, original = [], problem.distinct_states
    monkeypatch.setattr(
        problem, "distinct_states", lambda trace: calls.append(trace) or original(trace)
    )
    draws = rng.normal(size=(4, 50, 1))
    mp.summary(mp.from_arrays(draws, -draws), method="zv1", sd=True, quantiles=[0.5])
    assert len(calls) == 1
