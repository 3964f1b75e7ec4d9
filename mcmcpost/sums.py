"""Sums over traces that add: public `moments`, and the expectations that are estimated from
them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost import control
from mcmcpost.control.derived import Kind, Smooth, SpreadTerms, derived_of_sums
from mcmcpost.control.estimate import rescaled, side_by_side
from mcmcpost.control.features.families import AbstractFamily
from mcmcpost.control.features.quantity import FunctionsOf
from mcmcpost.control.features.summed import TELLING, Transform
from mcmcpost.control.functions import Served
from mcmcpost.control.problem import MIN_FOLDS, Problem, make_problem
from mcmcpost.core.arguments import MOMENTS, as_names, check_count, check_kind
from mcmcpost.core.arrays import LARGE, SAMPLED, Box, is_chunked, merged, piece_size, slices_of
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64, units_of
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.sample import (
    METHODS,
    Question,
    contradicted,
    make_question,
    resolve_method,
    warn_of_contradiction,
    warn_of_not_finite,
    warn_of_parts,
)
from mcmcpost.trace import Trace
from mcmcpost.trees import (
    check_convergence,
    draws_and_scores,
    integrand_values,
    posterior_variables,
    warn_of_convergence,
)
from mcmcpost.trees.convention import GROUP, as_chain_draw, has_weights

if TYPE_CHECKING:
    import xarray


def moments(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    like: "control.TraceMoments | xarray.DataTree | None" = None,
    start: int = 0,
    allow_bad_scores: bool = False,
) -> control.TraceMoments:
    """Return the sums over a trace that `expectation` and `summary` need; those of several traces
    add.

    ``expectation(moments(one) + moments(other))`` is what the draws of both say, whatever their
    lengths, without the draws: of other chains, of other jobs, or of a sampler that went on. Draws
    in chunks of dask are summed where they are, by a tree of additions. The sums are those of
    linear control variates, with splines and steps for functions of one coordinate, whose fields
    and thresholds evenly spaced draws tell; kernels need draws.

    Parameters
    ----------
    tree, integrands, allow_bad_scores : as in `expectation`, without weights. Functions see one
        draw each. A tree of sums that were saved gives these, and takes nothing beside it.
    method : ``"auto"``, ``"structured"``, ``"zv2"``, … or such an object: whose linear families are
        summed.
    like : the sums of another trace of the same posterior, or a tree that has them: controls and
        units are taken from it, and without `integrands` the quantities, which then have to be
        variables. Without `like` two traces have their own, and only the controls that both can
        express can be added, which are all but a few products of coordinates, and those of
        functions of one coordinate.
    start : leave out so many draws of each chain, since other sums have them: of a sampler that
        went on.

    Returns
    -------
    TraceMoments : ``+``, `to_datatree` for `save_tree`, and `select`.

    Raises
    ------
    ScoreError : as `expectation`.
    ValueError, TypeError : a method that is not linear; input as for `expectation`; draws that are
        not finite; fewer than eight draws of each chain, or chains.

    Warns
    -----
    ScoreWarning, ConvergenceWarning, UserWarning : as `expectation`; of draws in chunks, some of
        them tell.
    """
    known, model = as_moments(tree), None if like is None else as_moments(like)
    if known is not None:
        if integrands is not None or like is not None or start:
            cure = "Leave out integrands, like and start, or pass the trace."
            raise InputError("moments", "sums alone, or a trace", "sums that were made", cure)
        return known
    if model is None:
        cure = "Pass what moments() returned, or a tree that has it."
        check_kind("moments", "like", like, (control.TraceMoments, None), cure)
    draws, scores, _ = draws_and_scores(tree)
    chains, whole = draws.shape[:2]
    check_count("moments", "start", start, "It is a number of draws.", least=0, most=whole - 1)
    options = control.Options(allow_bad_scores=allow_bad_scores)
    if model is not None and integrands is None:
        integrands = _variables_like(tree, model.features.names)
    # Smaller arrays in chunks are read whole: tasks would cost more than sums.
    if is_chunked(draws) and is_chunked(scores):
        chunked = InChunks.of(tree, integrands, method, options, start)
        features = chunked.features(resolve_method(method), model)
        return chunked.moments([(features, None)])[0]
    layout, fingerprints = (
        control.Layout.of(chains, whole - start, start),
        control.fingerprints_of(draws[:, :TELLING].values),
    )
    if start:
        tree, integrands = (
            _cut(tree, draw=slice(start, None)),
            _arrays_cut(integrands, slice(None), slice(start, None)),
        )
    question = make_question(tree, integrands, method, options)
    features = _features(question, resolve_method(method), layout, model)
    trace = question.sample.trace
    sums = in_float64(control.sums_of)(
        features, layout, fingerprints, trace.draws, trace.scores, question.sample.values
    )
    return _with_facts(features, sums, question, layout)


def _variables_like(tree: "xarray.DataTree", names: Sequence[str]) -> list[str]:
    """Return the variables of a tree of which these are the names or those of elements."""
    known = posterior_variables(tree).usable
    variables = {name: name if name in known else name.partition("[")[0] for name in names}
    # Sums do not have the functions that made them.
    if lacking := [name for name, variable in variables.items() if variable not in known]:
        cure = (
            "Pass the integrands again: moments(tree, integrands, like=like), on the command line "
            "--expect."
        )
        expected = "the quantities of `like` among the variables"
        raise InputError("moments", expected, f"none named {', '.join(lacking)}", cure)
    return list(dict.fromkeys(variables.values()))


def _with_facts(
    features: control.Features, sums: control.Sums, question: Question, layout: control.Layout
) -> control.TraceMoments:
    """Return sums with what is known of their trace."""
    seconds, draws = question.seconds, layout.draws
    return control.TraceMoments(
        features=features,
        moments=sums.moments,
        low=sums.low,
        high=sums.high,
        missing=sums.missing,
        passages=sums.passages,
        groups=(sums.chains,),
        verified=question.options.verified,
        bad_scores=question.options.bad_scores,
        controlled=not (question.check.failed and isinstance(question.method, control.PlainMean)),
        seconds=None if seconds is None else seconds * draws / (draws + layout.start),
    )


def new_draws(tree: "xarray.DataTree", known: control.TraceMoments) -> tuple[int, int]:
    """Return how many draws of each chain of a trace are in sums already, and how many there
    are."""
    draws, _, _ = draws_and_scores(tree)
    return known.draws_of(control.fingerprints_of(draws[:, :TELLING].values)), draws.shape[1]


def as_moments(tree: Any) -> control.TraceMoments | None:
    """Return the sums that are given themselves, or in a tree; None where a trace is given."""
    if isinstance(tree, control.TraceMoments):
        return tree
    groups = getattr(tree, "children", None)
    return (
        control.stored_moments(tree) if isinstance(groups, Mapping) and MOMENTS in groups else None
    )


def expectation_of_moments(
    trace: control.TraceMoments,
    integrands: Any,
    method: str | control.AbstractControlVariate,
    options: control.Options,
) -> control.Estimate:
    """Return the expectations of all quantities that were summed, or of those of some names or
    variables.

    Chains of several traces, which only now stand together, are looked at again.
    """
    import xarray

    # What was summed can only be estimated in the one way for which it was.
    if method != "auto" or options.standardize is not None or options.folds is not None:
        got = "`method`, `standardize` or `folds`"
        raise InputError(
            "expectation",
            "sums alone",
            got,
            "Choose the method where they are summed: moments(tree).",
        )
    if integrands is not None:
        names = (
            [integrands]
            if isinstance(integrands, str)
            else as_names("expectation", "integrands", integrands)
        )
        trace = trace.select(_places(trace.features.names, names))
    samples = [group.sample for group in trace.groups]
    # R-hat wants chains of one length: the shortest of those that are kept.
    length = min(sample.shape[1] for sample in samples)
    values = np.concatenate([sample[:, :length] for sample in samples])
    warn_of_convergence(check_convergence(xarray.DataTree(), [(trace.features.names, values)]))
    return _estimated(trace, options)


def is_summed(
    tree: "xarray.DataTree", method: str | control.AbstractControlVariate, options: control.Options
) -> bool:
    """Return whether expectations come from sums: of large draws in chunks, by a method that needs
    no draw by itself.

    Weighted draws, and other folds or coordinates than those of the sums, need all of them.
    """
    from_sums = (
        resolve_method(method).from_sums and options.standardize is None and options.folds is None
    )
    draws, scores, _ = draws_and_scores(tree)
    return from_sums and is_chunked(draws) and is_chunked(scores) and not has_weights(tree)


def _estimated(trace: control.TraceMoments, options: control.Options) -> control.Estimate:
    options = options._replace(bad_scores=trace.bad_scores, verified=trace.verified)
    estimate = in_float64(trace.estimate)(options)
    warn_of_contradiction(contradicted(estimate, known=trace.bad_scores))
    warn_of_parts("The sums", estimate.info.get("apart", ()))
    return estimate if trace.seconds is None else control.with_worth(estimate, trace.seconds)


def places_named(known: Sequence[str], name: str) -> list[int]:
    """Return where the quantity of a name stands, or the elements of the variable of that name."""
    return [j for j, one in enumerate(known) if name in (one, one.partition("[")[0])]


def _places(known: Sequence[str], names: Sequence[str]) -> Int[np.ndarray, " k"]:
    """Return where quantities stand that are named themselves, or by their variable."""
    places: list[int] = []
    for name in names:
        if not (matches := places_named(known, name)):
            cure = (
                f"{did_you_mean(name, known)}Others have to be summed: moments(tree, integrands)."
            )
            raise InputError("expectation", "names of quantities that were summed", name, cure)
        places += matches
    return np.array(places)


def _features(
    question: Question,
    method: control.AbstractControlVariate,
    layout: control.Layout,
    like: control.TraceMoments | None,
) -> control.Features:
    """Return what is summed of a trace: that of other sums, or the families that its draws allow,
    in their units."""
    sample, trace = question.sample, question.sample.trace
    if like is not None:
        control.check_same_features(
            like.features, sample.names, trace.names, ("`like`", "the trace")
        )
        return like.features
    return in_float64(_of_trace)(sample, method, layout)


def _of_trace(
    sample: control.Sample, method: control.AbstractControlVariate, layout: control.Layout
) -> control.Features:
    trace = sample.trace
    spaced = slice(None, None, max(layout.step * trace.draws.shape[1] // layout.draws, 1))
    problem, values = problem_of(trace, sample.values, spaced)
    total = layout.chains * layout.draws
    families, labels = (
        method.families(method.coordinates(problem), _train(total))
        if method.from_sums
        else ([], [])
    )
    if not families and not isinstance(method, control.PlainMean):
        linear = ", ".join(f'"{name}"' for name, known in METHODS.items() if known.from_sums)
        cure = f"Use one of {linear}, or ZeroVariance(degree) without a penalty."
        got = f"{method.label} with {total} draws"
        raise InputError("moments", "a linear method, and draws enough for its scores", got, cure)
    functions = method.functions(problem, sample.names) if isinstance(method, control.Auto) else []
    named = [*zip(families, labels, strict=True), *functions]
    return features_in_units(problem, named, sample.names, values, sample.events)


def problem_of(
    trace: Trace, values: Float[np.ndarray, "c n p"], rows: slice
) -> tuple[Problem, Float[np.ndarray, "c m p"]]:
    """Return the problem of some of the draws, in units that other traces have too, and the values
    there, finite."""
    draws, scores, values = (
        np.asarray(array[:, rows]) for array in (trace.draws, trace.scores, values)
    )
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    # Powers of two: those of two traces are the same, or twice as large, and rounding does not
    # enter.
    scale = 2.0 ** np.rint(np.log2(np.where(sd > 0, sd, 1.0)))
    values = np.where(np.isfinite(values), values, 0.0)
    return make_problem(
        Trace(draws, scores, trace.names), values, coordinates=(mean, np.diag(scale))
    ), values


def _train(total: int) -> int:
    """Return the draws of a fit without one of the folds."""
    return total - total // MIN_FOLDS


def features_in_units(
    problem: Problem,
    named: Sequence[tuple[AbstractFamily, str]],
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    events: Bool[np.ndarray, " p"],
) -> control.Features:
    """Return features of quantities with these values at the draws of a problem, and of its
    coordinates."""
    units = units_of(values)
    spread = units * (values / units).std(axis=(0, 1))
    return control.Features(
        coordinates=problem.names,
        shift=problem.shift,
        scale=np.diagonal(problem.lower).copy(),
        families=tuple(family for family, _ in named),
        labels=tuple(label for _, label in named),
        names=names,
        location=values.mean(axis=(0, 1)),
        unit=np.where(spread > 0, spread, 1.0),
        events=events,
    )


def _cut(tree: "xarray.DataTree", **places: slice) -> "xarray.DataTree":
    """Return some draws of the groups that have draws; others are left out."""
    import xarray

    groups = {
        name: node.to_dataset()
        for name, node in tree.children.items()
        if name in ("posterior", GROUP)
    }
    parts = {name: group.isel(places, missing_dims="ignore") for name, group in groups.items()}
    kept = xarray.DataTree.from_dict(parts)
    kept.attrs = dict(tree.attrs)
    return kept


def _arrays_cut(integrands: Any, chains: slice, draws: slice) -> Any:
    """Return integrands of some draws; names and functions as they are."""
    if isinstance(integrands, Mapping):
        return {name: _arrays_cut(entry, chains, draws) for name, entry in integrands.items()}
    if integrands is None or callable(integrands) or isinstance(integrands, str | list | tuple):
        return integrands
    return as_chain_draw("integrands", "f", integrands)[chains, draws]


def _step_of(shape: tuple[int, ...], most: int) -> int:
    """Return the step of the draws that the score gate and R-hat see: as many as they see of an
    array in memory."""
    # A power of two, as that of the draws that are kept, which are among these.
    step = most
    while step > 1 and 2 * np.prod(shape) <= step * SAMPLED:
        step //= 2
    return step


def _evenly_spaced(
    tree: "xarray.DataTree", integrands: Any, step: int
) -> "tuple[xarray.DataTree, Any]":
    """Return every `step`-th draw, in memory."""
    every = slice(None, None, step)
    return _cut(tree, draw=every).load(), _arrays_cut(integrands, slice(None), every)


BRANCHES = 8
"""Sums that are added in one task."""


class InChunks(NamedTuple):
    """A trace whose draws are in chunks of dask, and what is asked of it.

    tree, integrands : those of all draws, variables by name. layout, fingerprints : of their
        chains.
    question : of evenly spaced draws, in memory, which stand for all.
    """

    tree: "xarray.DataTree"
    integrands: Any
    layout: control.Layout
    fingerprints: Int[np.ndarray, " c"]
    question: Question

    @classmethod
    def of(
        cls,
        tree: "xarray.DataTree",
        integrands: Any,
        method: str | control.AbstractControlVariate,
        options: control.Options,
        start: int = 0,
    ) -> "InChunks":
        """Return it without the first draws of each chain."""
        draws, _, _ = draws_and_scores(tree)
        chains, whole = draws.shape[:2]
        layout, fingerprints = (
            control.Layout.of(chains, whole - start, start),
            control.fingerprints_of(draws[:, :TELLING].values),
        )
        if start:
            later = slice(start, None)
            tree, integrands = _cut(tree, draw=later), _arrays_cut(integrands, slice(None), later)
        seen = _evenly_spaced(tree, integrands, _step_of(draws.shape, layout.step))
        question = make_question(*seen, method, options, whole=tree)
        integrands = list(posterior_variables(tree).usable) if integrands is None else integrands
        return cls(tree, integrands, layout, fingerprints, question)

    def features(
        self, method: control.AbstractControlVariate, like: control.TraceMoments | None = None
    ) -> control.Features:
        """Return what is summed for expectations; like : sums of another trace that has the
        same."""
        return _features(self.question, method, self.layout, like)

    def thinned(self, most: int) -> "InChunks":
        """Return the same with at most so many draws in memory."""
        sample, step = self.question.sample, 1
        while sample.values[:, ::step, 0].size > most:
            step *= 2
        draws, scores, names = sample.trace[:3]
        trace = Trace(draws[:, ::step], scores[:, ::step], names)
        few = control.Sample.of(trace, sample.names, sample.values[:, ::step], sample.events)
        return self._replace(question=self.question._replace(sample=few))

    def moments(
        self, parts: "Sequence[tuple[control.Features, Transform | None]]"
    ) -> list[control.TraceMoments]:
        """Return sums over all draws, added where the chunks are: one pass makes all of them.

        parts : what is summed, and how its quantities come from those of the question; None where
            they are the same.
        """
        moves = np.isin(self.question.every.names, self.question.sample.trace.names)
        every = _over_chunks(
            self.tree, self.integrands, moves, (parts, self.layout, self.fingerprints)
        )
        size = self.layout.chains * self.layout.draws
        for (features, transform), sums in zip(parts, every, strict=True):
            if transform is None:
                warn_of_not_finite(features.names, sums.missing, size)
        pairs = zip(parts, every, strict=True)
        return [
            _with_facts(features, sums, self.question, self.layout) for (features, _), sums in pairs
        ]

    def served(self) -> dict[int, Served]:
        """Return what is known of the functions of some quantities of the question, by their
        places."""
        sample, method = self.question.sample, self.question.method
        # of what is constant here nothing tells of what it is a function
        if not len(sample.columns):
            return {}
        problem, _ = problem_of(sample.trace, sample.fitted_values, slice(None))
        return {
            int(sample.columns[function.column]): function
            for function in in_float64(Served.of)(problem, method)
        }

    def probabilities(
        self,
        of: Int[np.ndarray, " q"],
        lower: Float[np.ndarray, " q"],
        upper: Float[np.ndarray, " q"],
        known: Mapping[int, Served],
        plain: Bool[np.ndarray, " q"] | None = None,
    ) -> control.Estimate:
        """Return the probabilities that quantities are above one number and at most another.

        of : the quantity of each event, among those of the question. known : as `served`.
        plain : those that are to have no control.
        """
        method, options, sample = self.question.method, self.question.options, self.question.sample
        between, plain = (
            Between(of, lower, upper),
            np.zeros(len(of), bool) if plain is None else plain,
        )
        total = self.layout.chains * self.layout.draws
        # those of quantities would be the same for several events
        names = tuple(map(str, range(len(of))))
        inside = between(sample.values, *sample.trace[:2])
        problem, _ = problem_of(sample.trace, inside, slice(None))
        functions: list[tuple[FunctionsOf, str]] = []
        for j, function in known.items():
            events = np.flatnonzero((of == j) & ~plain)
            steps = function.standard(
                np.stack([lower[events], upper[events]], axis=1) / sample.units[j]
            )
            functions += function.families([names[i] for i in events], steps)
        served = {name for family, _ in functions for name in family.names}
        linear = zip(*method.families(method.coordinates(problem), _train(total)), strict=True)
        # Events of functions of a quantity need no linear families beside: these would be most of
        # the products.
        kind = np.where(plain, 2, np.where([name in served for name in names], 0, 1))
        parts: list[tuple[control.Features, Transform]] = []
        by_kind: list[list[tuple[AbstractFamily, str]]] = [[*functions], list(linear), []]
        for number, named in enumerate(by_kind):
            kept = kind == number
            if kept.any():
                of_kind = tuple(name for name, chosen in zip(names, kept, strict=True) if chosen)
                features = features_in_units(
                    problem, named, of_kind, inside[..., kept], np.ones(len(of_kind), bool)
                )
                parts.append((features, Between(*(column[kept] for column in between))))
        every = self.moments(parts)
        estimate = side_by_side([in_float64(sums.estimate)(options) for sums in every], None)
        missing = np.zeros(len(sample.names))
        for sums in every:
            events = of[[int(name) for name in sums.features.names]]
            np.maximum.at(missing, events, sums.missing)
        warn_of_not_finite(sample.names, missing, total)
        estimate = estimate.select(np.argsort(np.argsort(kind, kind="stable")))
        return estimate._replace(names=tuple(sample.names[j] for j in of))

    def expectation(self) -> control.Estimate:
        """Return the expectations of what the question is about."""
        return _estimated(
            self.moments([(self.features(self.question.method), None)])[0], self.question.options
        )

    def derived(self, functions: Sequence[Smooth]) -> control.Estimate:
        """Return smooth functions of the expectations of what the question is about."""
        sums, options = (
            self.moments([(self.features(self.question.method), None)])[0],
            self.question.options,
        )
        return in_float64(derived_of_sums)(sums, functions, options)

    def spreads(self, kind: Kind) -> control.Estimate:
        """Return variances, standard deviations, covariances or correlations of what the question
        is about."""
        sample = self.question.sample
        standard = Standardised.of(sample, SpreadTerms.of(kind, sample.names))
        # Their own values at the evenly spaced draws tell units, splines and whether they vary.
        values = standard(sample.values, *sample.trace[:2])
        products = control.Sample.of(
            sample.trace, standard.pairs.names, values, states=sample.states
        )
        # A product is no event, whatever its values.
        question = self.question._replace(
            sample=products._replace(events=np.zeros(len(products.names), bool))
        )
        features = _features(question, question.method, self.layout, None)
        sums = self.moments([(features, standard)])[0]
        warn_of_not_finite(
            sample.names, sums.missing[: len(sample.names)], self.layout.chains * self.layout.draws
        )
        estimate = in_float64(derived_of_sums)(sums, [standard.pairs.smooth], question.options)
        return rescaled(estimate, standard.pairs.unit(kind, standard.sd))


class Standardised(NamedTuple):
    """Quantities about a centre, in units of a standard deviation, and products of them."""

    pairs: SpreadTerms
    centre: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]

    @classmethod
    def of(cls, sample: control.Sample, pairs: SpreadTerms) -> "Standardised":
        """Return them by the moments of a sample."""
        scaled = sample.scaled
        with np.errstate(invalid="ignore"):
            centre, sd = (
                scaled.mean(axis=(0, 1)) * sample.units,
                scaled.std(axis=(0, 1)) * sample.units,
            )
        known = np.isfinite(centre)
        return cls(pairs, np.where(known, centre, 0.0), np.where(sample.varying, sd, 1.0))

    def __call__(
        self, values: Float[np.ndarray, "*b p"], draws: np.ndarray, scores: np.ndarray
    ) -> Float[np.ndarray, "*b q"]:
        del draws, scores
        return self.pairs.products((values - self.centre) / self.sd)


class Between(NamedTuple):
    """Whether some of the quantities are above one number and at most another; NaN where one is not
    finite."""

    column: Int[np.ndarray, " q"]
    lower: Float[np.ndarray, " q"]
    upper: Float[np.ndarray, " q"]

    def __call__(
        self, values: Float[np.ndarray, "*b p"], draws: np.ndarray, scores: np.ndarray
    ) -> Float[np.ndarray, "*b q"]:
        del draws, scores
        quantity = values[..., self.column]
        return np.where(
            np.isfinite(quantity), (quantity > self.lower) & (quantity <= self.upper), np.nan
        )


def _over_chunks(
    tree: "xarray.DataTree", integrands: Any, kept: Bool[np.ndarray, " d"], given: tuple[Any, ...]
) -> list[control.Sums]:
    """Return sums over draws in chunks of dask, which are added where they are: one of each comes
    back."""
    import dask
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    draws, scores, _ = draws_and_scores(tree)
    chains, lengths = draws.data.chunks[:2]
    most = piece_size(draws.size, LARGE) // (max(chains) * draws.shape[2])
    lengths = merged(lengths, max(1, most))
    dataset = tree["posterior"].to_dataset()
    if isinstance(integrands, list):
        dataset = dataset[list(dict.fromkeys(integrands))]
    # Blocks of arrays, and the dataset anew on the worker: of one to be cut, xarray took most of
    # the client's time.
    frame = dataset.coords.to_dataset().drop_dims(["chain", "draw"], errors="ignore")
    facts = {
        str(name): (variable.dims, variable.attrs) for name, variable in dataset.data_vars.items()
    }
    arrays, blocks_at = _blocks_of([draws, scores, *dataset.data_vars.values()], chains, lengths)
    # One object that workers get once, not with every task; its parts are no tasks, and dask need
    # not look for any.
    shared = dask.delayed((given, kept, frame, facts), traverse=False)
    # A layer of the graph made at once: of `delayed` calls each would look through all before it.
    name = f"sums-{uuid4().hex}"
    tasks: dict[Any, tuple[Any, ...]] = {}
    # A box of chains and draws each, whose sums know where they belong.
    for (i, of_chains), (k, of_draws) in itertools.product(
        enumerate(slices_of(chains)), enumerate(slices_of(lengths))
    ):
        box = Box(of_chains, of_draws)
        summed = partial(_sums_of_chunk, box, _arrays_cut(integrands, *box))
        tasks[name, len(tasks)] = (summed, shared.key, blocks_at(i, k))
    parts = list(tasks)
    while len(parts) > 1:
        first = len(tasks)
        for batch in itertools.batched(parts, BRANCHES):
            tasks[name, len(tasks)] = (_added, list(batch))
        parts = list(tasks)[first:]
    graph = HighLevelGraph.from_collections(name, tasks, [shared, *arrays])
    return Delayed(parts[0], graph, layer=name).compute()


def _added(parts: Sequence[list[control.Sums]]) -> list[control.Sums]:
    """Return the sums over some chunks; each part has those of all quantities over one."""
    return [reduce(add, sums) for sums in zip(*parts, strict=True)]


def _blocks_of(
    variables: "Sequence[xarray.DataArray]", chains: Sequence[int], lengths: Sequence[int]
) -> tuple[Sequence[Any], Callable[[int, int], list[Any]]]:
    """Return the dask arrays among variables, in blocks of chains and draws of these sizes, and a
    function to the block of each variable at a place: the key of a task, or an array."""
    import dask

    sizes = {"chain": tuple(chains), "draw": tuple(lengths)}
    places = {dim: slices_of(chunks) for dim, chunks in sizes.items()}
    # Reading, joining and casting become one task.
    arrays = dask.optimize(
        *(
            variable.data.rechunk(tuple(sizes.get(str(dim), -1) for dim in variable.dims))
            for variable in variables
            if hasattr(variable.data, "to_delayed")
        )
    )

    def at(i: int, k: int) -> list[Any]:
        index = {"chain": i, "draw": k}
        cut = {dim: places[dim][number] for dim, number in index.items()}
        names = (array.name for array in arrays)
        return [
            (next(names), *(index.get(str(dim), 0) for dim in variable.dims))
            if hasattr(variable.data, "to_delayed")
            # A constant has neither dim.
            else variable.variable.isel(cut, missing_dims="ignore").values
            for variable in variables
        ]

    return arrays, at


@in_float64
def _sums_of_chunk(
    box: Box, integrands: Any, shared: tuple[Any, ...], blocks: list[np.ndarray]
) -> list[control.Sums]:
    import xarray

    draws, scores, *variables = blocks
    (parts, layout, fingerprints), kept, frame, facts = shared
    piece = frame.assign(
        {
            name: (dims, values, attrs)
            for (name, (dims, attrs)), values in zip(facts.items(), variables, strict=True)
        }
    )
    # Functions of a draw see one chunk of draws, as they see one of all in memory.
    values = integrand_values(xarray.DataTree.from_dict({"posterior": piece}), integrands).values
    place, states = (box.chains.start, box.draws.start), (draws[..., kept], scores[..., kept])
    return [
        control.sums_of(features, layout, fingerprints, *states, values, place, transform)
        for features, transform in parts
    ]
