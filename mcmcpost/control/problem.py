"""What control variates are fitted to, for one trace or several tasks: states, integrands and
folds.

States and integrands are standardised. A `Sample` is the integrands on one trace: which of them
vary, and which are the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.control.folds import MOST_FOLDS, Folds, pad_rows, padded
from mcmcpost.control.moments import Outline
from mcmcpost.core.arguments import as_real, check_count
from mcmcpost.core.arrays import (
    column_variance,
    columns_of,
    in_blocks,
    sampling_step,
)
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.mcse import Weights, mean_over_draws, participants, variance_over_draws
from mcmcpost.core.precision import ROUNDINGS, beyond_rounding, in_units, same_to_rounding, units_of
from mcmcpost.scores import effective_size
from mcmcpost.trace import States, Trace, distinct_states, sampled

MIN_FOLDS = 8
"""Folds of the cross-fitting by default, where the chains allow as many."""

MIN_BLOCK = 5
"""Autocorrelation times that a fold has at least in each chain, unless the caller asks for more
folds.

The means of neighbouring blocks are then correlated by at most a tenth, and the error from blocks
is a tenth too small.
"""

SHORT_BLOCK = 2
"""Autocorrelation times that a fold has at least where draws are few, up to four folds."""


class Problem(NamedTuple):
    """A regression of integrands on Stein features at the distinct states of a trace.

    draws, scores : (m, d) in standard coordinates z = L⁻¹(x−μ), Lᵀs; zero on padding.
    values : (m, p) integrands, mean over the copies of a state, centred and of unit standard
        deviation.
    counts : (m,) copies of each state, zero on padding.
    chains : (m,) the chain in which each state was first visited, zero on padding; the states of a
        chain are in order.
    folds : the rows that are held out in turn.
    location, scale : (p,) such that integrand = location + scale·values.
    inverse : (c·n,) the row of each draw. num_chains : c.
    num_states : rows that are not padding.
    names : d labels of the trace's own coordinates.
    shift, lower : (d,), (d, d) the μ and L of the standard coordinates.
    participants : (p,) the draws that make up the variance of each integrand or, if they are fewer,
        of a coordinate, by the function of that name.
    fewest : the smallest number of draws that make up the variance of a coordinate.
    weighted : whether the draws have weights; `counts` are then the weights of the states, whose
        sum is Kish's effective sample size.
    """

    draws: Float[np.ndarray, "m d"]
    scores: Float[np.ndarray, "m d"]
    values: Float[np.ndarray, "m p"]
    counts: Float[np.ndarray, " m"]
    chains: Int[np.ndarray, " m"]
    folds: Folds
    location: Float[np.ndarray, " p"]
    scale: Float[np.ndarray, " p"]
    inverse: Int[np.ndarray, " n"]
    num_chains: int
    num_states: int
    names: tuple[str, ...]
    shift: Float[np.ndarray, " d"]
    lower: Float[np.ndarray, "d d"]
    participants: Float[np.ndarray, " p"]
    fewest: float
    weighted: bool = False

    @property
    def num_train(self) -> int:
        """The smallest number of states on which a fit without a fold is made; of weighted states,
        their share."""
        return int(self.folds.num_train * min(1.0, self.counts.sum() / self.num_states))

    @property
    def outline(self) -> Outline:
        """What is known of the problem without its states."""
        sizes = self.folds.totals(self.counts[:, None])[:, 0]
        return Outline(sizes, self.participants, self.num_train, self.draws.shape[1])

    @property
    def labels(self) -> Int[np.ndarray, " m"]:
        """The fold of each row, −1 on padding."""
        labels = np.zeros(self.counts.shape, np.int32)
        labels[: self.num_states] = self.folds.labels
        labels[self.num_states :] = -1
        return labels

    def unrotated(self) -> "Problem":
        """Return the problem in the trace's own coordinates, each of unit standard deviation."""
        # (LLᵀ)_ii is the variance of coordinate i, whatever the rotation.
        scale = np.linalg.norm(self.lower, axis=1)
        draws = self.draws @ (self.lower / scale[:, None]).T
        # Scores are rows s = s_x L: s_x D = s L⁻¹D, by a triangular solve.
        scores = self.scores @ scipy.linalg.solve_triangular(self.lower, np.diag(scale), lower=True)
        return self._replace(draws=draws, scores=scores, lower=np.diag(scale))

    def select(self, columns: np.ndarray | slice) -> "Problem":
        """Return the problem restricted to some integrands."""
        return self._replace(
            values=self.values[:, columns],
            location=self.location[columns],
            scale=self.scale[columns],
            participants=self.participants[columns],
        )

    def with_columns(self, values: Float[np.ndarray, "m q"]) -> "Problem":
        """Return the problem of other integrands, given at its states."""
        q = values.shape[1]
        # What is not known of new integrands is taken to be as bad as the worst of these.
        involved = np.full(q, self.participants.min())
        return self._replace(
            values=values, location=np.zeros(q), scale=np.ones(q), participants=involved
        )

    def thin(self, max_states: int | None) -> "Problem":
        """Return the problem with fits on at most `max_states` states, by weight or evenly spaced;
        see `Folds.thin`."""
        return self._replace(
            folds=self.folds.thin(max_states, self.counts if self.weighted else None)
        )

    def seen(self) -> "Problem":
        """Return the problem of those states that the fits see, in memory."""
        rows = self.folds.everyone
        return self._replace(
            draws=pad_rows(self.draws[rows]),
            scores=pad_rows(self.scores[rows]),
            values=pad_rows(self.values[rows]),
            counts=pad_rows(self.counts[rows]),
            chains=pad_rows(self.chains[rows]),
            # All of these rows are seen: a fit on some states is a fit on all of this problem's.
            folds=Folds(self.folds.labels[rows], np.ones(len(rows), bool), self.folds.num_folds),
            inverse=np.arange(len(rows)),
            num_chains=1,
            num_states=len(rows),
        )

    @property
    def by_residuals(self) -> bool:
        """Whether a kernel's estimate is the mean of held-out residuals: its fits see some states,
        or no weights."""
        return self.weighted or self.folds.num_everyone < self.num_states


