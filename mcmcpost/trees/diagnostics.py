"""Checks of traces: the score gate, scores against the recorded log density, R-hat and
divergences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mcmcpost.core.arguments import check_flags
from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.errors import fault, warn
from mcmcpost.core.mcse import GOOD_KHAT, Weights, mcse_mean, mean_over_draws, rank_rhat
from mcmcpost.core.precision import unit_of_text
from mcmcpost.scores import ScoreCheck, ScoreError, ScoreWarning, check_scores, effective_size
from mcmcpost.trace import Trace, repeated_draws
from mcmcpost.trees.convention import DRAWS, GROUP, SCORES, read_trace, read_weights, telling_draws

if TYPE_CHECKING:
    import pandas
    import xarray


def gate(
    trace: Trace,
    allow_bad_scores: bool = False,
    log_density: Float[np.ndarray, "c n"] | None = None,
) -> ScoreCheck:
    """Test the scores of `trace`; raise on an error, warn on a warning.

    Parameters
    ----------
    trace : draws and scores (c, n, d).
    allow_bad_scores : return an error instead of raising it.
    log_density : what the sampler recorded, see `recorded_log_density`.

    Returns
    -------
    ScoreCheck : see `gate_attrs` for what to record of it.

    Raises
    ------
    ScoreError : the scores are not finite or show a recognised mistake.
    """
    check_flags("score gate", allow_bad_scores=allow_bad_scores)
    check = check_scores(trace, log_density)
    if check.verdict == "error" and not allow_bad_scores:
        # No flag makes a mean of NaN usable.
        cure = "" if check.pattern == "nonfinite" else " allow_bad_scores=True overrides."
        raise ScoreError(check.message + cure)
    if check.verdict == "warn":
        warn(check.message, ScoreWarning)
    return check


def gate_attrs(check: ScoreCheck) -> dict[str, str]:
    """Return the attrs that record `check`; an error, which would have been raised, was
    overridden."""
    # The attribute travels with the file: whoever reads it must see that the gate was overruled.
    verdict = "overridden" if check.verdict == "error" else check.verdict
    return {"score_check": verdict, "score_check_message": check.message}


def check_tree(tree: "xarray.DataTree", allow_bad_scores: bool = False) -> ScoreCheck:
    """Run the score gate on a stored tree; see `gate`."""
    trace = read_trace(tree, weighted=True)
    return gate(trace, allow_bad_scores, recorded_log_density(tree, trace))


def score_diagnostics(tree: "xarray.DataTree") -> "pandas.DataFrame":
    """Return for each unconstrained parameter how far Stein's identity is from holding, in standard
    errors.

    Of draws x of the density whose score is s, (x − c)ᵏ s + k (x − c)ᵏ⁻¹ has mean zero for k = 0,
    1, 2 and any c. R-hat compares chains with each other, and these compare them with the density:
    chains that agree, and have all missed a tail or a mode that is not far, or were drawn by a
    sampler without an accept step, show it here. A mode from which no chain has a draw shows in
    neither. Gorham and Mackey (2015, Measuring sample quality with Stein's method).

    Parameters
    ----------
    tree : a trace with scores; draws may have weights.

    Returns
    -------
    DataFrame : a row for each parameter. `stein_z0`, `stein_z1`, `stein_z2` are the means over
        their Monte Carlo errors: beyond ±4 they are no chance; NaN where a parameter is fixed, or
        an error is not known. `ess` and `r_hat` are those of the unconstrained parameter,
        rank-normalised R-hat of Vehtari et al. (2021), NaN of weighted draws.
    """
    import pandas

    trace = read_trace(tree, weighted=True)
    # About the mean: of a coordinate near 1e4 the products with x itself are 1e4 s, whose noise
    # hides the rest.
    x, s = trace.draws - mean_over_draws(trace.draws, trace.weights), trace.scores
    columns = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        # L applied to the field (x − c)ᵏ in one coordinate, docs/mathematics.md section 1 (Stein
        # kernels): k (x − c)ᵏ⁻¹ is its divergence.
        for order, series in enumerate((s, x * s + 1.0, x**2 * s + 2.0 * x)):
            columns[f"stein_z{order}"] = mean_over_draws(series, trace.weights) / mcse_mean(
                series, trace.weights
            )
        if trace.weights is None:
            columns |= {"ess": effective_size(x, x.std(axis=(0, 1))), "r_hat": rank_rhat(x)}
        else:
            columns |= {
                "ess": np.full(x.shape[2], trace.weights.ess),
                "r_hat": np.full(x.shape[2], np.nan),
            }
    # Along a fixed coordinate the score is that of one point and averages to nothing in particular.
    fixed = np.ptp(trace.draws, axis=(0, 1)) == 0
    columns = {name: np.where(fixed, np.nan, column) for name, column in columns.items()}
    return pandas.DataFrame(
        columns, index=pandas.Index(trace.names, name="unconstrained_parameter")
    )


class ConvergenceWarning(UserWarning):
    """The chains of a trace disagree about what is asked, transitions diverged, or few weighted
    draws decide."""


RHAT_LIMIT, RHAT_SHORT = 1.1, 5.0
"""The limit of R-hat is the first plus the second over the draws of a chain."""

RHAT_SLOW = 1.01
"""The limit of Vehtari et al. (2021, doi:10.1214/20-BA1221), likewise: above it are all chains that
mix slowly, whose errors can be right."""


class Convergence(NamedTuple):
    """What the chains of a trace say about it.

    max_rhat : the largest R-hat, NaN for one chain or where nothing varies. worst : the name of
        that scalar.
    unconverged : scalars whose R-hat is above the limit. limit : 1.1 + 5/n for n draws a chain.
    divergences, transitions : of the sampler; none where they are not recorded.
    weights : of the draws. Weighted draws have no R-hat, and Pareto k̂ instead.
    repeated : two chains with draws in common, counted from zero, or one twice, which has draws
        twice; None where all differ.
    transposed : how many chains and draws there seem to be, where their axes have changed places;
        None where not.
    """

    max_rhat: float
    worst: str
    unconverged: int
    limit: float
    divergences: int
    transitions: int
    weights: Weights | None = None
    repeated: tuple[int, int] | None = None
    transposed: tuple[int, int] | None = None

    @property
    def complaint(self) -> str | None:
        """A warning with its cure in one line, None where nothing is wrong."""
        parts = []
        if self.transposed is not None:
            chains, draws = self.transposed
            parts.append(
                f"Expected (chain, draw, ...), got {draws} chains of {chains} draw(s), of which "
                "each chain goes on from the last, and a draw does not from the one before: "
                f"these are {chains} chain(s) of {draws} draws, so that errors are wrong. "
                "Transpose: x.swapaxes(0, 1), or name the dims."
            )
        if self.unconverged:
            others = f" and of {self.unconverged - 1} more" if self.unconverged > 1 else ""
            parts.append(
                f"R-hat {self.max_rhat:.3g} of {self.worst}{others} is above "
                f"{self.limit:.3g}: the chains have not converged for what is asked, and "
                "neither means nor errors are reliable. Run longer chains."
            )
        if self.repeated is not None:
            one, other = self.repeated
            which = (
                f"Chain {one} has draws twice"
                if one == other
                else f"Chains {one} and {other} have draws in common"
            )
            parts.append(
                f"{which}: errors are too small. Leave them out where they are again, and give "
                "each chain a seed of its own."
            )
        if self.divergences:
            parts.append(
                f"{self.divergences} of {self.transitions} transitions were divergent: draws "
                "are missing where the density curves sharply, and means can be off by more "
                "than their errors. Raise the target acceptance (target_accept_prob, "
                "adapt_delta), or reparameterise."
            )
        if self.weights is not None and self.weights.khat > GOOD_KHAT:
            parts.append(
                f"Pareto k-hat {self.weights.khat:.2g} of the weights is above {GOOD_KHAT}: "
                f"{self.weights.ess:.3g} effective draws decide, and neither means nor errors "
                "are reliable. Draw from closer to the target."
            )
        return " ".join(parts) or None

    @property
    def recorded_divergences(self) -> int | None:
        """The number of divergent transitions; None where no sampler recorded them."""
        return self.divergences if self.transitions else None

    @property
    def note(self) -> str | None:
        """What is worth saying, although it is not wrong: an R-hat between both limits."""
        slow = self.limit - RHAT_LIMIT + RHAT_SLOW
        if self.unconverged or not self.max_rhat > slow:
            return None
        return (
            f"R-hat {self.max_rhat:.3g} of {self.worst} is above {slow:.3g}: the chains mix "
            "slowly. Errors allow for what the draws show of that; longer chains are safer."
        )


def check_convergence(
    tree: "xarray.DataTree", parts: Iterable[tuple[Sequence[str], Float[np.ndarray, "c n _"]]]
) -> Convergence:
    """Return the rank-normalised R-hat of the named scalars in `parts`, and the divergences of
    `tree`.

    Such an R-hat sees disagreement of the chains, or of their halves, about the mean and about the
    spread. It does not hold for weighted draws, for which Pareto k̂ of the weights is returned.
    """
    weights = None
    rhat: dict[str, float] = {}
    draws, transposed = 1, None
    for names, values in parts:
        draws = values.shape[1]
        weights = (
            read_weights("check_convergence", tree, values.shape[:2])
            if weights is None
            else weights
        )
        if weights is not None:
            continue
        if transposed is None and _transposed(values):
            transposed = draws, values.shape[0]
        # Ranks of all scalars at once would be a copy as large as the trace.
        for block in in_blocks(len(names), values.shape[0] * draws):
            with np.errstate(all="ignore"):
                rhat |= zip(names[block], rank_rhat(values[..., block]).tolist(), strict=True)
    # NaN is a constant scalar or a single chain: neither is a disagreement.
    known = {name: value for name, value in rhat.items() if not np.isnan(value)}
    worst = max(known, key=known.__getitem__, default="")
    # R-hat itself scatters by some 1/n: at a fixed limit short chains that agree would be
    # complained about.
    limit = RHAT_LIMIT + RHAT_SHORT / draws
    num_disagreeing = sum(value > limit for value in known.values())
    stats = tree.children.get(GROUP)
    diverging = (
        np.zeros(0)
        if stats is None or "diverging" not in stats
        else np.asarray(stats["diverging"].values)
    )
    largest = known.get(worst, float("nan"))
    # Joined files may lack the variable in some chains.
    # NaN where no sampler recorded it
    divergences, repeated = int((diverging == 1).sum()), repeated_draws(telling_draws(tree))
    return Convergence(
        largest,
        worst,
        num_disagreeing,
        limit,
        divergences,
        diverging.size,
        weights,
        repeated,
        transposed,
    )


_ALONG_CHAINS = 6.0
"""Standard errors by which neighbouring chains must be correlated. Their order has no meaning: any
is chance. No 33 chains can reach it."""


def _transposed(values: Float[np.ndarray, "c n p"]) -> bool:
    """Return whether the axes of chains and of draws seem to have changed places.

    Chains are in no order: their correlation with the next has the error 1/√c at most, reached
    where a chain hardly moves. Only more chains than draws are looked at, and only a correlation
    that is the larger of the two: many short chains, started where one long chain went, go on from
    each other, but each also from its own draw before.
    """
    c, n, _ = values.shape
    if c <= n:
        return False
    for j in range(values.shape[2]):
        x = values[..., j]
        # NaN or a constant tell nothing.
        if not np.isfinite(x).all() or not (size := x.std()) > 0:
            continue
        unit = (x - x.mean()) / size
        between = abs(float((unit[1:] * unit[:-1]).mean()))
        within = abs(float((unit[:, 1:] * unit[:, :-1]).mean())) if n > 1 else 0.0
        if between * np.sqrt(c) > _ALONG_CHAINS and between > 2 * within:
            return True
    return False


def warn_of_convergence(convergence: Convergence) -> None:
    """Warn of what is wrong with the chains, in one warning."""
    if convergence.complaint:
        warn(convergence.complaint, ConvergenceWarning)


def sampling_seconds(tree: "xarray.DataTree") -> float | None:
    """Return the seconds that sampling took, as samplers record them in the attribute
    `sampling_time`; None without."""
    # PyMC writes the attribute on the posterior, `mcmcpost sample` and `from_cmdstan` on the tree.
    for node in (
        tree,
        *(tree.children[name] for name in ("posterior", GROUP) if name in tree.children),
    ):
        seconds = node.attrs.get("sampling_time")
        if isinstance(seconds, int | float | np.number) and np.isfinite(seconds) and seconds > 0:
            return float(seconds)
    return None


RECORDED = ("lp", "logp")
"""Where samplers record log density, log-Jacobian included, up to a constant: ArviZ's schema and
nutpie."""

_COMPARED = 200

_SHARE = 0.01
_SAME_DRAWS = 1e-6

_ROUNDING = 100.0


class Scored(NamedTuple):
    """Draws with the scores that one log density has there.

    trace : draws and scores (c, n, d).
    logdensity : log density at some of the draws, by their places where chain follows on chain,
        (m,) → (m,).
    versions : attrs that say what computed the scores.
    """

    trace: Trace
    logdensity: Callable[[Int[np.ndarray, " m"]], Float[np.ndarray, " m"]]
    versions: dict[str, str]


class RowDensity(NamedTuple):
    """Unconstrained draws (c, n, d), and the log density of another package, which takes one row
    (d,) at a time.

    names : d labels. logdensity : log-Jacobian included. gradient : (d,) of it, called only where
        it is finite.
    versions : attrs that say what computes them.
    discrete : (c, n, e) values of discrete parameters, which follow the draw in a row (d + e,)
        where there are some.
    """

    draws: Float[np.ndarray, "c n d"]
    names: tuple[str, ...]
    logdensity: Callable[[Float[np.ndarray, " d"]], float]
    gradient: Callable[[Float[np.ndarray, " d"]], Float[np.ndarray, " d"]]
    versions: dict[str, str]
    discrete: Float[np.ndarray, "c n e"] | None = None

    def values(self, points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " m"]:
        """Return the log density at any points."""
        # Compiled functions of PyTensor and Stan take one point a call.
        return np.array([self.logdensity(point) for point in points], dtype=np.float64)

    def slopes(self, points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m _"]:
        """Return the gradients at any points; NaN where the log density is not finite."""
        gradients = np.full((len(points), self.draws.shape[-1]), np.nan)
        for i, point in enumerate(points):
            # Stan and PyMC raise, or return some numbers, for a gradient where the density is not
            # finite.
            if np.isfinite(self.logdensity(point)):
                gradients[i] = self.gradient(point)
        return gradients

    def scored(self) -> Scored:
        """Return the draws with their scores."""
        rows = (
            self.draws
            if self.discrete is None
            else np.concatenate([self.draws, self.discrete], axis=-1)
        )
        points = rows.reshape(-1, rows.shape[-1])
        scores = self.slopes(points).reshape(self.draws.shape)
        return Scored(
            Trace(self.draws, scores, self.names),
            lambda index: self.values(points[index]),
            self.versions,
        )


def check_agreement(where: str, tree: "xarray.DataTree", scored: Scored) -> None:
    """Refuse a log density other than the one that the sampler recorded in ``sample_stats.lp`` or
    ``logp``.

    The two may differ by a constant, and by the sign, which a warning tells. At up to 200 draws the
    range of the difference must stay below a hundredth of the recorded standard deviation, or of
    one, beyond rounding in the recorded precision and to the digits of a text file. Draws at which
    the density is not finite have scores that are not, and are left to the gate. See `check_slopes`
    for the gradients.

    Parameters
    ----------
    where : the public function that the error message names.
    tree : the trace. Without a recorded log density nothing is tested.
    scored : its draws, in the same order, and the log density.

    Raises
    ------
    ScoreError : they differ by more than a constant.
    """
    for name, recorded in recorded_log_densities(tree, scored.trace):
        _compare(where, name, recorded, scored)


def check_slopes(where: str, tree: "xarray.DataTree", trace: Trace) -> None:
    """Refuse scores other than those that the trace has, by more than a hundredth of their size.

    Parameters
    ----------
    where : the public function that the error message names.
    tree : the trace. Without scores, or where its draws are in other coordinates, nothing is
        tested.
    trace : its draws, in the same order, with the scores of a model.

    Raises
    ------
    ScoreError : they differ, as those of another model, other data or another prior.
    """
    stats = tree.children.get(GROUP)
    if stats is None or not {DRAWS, SCORES} <= set(stats.data_vars):
        return
    stored = read_trace(tree, weighted=True)
    # Another parameterisation has other gradients of one density, and says nothing about the model.
    if stored.draws.shape != trace.draws.shape:
        return
    if np.abs(stored.draws - trace.draws).max() > _SAME_DRAWS * trace.draws.std():
        return
    finding = gradient_difference(np.asarray(stored.scores), trace.scores)
    if finding > _SHARE:
        raise ScoreError(
            fault(
                where,
                "a model whose gradients are those that the trace has",
                f"gradients that differ by {finding:.1%} of their size",
                "Pass the model, the prior and the data that were sampled; of that with its "
                "discrete sites summed out attach_scores(tree, model) first. "
                "allow_bad_scores=True overrides.",
            )
        )


def gradient_difference(
    stored: Float[np.ndarray, "c n d"], model: Float[np.ndarray, "c n d"]
) -> float:
    """Return the root mean square of the difference over that of the model's, of draws where both
    are finite."""
    both = np.isfinite(stored).all(axis=-1) & np.isfinite(model).all(axis=-1)
    size = np.sqrt((model[both] ** 2).sum())
    return float(np.sqrt(((stored[both] - model[both]) ** 2).sum()) / size) if size > 0 else 0.0


def recorded_log_densities(
    tree: "xarray.DataTree", trace: Trace
) -> Iterator[tuple[str, Float[np.ndarray, "c n"]]]:
    """Yield the name and the values of each log density that the sampler recorded at the draws of
    its trace.

    Some values may be NaN or infinite: a density counts as recorded where at least half of them are
    finite, and differ: PyMC writes zeros where the last of its compound steps, as those of discrete
    variables, has none.
    """
    stats = tree.children.get(GROUP)
    for name in RECORDED:
        if (
            stats is None
            or name not in stats.data_vars
            or set(stats[name].dims) != {"chain", "draw"}
        ):
            continue
        recorded = stats[name].transpose("chain", "draw").values
        if (
            # Half: some values may be NaN, but a variable that was reserved and never written is
            # NaN throughout.
            recorded.shape == trace.draws.shape[:2]
            and recorded.dtype.kind == "f"
            and np.isfinite(recorded).mean() >= 0.5
            and np.ptp(recorded[np.isfinite(recorded)]) > 0
        ):
            # LAPACK ends there
            yield name, recorded.astype(np.float64) if recorded.dtype.itemsize > 8 else recorded


def recorded_log_density(tree: "xarray.DataTree", trace: Trace) -> Float[np.ndarray, "c n"] | None:
    """Return the first of `recorded_log_densities`, and None where there is none."""
    return next((values for _, values in recorded_log_densities(tree, trace)), None)


def _compare(where: str, name: str, recorded: np.ndarray, scored: Scored) -> None:
    known = np.flatnonzero(np.isfinite(recorded.reshape(-1)))
    flat = recorded.reshape(-1)[known]
    # Two hundred draws tell another model; a density of another package takes milliseconds each.
    chosen = np.unique(np.linspace(0, len(flat) - 1, _COMPARED).astype(int))
    values = scored.logdensity(known[chosen])
    values, known_values = (
        values[np.isfinite(values)],
        flat[chosen].astype(np.float64)[np.isfinite(values)],
    )
    if not values.size:
        return
    # A float32 lp of −1e6 is known to 0.06, and CmdStan wrote six digits until 2.36: what the
    # record cannot show is not held against the model.
    rounding = _ROUNDING * float(np.finfo(recorded.dtype).eps) * float(
        np.abs(flat).max()
    ) + unit_of_text(known_values)
    allowed = _SHARE * max(1.0, float(flat.std(dtype=np.float64))) + rounding
    difference = values - known_values
    low, high = float(difference.min()), float(difference.max())
    if high - low <= allowed:
        return
    # PyMC records minus the log density with nuts_sampler="numpyro".
    if np.ptp(values + known_values) <= allowed:
        warn(
            f"{where}: `{GROUP}.{name}` is minus the log density, as PyMC with "
            "nuts_sampler=numpyro and older ArviZ write it. It is read with the other sign."
        )
    else:
        raise ScoreError(
            fault(
                where,
                f"a log density that differs from the recorded `{GROUP}.{name}` by a constant",
                f"differences that vary by {high - low:.4g} about {low:.4g}",
                "Pass the model, the prior and the data that were sampled, log-Jacobian included."
                " allow_bad_scores=True overrides.",
            )
        )
