"""The question that a public function answers: tree, gated scores, integrands and method, each
resolved once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost import control, trees
from mcmcpost.core.arguments import check_flags
from mcmcpost.core.errors import InputError, Status, warn
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.scores import ScoreCheck, ScoreError, ScoreWarning
from mcmcpost.trace import Trace, moving, without_fixed

if TYPE_CHECKING:
    import xarray


METHODS: dict[str, control.AbstractControlVariate] = {
    "auto": control.Auto(),
    "plain": control.PlainMean(),
    "zv1": control.ZeroVariance(1),
    "zv2": control.ZeroVariance(2),
    "zv3": control.ZeroVariance(3),
    "vf1": control.VectorFields(1),
    "vf2": control.VectorFields(2),
    "cf": control.ControlFunctional(max_states=4_000),
    "secf": control.SemiExact(2, max_states=4_000),
    "structured": control.Structured(),
}
"""Short names of methods, for ``method=`` and the command line. Kernels are fitted on at most 4,000
states."""


def structure(tree: "xarray.DataTree") -> dict[str, tuple[str, ...] | tuple[tuple[str, ...], ...]]:
    """Return the blocks of coordinates that the labels of a trace tell: of each, its name and its
    labels in order.

    A block is a variable of more than six entries, or a part of one that a short dimension splits,
    such as ``z[:, intercept]``. With two dimensions of more than six entries it is a grid, ``z[:,
    :]``: a tuple of the labels of each row. Coordinates in none are global. `Auto` and `Structured`
    use these blocks; change the dict and pass it as their ``structure=`` where the labels mislead.
    """
    # Of the coordinates that move, as the fits see them: a fixed element has no score to add up.
    return control.structure_of(without_fixed(trees.read_trace(tree, weighted=True)).names)


NO_GAIN = ("constant", "boundary")
"""Findings of the score gate under which no control variate can help: the status is ``plain``, not
``bad_scores``."""


class Question(NamedTuple):
    """A question about a trace, ready to be answered.

    every, check : the trace with every coordinate, fixed ones too, and the result of the score
        gate.
    sample : the integrands on the trace without fixed coordinates, whose features do not average to
        zero.
    shapes, margins : of the integrands, as in `Integrands`.
    method : the control variate, or the plain mean where the score gate failed.
    options : as given, for the coordinates that move, with what the score gate found.
    convergence : R-hat of the integrands, and divergences.
    seconds : that sampling took, None where the tree has no record of it.
    """

    every: Trace
    check: ScoreCheck
    sample: control.Sample
    shapes: dict[str, tuple[int, ...]]
    margins: Mapping[str, list[Float[np.ndarray, "c n"]]]
    method: control.AbstractControlVariate
    options: control.Options
    convergence: trees.Convergence
    seconds: float | None


def make_question(
    tree: "xarray.DataTree",
    integrands: Any,
    method: str | control.AbstractControlVariate,
    options: control.Options,
    *,
    weighted: bool = False,
    whole: "xarray.DataTree | None" = None,
) -> Question:
    """Return the arrays and the method of a question, after the score gate; arguments as in
    `expectation`.

    It warns once of what is wrong with the chains. Draws with weights are refused unless
    `weighted`.

    whole : the tree of which `tree` has some draws.
    """
    choice = resolve_method(method)
    check_flags("score gate", allow_bad_scores=options.allow_bad_scores)
    check_flags("expectation", fallback=options.fallback)
    every = trees.read_trace(tree, weighted=weighted)
    # Before fixed coordinates are left out: its report names the parameters of the whole trace.
    check = check_gate(
        tree,
        every,
        options.allow_bad_scores,
        scores_needed=not isinstance(choice, control.PlainMean),
    )
    trace = without_fixed(every)
    if check.pattern == "nonfinite":
        # Plain means do not use the scores, but they are transformed with the draws.
        trace = trace._replace(scores=trace.draws)
    # Values after the gate: functions of draws may take long, and scores that fail end here.
    names, values, events, shapes, margins = trees.integrand_values(tree, integrands)
    if check.failed and not options.allow_bad_scores:
        choice = control.PlainMean()
    convergence = trees.check_convergence(tree if whole is None else whole, [(names, values)])
    trees.warn_of_convergence(convergence)
    options = options._replace(
        # Known moments are given for all parameters, and fits see those that move.
        standardize=of_moving(every, options.standardize),
        bad_scores=check.failed
        and not (check.pattern in NO_GAIN and isinstance(choice, control.PlainMean)),
        verified=check.verified,
    )
    # Made once: means, deviations and quantiles of one summary share the search for repeated
    # states.
    sample = control.Sample.of(trace, names, values, events)
    if whole is None:
        _warn_of_values(names, values, sample.finite)
    return Question(
        every,
        check,
        sample,
        shapes,
        margins,
        choice,
        options,
        convergence,
        trees.sampling_seconds(tree),
    )


def check_gate(
    tree: "xarray.DataTree", trace: Trace, allow_bad_scores: bool, *, scores_needed: bool = True
) -> ScoreCheck:
    """Return the result of the score gate on the trace of a tree.

    Raises
    ------
    ScoreError : the gate finds an error that is not allowed, or scores that are needed are not
        finite.
    """
    # With the recorded density scores are also tested along near draws, which finds a factor of
    # 1.05 (docs/errors.md, the score gate).
    check = trees.gate(trace, allow_bad_scores, trees.recorded_log_density(tree, trace))
    if scores_needed and check.pattern == "nonfinite":
        raise ScoreError(check.message)
    return check


def _warn_of_values(names: Sequence[str], values: np.ndarray, finite: np.ndarray) -> None:
    """Warn of the quantities (c, n, p) that are not `finite` (p,) at all draws, and say where the
    first is."""
    missing, first = np.zeros(len(names)), [""] * len(names)
    for j in np.flatnonzero(~finite):
        where = ~np.isfinite(values[..., j])
        chain, draw = np.argwhere(where)[0]
        missing[j], first[j] = where.sum(), f", the first at chain {chain}, draw {draw}"
    warn_of_not_finite(names, missing, values[..., 0].size, first)


def warn_of_not_finite(
    names: Sequence[str], missing: np.ndarray, size: int, first: Sequence[str] = ()
) -> None:
    """Warn of quantities that are NaN or infinite at some draws.

    missing : (p,) how many of the draws, of which there are `size`. first : of each quantity, where
        the first of them is; may be empty.
    """
    texts = []
    bad = np.flatnonzero(missing)
    for j in bad[:NAMED]:
        texts.append(f"{names[j]} at {missing[j]:.0f} of {size} draws{first[j] if first else ''}")
    if texts:
        more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        # Scores have mean zero over all draws: controls would shift a mean of the others by several
        # of its errors.
        warn(
            f"Not finite, and so undefined: {'; '.join(texts)}{more}. Repair what was "
            "computed there. Do not leave these draws out of the tree: scores have mean zero "
            "over all draws only. E[f | f finite] is E[where(finite, f, 0)] / P(finite), for "
            "delta_method."
        )


NAMED = 3
"""Quantities that one warning describes."""


def contradicted(estimate: control.Estimate, *, known: bool) -> list[str]:
    """Return the quantities whose controlled and plain estimates contradict each other.

    known : the score gate has said before that the scores are bad: every status says so.
    """
    pairs = zip(estimate.names, estimate.status, strict=True)
    return [name for name, status in pairs if status is Status.BAD_SCORES and not known]


def warn_of_contradiction(names: Sequence[str]) -> None:
    """Warn of quantities that `contradicted` returned."""
    if names:
        warn(
            f"The controlled estimates of {', '.join(names)} contradict the plain ones by "
            "more than five standard errors: the scores may be of another density, or the "
            "chains have not seen the tails. The plain ones are returned.",
            ScoreWarning,
        )


def warn_of_parts(what: str, names: Sequence[str]) -> None:
    """Warn of quantities about which the parts of what was put together contradict each other."""
    if names:
        warn(
            f"{what} of {', '.join(names)} contradict each other: they are of other posteriors, or "
            "their chains have not converged.",
            trees.ConvergenceWarning,
        )


def of_moving(trace: Trace, standardize: Any) -> Any:
    """Return the known moments of the coordinates that move, of those of all coordinates; None for
    None."""
    if standardize is None:
        return None
    moves = moving(trace.draws)
    mean, sd = control.read_moments(standardize, len(moves))
    return mean[moves], sd[moves]


def resolve_method(method: str | control.AbstractControlVariate) -> control.AbstractControlVariate:
    """Return the method that a short name stands for; an object stands for itself."""
    if isinstance(method, control.AbstractControlVariate):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    raise InputError(
        "method",
        f"one of {', '.join(METHODS)} or a method object",
        repr(method),
        did_you_mean(str(method), METHODS) + "See ZeroVariance, SemiExact.",
    )