def make_problem(
    trace: Trace,
    values: Float[np.ndarray, "c n p"],
    *,
    states: States | None = None,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
    coordinates: tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]] | None = None,
) -> Problem:
    """Return the regression problem of `values` on `trace`.

    A repeated state is kept once with its count (docs/mathematics.md section 2, duplicates). Folds
    are contiguous blocks within chains, never independent draws.

    Parameters
    ----------
    values : (c, n, p), finite.
    states : the distinct states of `trace`, where the caller has them already.
    num_folds, moments : see `draw_folds` and `standard_coordinates`.
    coordinates : what `standard_coordinates` returns; by default for the draws of this trace and
        `moments`.
    """
    if states is None:
        states = distinct_states(trace)
    m = len(states.counts)
    weights, size = trace.weights, len(states.inverse)
    counts, chains = np.zeros((padded(m),)), np.zeros((padded(m),), np.int32)
    copies = counts[:m]
    copies[...] = states.counts
    if weights is not None:
        # Their sum is Kish's effective size: what divides by Σ counts then counts effective draws.
        copies[...] = np.bincount(states.inverse, weights.values.reshape(-1)) * (weights.ess / size)
    np.floor_divide(states.first, values.shape[1], out=chains[:m], casting="unsafe")
    shift, lower = (
        standard_coordinates(trace.draws, moments, weights) if coordinates is None else coordinates
    )
    z, s = _standardised(states, shift, lower)
    labels = draw_folds(trace.draws, num_folds, weights)
    nothing = np.zeros(0)
    problem = Problem(
        draws=z,
        scores=s,
        values=np.zeros((len(counts), 0)),
        counts=counts,
        chains=chains,
        folds=Folds.from_labels(_occupied(labels if m == len(labels) else labels[states.first])),
        location=nothing,
        scale=nothing,
        inverse=states.inverse,
        num_chains=len(values),
        num_states=m,
        names=trace.names,
        shift=shift,
        lower=lower,
        participants=nothing,
        # Of the trace's own coordinates: those in which they are standard depend on their order.
        fewest=_fewest_participants(states.draws, copies, weights),
        weighted=weights is not None,
    )
    return with_values(problem, values, states, weights)


