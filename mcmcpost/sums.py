"""Sums over traces that add: public `moments`, and the expectations that are estimated from them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

from mcmcpost.control import (
    MOMENTS,
    AbstractControlVariate,
    Auto,
    Estimate,
    Features,
    Layout,
    Options,
    PlainMean,
    Sample,
    Sums,
    TraceMoments,
    check_same_features,
    fingerprints_of,
    stored_moments,
    sums_of,
    with_worth,
)
from mcmcpost.control.problem import MIN_FOLDS, make_problem
from mcmcpost.control.trace_moments import TELLING
from mcmcpost.core.arguments import as_names, check_count, check_kind
from mcmcpost.core.arrays import LARGE, SAMPLED, Box, is_chunked, merged, slices_of
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64, units_of
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.sample import contradicted, pose, resolve_method, warn_of_contradiction, warn_of_not_finite
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
    method: str | AbstractControlVariate = "auto",
    *,
    like: TraceMoments | None = None,
    start: int = 0,
    allow_bad_scores: bool = False,
) -> TraceMoments:
    """Return the sums over a trace that `expectation` and `summary` need; those of several traces add.

    ``expectation(moments(one) + moments(other))`` is what the draws of both say, whatever their lengths, without the
    draws: of other chains, of other jobs, or of a sampler that went on. Draws in chunks of dask are summed where they
    are, by a tree of additions. The sums are those of linear control variates, with splines and steps for functions of
    one coordinate, whose fields and thresholds evenly spaced draws tell; kernels need draws.

    Parameters
    ----------
    tree, integrands, allow_bad_scores : as in `expectation`, without weights. Functions see one draw each.
    method : ``"auto"``, ``"structured"``, ``"zv2"``, … or such an object: whose linear families are summed.
    like : the sums of another trace of the same posterior: quantities, controls and units are taken from it. Without
        it two traces have their own, and only the controls that both can express can be added, which are all but a few
        products of coordinates, and those of functions of one coordinate.
    start : leave out so many draws of each chain, since other sums have them: of a sampler that went on.

    Returns
    -------
    TraceMoments : ``+``, `to_datatree` for `save_tree`, and `select`.

    Raises
    ------
    ScoreError : as `expectation`.
    ValueError, TypeError : a method that is not linear; input as for `expectation`; draws that are not finite; fewer
        than eight draws of each chain, or chains.

    Warns
    -----
    ScoreWarning, ConvergenceWarning, UserWarning : as `expectation`; of draws in chunks, some of them tell.
    """
    check_kind("moments", "like", like, (TraceMoments, None), "Pass what moments() returned.")
    draws, scores, _ = draws_and_scores(tree)
    chains, whole = draws.shape[:2]
    check_count("moments", "start", start, "It is a number of draws.", least=0, most=whole - 1)
    fingerprints = fingerprints_of(draws[:, :TELLING].values)
    if start:
        tree, integrands = _cut(tree, draw=slice(start, None)), _arrays_cut(integrands, slice(None), slice(start, None))
    layout = Layout.of(chains, whole - start, start)
    chunked = is_chunked(draws) and is_chunked(scores)
    seen = _evenly_spaced(tree, integrands, _step_of(draws.shape, layout.step)) if chunked else (tree, integrands)
    question = pose(*seen, method, Options(allow_bad_scores=allow_bad_scores), whole=tree)
    sample, own = question.sample, question.sample.trace
    assert isinstance(own, Trace)
    if like is not None:
        features = like.features
        check_same_features(features, sample.names, own.names)
    else:
        features = in_float64(_features)(sample, own, resolve_method(method), layout)
    given = (features, layout, fingerprints)
    if chunked:
        integrands = list(posterior_variables(tree).usable) if integrands is None else integrands
        sums = _over_chunks(tree, integrands, np.isin(question.every.names, own.names), given)
    else:
        sums = in_float64(sums_of)(*given, own.draws, own.scores, sample.values)
    warn_of_not_finite(features.names, sums.missing, chains * (whole - start))
    return TraceMoments(
        features=features,
        moments=sums.moments,
        low=sums.low,
        high=sums.high,
        missing=sums.missing,
        groups=(sums.chains,),
        verified=question.options.verified,
        bad_scores=question.options.bad_scores,
        controlled=allow_bad_scores or not question.check.failed,
        seconds=None if question.seconds is None else question.seconds * (1 - start / whole),
    )


def new_draws(tree: "xarray.DataTree", known: TraceMoments) -> tuple[int, int]:
    """Return how many draws of each chain of a trace are in sums already, and how many there are."""
    draws, _, _ = draws_and_scores(tree)
    return known.draws_of(fingerprints_of(draws[:, :TELLING].values)), draws.shape[1]


def as_moments(tree: Any) -> TraceMoments | None:
    """Return the sums that are given themselves, or in a tree; None where a trace is given."""
    if isinstance(tree, TraceMoments):
        return tree
    groups = getattr(tree, "children", None)
    return stored_moments(tree) if isinstance(groups, Mapping) and MOMENTS in groups else None


def expectation_of_moments(
    trace: TraceMoments, integrands: Any, method: str | AbstractControlVariate, options: Options
) -> Estimate:
    """Return the expectations of all quantities that were summed, or of those of some names or variables.

    Chains of several traces, which only now stand together, are looked at again.
    """
    import xarray

    if method != "auto" or options.standardize is not None or options.folds is not None:
        got = "`method`, `standardize` or `folds`"
        raise InputError("expectation", "sums alone", got, "Choose the method where they are summed: moments(tree).")
    if integrands is not None:
        names = [integrands] if isinstance(integrands, str) else as_names("expectation", "integrands", integrands)
        trace = trace.select(_places(trace.features.names, names))
    samples = [group.sample for group in trace.groups]
    length = min(sample.shape[1] for sample in samples)
    values = np.concatenate([sample[:, :length] for sample in samples])
    warn_of_convergence(check_convergence(xarray.DataTree(), [(trace.features.names, values)]))
    return _estimated(trace, options)


def is_summed(tree: "xarray.DataTree", method: str | AbstractControlVariate, options: Options) -> bool:
    """Return whether expectations come from sums: of large draws in chunks, by a method that needs no draw by itself.

    Weighted draws, and other folds or coordinates than those of the sums, need all of them.
    """
    from_sums = resolve_method(method).from_sums and options.standardize is None and options.folds is None
    draws, scores, _ = draws_and_scores(tree)
    return from_sums and is_chunked(draws) and is_chunked(scores) and not has_weights(tree)


def expectation_of_chunks(
    tree: "xarray.DataTree", integrands: Any, method: str | AbstractControlVariate, options: Options
) -> Estimate:
    """Return the expectations under draws in the chunks of dask, from sums over each; see `is_summed`."""
    return _estimated(moments(tree, integrands, method, allow_bad_scores=options.allow_bad_scores), options)


def _estimated(trace: TraceMoments, options: Options) -> Estimate:
    options = options._replace(bad_scores=trace.bad_scores, verified=trace.verified)
    estimate = in_float64(trace.estimate)(options)
    warn_of_contradiction(contradicted(estimate, known=trace.bad_scores))
    return estimate if trace.seconds is None else with_worth(estimate, trace.seconds)


def places_named(known: Sequence[str], name: str) -> list[int]:
    """Return where the quantity of a name stands, or the elements of the variable of that name."""
    return [j for j, one in enumerate(known) if name in (one, one.partition("[")[0])]


def _places(known: Sequence[str], names: Sequence[str]) -> Int[np.ndarray, " k"]:
    """Return where quantities stand that are named themselves, or by their variable."""
    places: list[int] = []
    for name in names:
        if not (own := places_named(known, name)):
            cure = f"{did_you_mean(name, known)}Others have to be summed: moments(tree, integrands)."
            raise InputError("expectation", "names of quantities that were summed", name, cure)
        places += own
    return np.array(places)


def _features(sample: Sample, trace: Trace, method: AbstractControlVariate, layout: Layout) -> Features:
    """Return what is summed of a trace: the families that its draws allow, in units of the evenly spaced draws."""
    some = slice(None, None, max(layout.step * trace.draws.shape[1] // layout.draws, 1))
    draws, scores, values = (np.asarray(part[:, some]) for part in (trace.draws, trace.scores, sample.values))
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    scale = 2.0 ** np.rint(np.log2(np.where(sd > 0, sd, 1.0)))
    values = np.where(np.isfinite(values), values, 0.0)
    units = units_of(values)
    spread = units * (values / units).std(axis=(0, 1))
    problem = make_problem(Trace(draws, scores, trace.names), values, coordinates=(mean, np.diag(scale)))
    total = layout.chains * layout.draws
    num_train = total - total // MIN_FOLDS
    families, labels = method.families(method.coordinates(problem), num_train) if method.from_sums else ([], [])
    if not families and not isinstance(method, PlainMean):
        cure = 'Use "auto", "structured", "zv1" to "zv3", or ZeroVariance(degree) without a penalty.'
        got = f"{method.label} with {total} draws"
        raise InputError("moments", "a linear method, and draws enough for its scores", got, cure)
    functions = method.functions(problem, sample.names) if isinstance(method, Auto) else []
    return Features(
        coordinates=trace.names,
        shift=mean,
        scale=scale,
        families=(*families, *(family for family, _ in functions)),
        labels=(*labels, *(label for _, label in functions)),
        names=sample.names,
        location=values.mean(axis=(0, 1)),
        unit=np.where(spread > 0, spread, 1.0),
        events=sample.events,
    )


def _cut(tree: "xarray.DataTree", **places: slice) -> "xarray.DataTree":
    """Return some draws of the groups that have draws; others are left out."""
    import xarray

    groups = {name: node.to_dataset() for name, node in tree.children.items() if name in ("posterior", GROUP)}
    parts = {name: group.isel(places, missing_dims="ignore") for name, group in groups.items()}
    found = xarray.DataTree.from_dict(parts)
    found.attrs = dict(tree.attrs)
    return found


def _arrays_cut(integrands: Any, chains: slice, draws: slice) -> Any:
    """Return integrands of some draws; names and functions as they are."""
    if isinstance(integrands, Mapping):
        return {name: _arrays_cut(entry, chains, draws) for name, entry in integrands.items()}
    if integrands is None or callable(integrands) or isinstance(integrands, str | list | tuple):
        return integrands
    return as_chain_draw("integrands", "f", integrands)[chains, draws]


def _step_of(shape: tuple[int, ...], most: int) -> int:
    """Return the step of the draws that the score gate and R-hat see: as many as they see of an array in memory."""
    step = most
    while step > 1 and 2 * np.prod(shape) <= step * SAMPLED:
        step //= 2
    return step


def _evenly_spaced(tree: "xarray.DataTree", integrands: Any, step: int) -> "tuple[xarray.DataTree, Any]":
    """Return every `step`-th draw, in memory."""
    every = slice(None, None, step)
    return _cut(tree, draw=every).load(), _arrays_cut(integrands, slice(None), every)


BRANCHES = 8
"""Sums that are added in one task."""


def _over_chunks(tree: "xarray.DataTree", integrands: Any, kept: Bool[np.ndarray, " d"], given: tuple) -> Sums:
    """Return the sums over draws in chunks of dask, which are added where they are: one of them comes back."""
    import dask

    draws, scores, _ = draws_and_scores(tree)
    chains, lengths = draws.data.chunks[:2]
    # As large as memory bears: each chunk is a task that the scheduler has to be told.
    lengths = merged(lengths, max(1, LARGE // (max(chains) * draws.shape[2])))
    dataset = tree["posterior"].to_dataset()
    if isinstance(integrands, list):
        dataset = dataset[list(dict.fromkeys(integrands))]
    # Blocks of arrays, and the dataset anew on the worker: of one to be cut, xarray took most of the client's time.
    frame = dataset.coords.to_dataset().drop_dims(["chain", "draw"], errors="ignore")
    stored = {str(name): _blocks_of(variable, chains, lengths) for name, variable in dataset.data_vars.items()}
    rows = [_blocks_of(variable, chains, lengths) for variable in (draws, scores)]
    facts = {str(name): (variable.dims, variable.attrs) for name, variable in dataset.data_vars.items()}
    summed = dask.delayed(_sums_of_chunk, pure=False)
    shared = dask.delayed((given, kept, frame, facts), traverse=False)
    parts = []
    for (i, own), (k, some) in itertools.product(enumerate(slices_of(chains)), enumerate(slices_of(lengths))):
        box = Box(own, some)
        variables = {name: block(i, k) for name, block in stored.items()}
        parts.append(summed(shared, box, *(block(i, k) for block in rows), variables, _arrays_cut(integrands, *box)))
    joined = dask.delayed(partial(reduce, add), pure=False)
    while len(parts) > 1:
        parts = [joined(list(batch)) for batch in itertools.batched(parts, BRANCHES)]
    return parts[0].compute()


def _blocks_of(
    variable: "xarray.DataArray", chains: Sequence[int], lengths: Sequence[int]
) -> Callable[[int, int], Any]:
    """Return a function to the values of a variable in a block of chains and draws: a task of dask, or an array."""
    sizes = {"chain": tuple(chains), "draw": tuple(lengths)}
    if not hasattr(variable.data, "to_delayed"):
        places = {dim: slices_of(own) for dim, own in sizes.items()}
        held = variable.variable  # a constant has neither dim
        return lambda i, k: held.isel(chain=places["chain"][i], draw=places["draw"][k], missing_dims="ignore").values
    blocks = variable.data.rechunk(tuple(sizes.get(str(dim), -1) for dim in variable.dims)).to_delayed()
    return lambda i, k: blocks[tuple({"chain": i, "draw": k}.get(str(dim), 0) for dim in variable.dims)]


@in_float64
def _sums_of_chunk(
    shared: tuple, box: Box, draws: np.ndarray, scores: np.ndarray, variables: dict[str, np.ndarray], integrands: Any
) -> Sums:
    import xarray

    (features, layout, fingerprints), kept, frame, facts = shared
    piece = frame.assign({name: (dims, variables[name], attrs) for name, (dims, attrs) in facts.items()})
    values = integrand_values(xarray.DataTree.from_dict({"posterior": piece}), integrands).values
    place = (box.chains.start, box.draws.start)
    return sums_of(features, layout, fingerprints, draws[..., kept], scores[..., kept], values, place)