def with_values(
    problem: Problem, values: Float[np.ndarray, "c n p"], states: States, weights: Weights | None
) -> Problem:
    """Return the problem of other integrands on the same states and folds; arguments as in
    `make_problem`."""
    m, counts = problem.num_states, problem.counts
    # Copies of a state may have different values, as generated quantities do: their mean is fitted.
    means = flat = values.reshape(-1, values.shape[-1])
    if m < len(flat):
        means = np.zeros((m, flat.shape[1]))
        np.add.at(means, states.inverse, flat)
        means /= states.counts[:, None]
    location = mean_over_draws(values, weights)
    spread = sd_over_draws(values, weights)
    # A constant has no scale; it is zero after centring.
    scale = np.where(spread > 0, spread, 1.0)
    f = np.zeros((len(counts), flat.shape[1]))
    for rows in in_blocks(m, flat.shape[1]):
        f[rows] = (means[rows] - location) / scale
    num_participants = (
        participants(f[:m], counts[:m])
        if weights is None
        else participants(_influence(f[:m], counts[:m]))
    )
    # A tail that no coordinate has visited is missing from every integrand (section 2, Errors).
    involved = np.minimum(num_participants, problem.fewest)
    return problem._replace(values=f, location=location, scale=scale, participants=involved)


def _influence(
    columns: Float[np.ndarray, "m p"], counts: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "m p"]:
    """Return what each weighted state adds to the mean of each column."""
    return counts[:, None] * (columns - counts @ columns / counts.sum())


def _standardised(
    states: States, shift: Float[np.ndarray, " d"], lower: Float[np.ndarray, "d d"]
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
    """Return draws and scores in standard coordinates, with rows of zeros up to a multiple of
    `PAD`."""
    draws, scores, m, d = states.draws, states.scores, len(states.counts), len(shift)
    z, s = np.zeros((padded(m), d)), np.zeros((padded(m), d))
    for rows in in_blocks(m, 2 * d):
        # z = L⁻¹(x − μ) and Lᵀs (section 2, Coordinates).
        z[rows] = scipy.linalg.solve_triangular(
            lower, (draws[rows] - shift).T, lower=True, check_finite=False
        ).T
        s[rows] = scores[rows] @ lower
    return z, s


def standard_coordinates(
    draws: Float[np.ndarray, "c n d"],
    moments: tuple[Any, Any] | None = None,
    weights: Weights | None = None,
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return μ and a lower triangular L of the map z = L⁻¹(x−μ).

    They are the `moments` (mean, standard deviation) if those are given. Otherwise LLᵀ is the
    sample covariance if there are at least 5d draws and it is well conditioned, and the diagonal
    matrix of the sample variances if not (docs/mathematics.md section 2, coordinates). Where there
    are weights, moments are weighted and their effective sample size counts.
    """
    c, n, d = draws.shape
    if moments is not None:
        mean, sd = read_moments(moments, d)
        return mean, np.diag(sd)
    mean, covariance = _moments_of(draws, weights)
    sd = np.sqrt(np.diagonal(covariance))
    sd = np.where(sd > 0, sd, 1.0)
    if (c * n if weights is None else weights.ess) >= 5 * d:
        # Correlations, so that the units of the coordinates do not decide what is well conditioned.
        correlation = covariance / sd / sd[:, None]
        # Below, the last pivots are rounding, and z of rounding would be features.
        if np.linalg.eigvalsh(correlation)[0] > 1e-10:
            return mean, sd[:, None] * np.linalg.cholesky(correlation)
    return mean, np.diag(sd)


def _moments_of(
    draws: Float[np.ndarray, "c n d"], weights: Weights | None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return the mean and the covariance of all draws, weighted where there are weights."""
    c, n, d = draws.shape
    if weights is not None:
        mean = weights.mean(draws)
        # Roots of the weights on either side keep the sum of squares one matrix product.
        return mean, _scatter((draws - mean) * np.sqrt(weights.values)[..., None], np.zeros(d)) / (
            c * n
        )
    mean = draws.reshape(-1, d).mean(axis=0)
    return mean, _scatter(draws, mean) / (c * n)


def _scatter(
    draws: Float[np.ndarray, "c n d"], mean: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "d d"]:
    """Return the sum of (x − mean)(x − mean)ᵀ."""
    flat, scatter = draws.reshape(-1, len(mean)), np.zeros((len(mean), len(mean)))
    for rows in in_blocks(*flat.shape):
        centred = flat[rows] - mean
        scatter += centred.T @ centred
    return scatter


def read_moments(moments: Any, d: int) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Return the mean and the standard deviation of each coordinate from `standardize`, a pair of
    scalars or (d,)."""
    cure = "Pass (mean, sd), scalars or (d,)."
    if not isinstance(moments, tuple | list) or len(moments) != 2:
        raise InputTypeError(
            "standardize", "`standardize` to be a pair (mean, sd)", repr(moments), cure
        )
    mean, sd = (as_real("standardize", "standardize", moment).astype(float) for moment in moments)
    if not {mean.shape, sd.shape} <= {(), (d,)}:
        raise InputError(
            "standardize",
            f"`standardize` of scalars or ({d},)",
            f"{mean.shape} and {sd.shape}",
            cure,
        )
    if not (np.isfinite(mean).all() and np.isfinite(sd).all() and (sd > 0).all()):
        raise InputError(
            "standardize", "`standardize` with a finite mean and a positive sd", moments, cure
        )
    return np.broadcast_to(mean, (d,)), np.broadcast_to(sd, (d,))


class Options(NamedTuple):
    """How expectations are estimated, whatever the method; the first four are arguments of every
    public function.

    standardize : known mean and standard deviation of the draws (unconstrained space), instead of
        the sample's.
    folds : of the cross-fitting; about eight by default.
    allow_bad_scores : use control variates although the score gate fails.
    fallback : return the plain mean where the controlled error is not smaller; otherwise a gain
        below one is reported.
    bad_scores : the scores failed the gate. Controlled means are returned all the same, every one
        marked.
    verified : something confirms the scores; otherwise what would be ``exact`` is ``on_trust``.
    """

    standardize: tuple[Any, Any] | None = None
    folds: int | None = None
    allow_bad_scores: bool = False
    fallback: bool = True
    bad_scores: bool = False
    verified: bool = True

    def check(self, trace: Trace) -> None:
        """Refuse folds that are fewer than two or more than the draws, and moments that are none of
        these."""
        chains, draws, d = trace.draws.shape
        cure, most = (
            "Cross-fitting holds out one fold at a time: leave it out for eight.",
            max(chains * draws, 2),
        )
        check_count(
            "folds", "folds", self.folds, cure, least=2, most=min(most, MOST_FOLDS), optional=True
        )
        if self.standardize is not None:
            read_moments(self.standardize, d)


def draw_folds(
    draws: Float[np.ndarray, "c n d"], num_folds: int | None = None, weights: Weights | None = None
) -> Int[np.ndarray, " m"]:
    """Return the fold of each draw, chains concatenated.

    A fold is a whole chain, a group of chains, or a contiguous block of one chain. By default there
    are about eight: whole chains if there are that many, and otherwise equal blocks of each chain,
    of at least `MIN_BLOCK` autocorrelation times. With `num_folds` at most the number of chains,
    chains are grouped. Correlations of weighted draws are those of what each adds to a mean. The
    draws of a nested-sampling run are sorted by their likelihood, and every eighth of them is as a
    run of fewer live points: these are the folds.
    """
    num_chains, num_draws, _ = draws.shape
    if weights is not None and weights.num_live is not None:
        wanted = num_folds or max(MIN_FOLDS, min(num_chains, 2 * MIN_FOLDS))
        if wanted > num_chains:
            each = min(-(-wanted // num_chains), num_draws)
            # The draws of a run are in the order of their likelihood: blocks would be its shells.
            fold_in_run = np.arange(num_draws) % each
            return (np.arange(num_chains)[:, None] * each + fold_in_run[None, :]).reshape(-1)
    elif num_folds is None:
        wanted = default_folds(draws if weights is None else weights.influence(np.asarray(draws)))
    else:
        wanted = num_folds
    if wanted <= num_chains:
        chain_fold = np.arange(num_chains) * wanted // num_chains
        return np.repeat(chain_fold.astype(np.int32), num_draws)
    # Rounded up: at least as many blocks as wanted, all chains cut alike.
    blocks = min(-(-wanted // num_chains), num_draws)
    block = np.arange(num_draws) * blocks // num_draws
    first = np.arange(num_chains, dtype=np.int32)[:, None] * blocks
    return (first + block[None, :].astype(np.int32)).reshape(-1)


def default_folds(draws: Float[np.ndarray, "c n d"]) -> int:
    """Return how many folds there are by default: about eight, fewer where chains mix too slowly
    for so many blocks."""
    num_chains, num_draws, _ = draws.shape
    if num_chains >= MIN_FOLDS:
        return min(num_chains, 2 * MIN_FOLDS)
    length = num_draws / autocorrelation_time(draws)
    # Cross-fitting needs two folds, one chain or not.
    least = 1 if num_chains > 1 else 2
    if are_few(num_chains * num_draws, draws.shape[-1]):
        # A fold shorter than five autocorrelation times is better than two folds of few draws.
        least = max(least, min(4 // num_chains, int(length / SHORT_BLOCK)))
    return num_chains * min(-(-MIN_FOLDS // num_chains), max(least, int(length / MIN_BLOCK)))


def are_few(num_draws: int | float, num_coordinates: int) -> bool:
    """Return whether there are fewer than 20 draws, or four for each coordinate.

    A fit on half of them is then no smaller copy of the fit on all: on a smooth function of eight
    coordinates the error of a kernel falls a hundredfold from 10 to 20 draws.
    """
    return bool(num_draws < max(20, 4 * num_coordinates))


def autocorrelation_time(draws: Float[np.ndarray, "c n d"]) -> float:
    """Return the median over coordinates of draws per effective draw, at least one; one where it is
    unknown.

    Of large arrays, whose every so many draws are looked at, it is at least the distance of these.
    """
    sample = sampled(draws)
    return (
        draws.shape[0]
        * draws.shape[1]
        / float(np.median(effective_size(sample, sample.std(axis=(0, 1)))))
    )


def _occupied(fold: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """Return the folds of the states, renumbered without folds that hold only repeats; at least two
    if m > 1."""
    present = np.zeros(fold.max() + 1, bool)
    for block in in_blocks(len(fold), 1):
        present[fold[block]] = True
    # Chains that hardly move may leave one fold with all distinct states: two halves then.
    if present.sum() < 2:
        return np.arange(len(fold)) * 2 // len(fold)
    return fold if present.all() else (np.cumsum(present) - 1)[fold]


def column_sd(columns: Float[np.ndarray, "n p"], ddof: int = 0) -> Float[np.ndarray, " p"]:
    """Return the standard deviation of each column."""
    return np.sqrt(column_variance(columns, ddof))


def sd_over_draws(
    values: Float[np.ndarray, "c n p"], weights: Weights | None
) -> Float[np.ndarray, " p"]:
    """Return the standard deviation of each integrand over the draws, weighted where there are
    weights."""
    if weights is None:
        return column_sd(values.reshape(-1, values.shape[-1]))
    return np.sqrt(variance_over_draws(values, weights))


def _fewest_participants(
    draws: Float[np.ndarray, "m d"], counts: Float[np.ndarray, " m"], weights: Weights | None
) -> float:
    """Return the smallest of the `participants` of the coordinates of states."""
    if weights is not None:
        real = counts > 0
        return float(participants(_influence(draws[real], counts[real])).min())
    return float(participants(draws, counts).min())


class Task(NamedTuple):
    """One column of one of the problems."""

    problem: int
    column: int


class JointProblem(NamedTuple):
    """Regressions of T integrands on one Stein space, each with its own draws and scores of its own
    target.

    problems : one for each trace, all in the same coordinates and with the same number of folds.
    tasks : T tasks, the columns of the problems in order.
    draws, scores : (m, d) rows of all tasks, zero on padding. The rows of a trace are repeated for
        each integrand.
    values : (m,) of unit scale within a task. counts : (m,) copies of each state, zero on padding.
    labels : (m,) the task of each row, zero on padding.
    chains : (m,) the chain of each row within its trace, as in `Problem`.
    folds : the rows that are held out in turn, in all tasks at once.
    starts : (T + 1,) row offsets of the tasks.
    """

    problems: tuple[Problem, ...]
    tasks: tuple[Task, ...]
    draws: Float[np.ndarray, "m d"]
    scores: Float[np.ndarray, "m d"]
    values: Float[np.ndarray, " m"]
    counts: Float[np.ndarray, " m"]
    labels: Int[np.ndarray, " m"]
    chains: Int[np.ndarray, " m"]
    folds: Folds
    starts: Int[np.ndarray, " t"]

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def indicators(self) -> Float[np.ndarray, "m t"]:
        """The task of each row, one-hot; zero on padding."""
        return np.eye(self.num_tasks)[self.labels] * (self.counts > 0)[:, None]

    def rows_of(self, task: int) -> slice:
        """Return the rows of a task."""
        return slice(int(self.starts[task]), int(self.starts[task + 1]))

    def by_problem(
        self, control: Float[np.ndarray, " m"]
    ) -> Iterator[tuple[Problem, list[int], np.ndarray]]:
        """Yield each problem, its tasks, and its part (m, p) of a control variate given at all
        rows."""
        for i, problem in enumerate(self.problems):
            mine = [t for t, task in enumerate(self.tasks) if task.problem == i]
            columns = np.zeros_like(problem.values)
            for j, t in enumerate(mine):
                columns[: problem.num_states, j] = control[self.rows_of(t)]
            yield problem, mine, columns


def make_joint_problem(
    traces: Sequence[Trace],
    values: Sequence[Float[np.ndarray, "_ _ _"]],
    *,
    states: Sequence[States | None] | None = None,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
) -> JointProblem:
    """Return the joint problem of the integrands of several traces, standardised by their pooled
    draws.

    Folds are contiguous blocks within chains, the same number for every task. Fold k is left out of
    all tasks at once, so that held-out rows share no draws and no random numbers with the rows of
    the fit.

    Parameters
    ----------
    values : (c, n, p) of each trace, finite and not constant.
    states : the distinct states of each trace, where the caller has them already.
    num_folds, moments : as for `make_problem`.
    """
    # The slowest trace decides: fold k is left out of all tasks at once.
    if num_folds is None:
        num_folds = min(default_folds(trace.draws) for trace in traces)
    pooled = np.concatenate([trace.draws.reshape(-1, trace.draws.shape[-1]) for trace in traces])
    # One pooled map, so that one kernel means the same in every task.
    coordinates = standard_coordinates(pooled[None], moments)
    problems = [
        make_problem(trace, value, states=task_states, num_folds=num_folds, coordinates=coordinates)
        for trace, value, task_states in zip(
            traces, values, states or [None] * len(traces), strict=True
        )
    ]
    # equal blocks of each chain may be more, or repeats
    fewest = min(problem.folds.num_folds for problem in problems)
    return join(tuple(problem._replace(folds=problem.folds.merged(fewest)) for problem in problems))


def join(problems: tuple[Problem, ...]) -> JointProblem:
    """Return the joint problem of problems in the same coordinates."""
    tasks = tuple(
        Task(i, j) for i, problem in enumerate(problems) for j in range(problem.values.shape[1])
    )
    sizes = [problems[i].num_states for i, _ in tasks]
    starts = np.concatenate([[0], np.cumsum(sizes)])

    def stack(name: str) -> np.ndarray:
        return pad_rows(
            np.concatenate([getattr(problems[i], name)[: problems[i].num_states] for i, _ in tasks])
        )

    fold = np.concatenate([problems[i].folds.labels for i, _ in tasks])
    return JointProblem(
        problems=problems,
        tasks=tasks,
        draws=stack("draws"),
        scores=stack("scores"),
        values=pad_rows(
            np.concatenate([problems[i].values[: problems[i].num_states, j] for i, j in tasks])
        ),
        counts=stack("counts"),
        labels=pad_rows(np.repeat(np.arange(len(tasks)), sizes)),
        chains=stack("chains"),
        folds=Folds.from_labels(fold),
        starts=starts,
    )


MIN_STATES = 4
"""Distinct states, or effective draws of weighted ones, below which no error is reported, not even
of a constant."""


class Sample(NamedTuple):
    """Integrands on one trace, and what their values show.

    trace : draws and scores, and their weights.
    names : p labels. values : (c, n, p) integrands at the draws.
    events : (p,) whether a constant zero or one is taken for that of an event that was not seen.
    units : (p,) powers of two, one for values of a usual size; see `scaled`.
    states : the distinct states of the trace.
    finite, varying : (p,) whether an integrand is finite at every draw; whether it is and is not
        constant up to rounding, as the diagonal of a correlation matrix is.
    unseen : (p,) whether it is zero at every draw, or one, as the indicator of an event is that was
        not seen.
    ess : the smallest effective sample size of a coordinate, of large arrays, of every so many
        draws, or that of the weights; NaN where nothing is unseen.
    """

    trace: Trace
    names: tuple[str, ...]
    values: Float[np.ndarray, "c n p"]
    events: Bool[np.ndarray, " p"]
    units: Float[np.ndarray, " p"]
    states: States
    finite: Bool[np.ndarray, " p"]
    varying: Bool[np.ndarray, " p"]
    unseen: Bool[np.ndarray, " p"]
    ess: float

    @classmethod
    def of(
        cls,
        trace: Trace,
        names: tuple[str, ...],
        values: Float[np.ndarray, "c n p"],
        events: Bool[np.ndarray, " p"] | None = None,
        states: States | None = None,
    ) -> "Sample":
        """Return integrands on a trace, all of them `events` by default; `states` where the caller
        has them already."""
        events = np.ones(len(names), bool) if events is None else events
        states = distinct_states(trace) if states is None else states
        with np.errstate(invalid="ignore"):
            low, high = values.min(axis=(0, 1)), values.max(axis=(0, 1))
            finite = np.isfinite(low) & np.isfinite(high)
            unseen = finite & (high == low) & ((low == 0) | (low == 1)) & events
        ess = np.nan
        if unseen.any() and trace.weights is not None:
            ess = trace.weights.ess
        elif unseen.any():
            # Through `inverse`, since repeats count in an effective sample size.
            step = sampling_step((*values.shape[:2], states.draws.shape[1]))
            chains = states.draws[states.inverse.reshape(values.shape[:2])[:, ::step]]
            ess = float(effective_size(chains, chains.std(axis=(0, 1))).min())
        units = units_of(values)
        # In units in which a variance can neither overflow nor vanish.
        varying = beyond_rounding(in_units(values, units))
        return cls(trace, names, values, events, units, states, finite, varying, unseen, ess)

    @property
    def scaled(self) -> Float[np.ndarray, "c n p"]:
        """The values in their units, whose variances neither overflow nor vanish; without a copy
        where all are one."""
        return in_units(self.values, self.units)

    @property
    def too_few(self) -> bool:
        """Whether there are too few distinct states, or effective draws, to know anything of the
        errors."""
        weights = self.trace.weights
        return (weights is not None and weights.ess < MIN_STATES) or len(
            self.states.counts
        ) < MIN_STATES

    @property
    def columns(self) -> Int[np.ndarray, " k"]:
        """The integrands to which a control variate can be fitted."""
        return np.flatnonzero(self.varying & (not self.too_few))

    @property
    def fitted_values(self) -> Float[np.ndarray, "c n k"]:
        """The scaled values of these integrands, without a copy where they follow each other."""
        return columns_of(self.scaled, self.columns)

    def select(self, places: Int[np.ndarray, " q"]) -> "Sample":
        """Return the sample of the integrands at these places."""
        fields = ("events", "units", "finite", "varying", "unseen")
        return self._replace(
            names=tuple(self.names[j] for j in places),
            values=columns_of(self.values, places),
            **{name: getattr(self, name)[places] for name in fields},
        )

    def without_repeats(self) -> tuple["Sample", Int[np.ndarray, " p"]]:
        """Return the sample of the integrands that differ, itself where all do, and the place there
        of each of these.

        A correlation matrix holds each of its correlations twice.
        """
        first = first_of_same(self.scaled)
        # Equal after scaling is not equal where the units differ.
        first = np.where(self.units[first] == self.units, first, np.arange(len(first)))
        distinct, place = np.unique(first, return_inverse=True)
        return (self if len(distinct) == len(first) else self.select(distinct)), place

    def problem(self, options: Options) -> Problem | None:
        """Return the regression of the integrands that can be fitted; None where there are none."""
        if not len(self.columns):
            return None
        return make_problem(
            self.trace,
            self.fitted_values,
            states=self.states,
            num_folds=options.folds,
            moments=options.standardize,
        )

    def problem_on(self, problem: Problem) -> Problem | None:
        """Return the same regression on the states and folds of a problem of the same trace."""
        if not len(self.columns):
            return None
        return with_values(problem, self.fitted_values, self.states, self.trace.weights)


def first_of_same(values: Float[np.ndarray, "c n p"]) -> Int[np.ndarray, " p"]:
    """Return for each integrand the first one that has its values, up to rounding, at every draw.

    Integrands that are constant, or not finite, are their own.
    """
    first = np.arange(values.shape[-1])
    varies = np.flatnonzero(beyond_rounding(values))
    if len(varies) < 2:
        return first
    with np.errstate(invalid="ignore"):
        mean = values.mean(axis=(0, 1))
    size = np.maximum(values.max(axis=(0, 1)), -values.min(axis=(0, 1)))
    # Equal series have equal means: only neighbours in this order are compared draw by draw.
    order = varies[np.argsort(mean[varies], kind="stable")]
    separated = np.diff(mean[order]) > ROUNDINGS * np.finfo(np.float32).eps * size[order][1:]
    for run in np.split(order, np.flatnonzero(separated) + 1):
        kept: list[int] = []
        # In order of place, so that the first of the same stands for them.
        for j in sorted(run.tolist()):
            first[j] = next(
                (i for i in kept if same_to_rounding(values[..., i], values[..., j])), j
            )
            if first[j] == j:
                kept.append(j)
    return first
