"""Sampling until errors are small enough: chains that go on, batch by batch, until every controlled
error is."""

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from mcmcpost.control import AbstractControlVariate, Auto, Estimate, Options
from mcmcpost.core.arguments import (
    check_count,
    check_flags,
    check_function,
    check_key,
    check_kind,
    check_number,
)
from mcmcpost.core.errors import InputError, Status, warn
from mcmcpost.core.runtime import did_you_mean, significant
from mcmcpost.expectations import answer
from mcmcpost.sample import make_question
from mcmcpost.sums import places_named
from mcmcpost.trees import from_numpyro
from mcmcpost.trees.convention import DRAWS, GROUP
from mcmcpost.trees.numpyro_model import variables_of_program

if TYPE_CHECKING:
    import xarray
    from numpyro.infer import MCMC

UNKNOWN = (
    Status.HEAVY_TAIL,
    Status.UNDEFINED,
    Status.TOO_FEW_DRAWS,
    Status.BAD_SCORES,
    Status.UNSEEN,
)
"""Statuses whose error may be far too small, or is not known: more draws may show it."""

BATCH = 250
"""Draws of each chain between looks, at least."""

MAX_DRAWS = 100_000
"""Draws of all chains together, at most."""

AHEAD = 1.1
"""Draws asked for over those that the present errors call for, so that chance does not need one
batch more."""


METHOD = Auto(kernel=False)
"""What the errors are judged by: kernels, which are dear, would be fitted at every look."""


class Goal(NamedTuple):
    """What is sampled for: the errors, whether in posterior standard deviations, and the draws that
    there may be."""

    mcse: float | Mapping[str, float]
    relative: bool
    max_draws: int


def check_goal(where: str, goal: Goal, first: int) -> None:
    """Refuse errors that are not positive, and fewer draws than the `first` batch has."""
    check_count(where, "max_draws", goal.max_draws, "It is the number of all draws.", least=first)
    check_kind(
        where, "mcse", goal.mcse, (float, int, Mapping), "Pass a number, or one for each name."
    )
    # No aim at all would be reached by the first batch.
    if goal.mcse == {}:
        raise InputError(
            where, "`mcse` of at least one quantity", "none", "Name one, or pass a number for all."
        )
    for name, value in (
        goal.mcse.items() if isinstance(goal.mcse, Mapping) else [("mcse", goal.mcse)]
    ):
        check_number(where, name, value, "It is an error to be reached.")


class SampledUntil(NamedTuple):
    """What `sample_until` returns.

    tree : all draws after warm-up, with scores. estimate : the expectations from them.
    reached : whether every error that was asked for is small enough.
    """

    tree: "xarray.DataTree"
    estimate: Estimate
    reached: bool


def sample_until(
    model: Any,
    *args: Any,
    mcse: float | Mapping[str, float],
    key: jax.Array,
    relative: bool = False,
    integrands: Any = None,
    method: str | AbstractControlVariate = METHOD,
    num_chains: int = 4,
    num_warmup: int = 1_000,
    batch: int = BATCH,
    max_draws: int = MAX_DRAWS,
    progress: bool = True,
    model_kwargs: Mapping[str, Any] | None = None,
) -> SampledUntil:
    """Sample a model until every controlled error is below what was asked.

    Chains go on where they were, after one warm-up. After each look at the errors the next batch is
    as long as they call for, at most as long as all before: looks are few, since each may stop a
    run whose errors are small by luck (``benchmarks.control.stopping`` measures the bias). Chains
    that have not converged, and quantities with heavy tails, are not done.

    Parameters
    ----------
    model : a NumPyro program, sampled by NUTS; a `numpyro.infer.MCMC`, with kernel, warm-up, chains
        and, as its `num_samples`, batch of its own; or what ``nutpie.compile_pymc_model`` or
        ``compile_stan_model`` return.
    args, model_kwargs : of a NumPyro program.
    mcse : the error that every expectation shall have at most; or a mapping from names of
        quantities, or of variables, to one each: others are then estimated, and not waited for.
    relative : errors are in posterior standard deviations of the quantities.
    integrands, method : as in `expectation`.
    num_chains, num_warmup : chains, and draws of each to adapt on.
    batch : draws of each chain between looks, at least.
    max_draws : of all chains together. A warning says if they do not suffice.
    progress : show the worst quantity, and its error, on a terminal.

    Returns
    -------
    SampledUntil : an interrupt (Ctrl-C) returns what there is, after the first batch.

    Raises
    ------
    ValueError, TypeError : an error that is not positive; names of no quantity; as `from_numpyro`
        and `expectation`.

    Warns
    -----
    UserWarning : the draws do not suffice, or an interrupt. ScoreWarning, ConvergenceWarning : as
        `expectation`.
    """
    from numpyro.infer import MCMC, NUTS

    where = "sample_until"
    check_flags(where, relative=relative, progress=progress)
    check_key(where, key)
    for name, count in (("num_chains", num_chains), ("num_warmup", num_warmup), ("batch", batch)):
        check_count(where, name, count, "It is a number of chains, or of draws of each.")
    # All that can be refused is refused before the warm-up.
    check_goal(where, Goal(mcse, relative, max_draws), num_chains * batch)
    sampler: AbstractContextManager[Draw]
    # By the module's name: nutpie need not be installed.
    if type(model).__module__.partition(".")[0] == "nutpie":
        sampler = _nutpie_batches(model, key, num_chains, num_warmup, batch, max_draws)
    else:
        settings = {"num_warmup": num_warmup, "num_samples": batch, "num_chains": num_chains}
        if not isinstance(model, MCMC):
            check_function(
                where,
                "model",
                model,
                None,
                "Pass a NumPyro program, an MCMC, or a model of nutpie.",
            )
            model = MCMC(NUTS(model), **settings, chain_method="vectorized", progress_bar=False)
        keywords = dict(model_kwargs or {})
        if model.sampler.model is not None:
            variables = variables_of_program(where, model.sampler.model, args, keywords)
            if integrands is None and isinstance(mcse, Mapping):
                _refuse_unknown(mcse, variables)
        sampler = nullcontext(numpyro_batches(model, key, args, keywords))
    with sampler as draw:
        return until(draw, integrands, method, mcse, relative, max_draws, progress=progress)


Draw = Callable[[int], Any]
"""Returns the tree of so many batches of draws more, of the same chains."""

FIELDS = ("z_grad", "potential_energy", "num_steps", "diverging")
"""What NumPyro keeps of each draw: scores, log density, and what ArviZ shows of the sampler."""


def numpyro_batches(
    mcmc: "MCMC",
    key: jax.Array,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Any = None,
    *,
    log_likelihood: bool = False,
) -> Draw:
    """Return the batches of a NumPyro sampler, each of its `num_samples`.

    start : of its chains. log_likelihood : as for `from_numpyro`.
    """
    batch, chains = mcmc.num_samples, mcmc.num_chains
    # What is traced leaves tracers in the sampler: in a copy, since it may be the caller's.
    traced = copy.copy(mcmc)
    traced.progress_bar = False

    # Chains go on where they ended: `post_warmup_state` makes NumPyro skip warm-up, and the key is
    # that of the state, so that batches are parts of one run. Within `jit`, since every run of
    # NumPyro compiles its loop anew: 7 s for eight schools, whose batch takes half a second.
    @jax.jit
    def go_on(state: Any) -> tuple[Any, Any]:
        traced.post_warmup_state = state
        traced.run(state.rng_key, *args, extra_fields=FIELDS, **kwargs)
        return traced._states, traced.last_state

    def first() -> None:
        """Warm up if that was not done, and draw a batch."""
        mcmc.post_warmup_state = state = mcmc.last_state
        together = chains == 1 or mcmc.chain_method == "vectorized"
        if state is None and together and mcmc.num_warmup % batch == 0:
            # In batches too, with the program that all others need: states know of adaptation.
            state = mcmc.sampler.init(
                key if chains == 1 else jax.random.split(key, chains),
                mcmc.num_warmup,
                start,
                model_args=args,
                model_kwargs=kwargs,
            )
            mcmc._args, mcmc._kwargs = args, kwargs
            for _ in range(mcmc.num_warmup // batch):
                _, state = go_on(state)
            mcmc._states, mcmc._last_state = go_on(state)
        else:
            rng_key = key if state is None else state.rng_key
            mcmc.run(rng_key, *args, extra_fields=FIELDS, init_params=start, **kwargs)

    begun = False

    def draw(number: int) -> "xarray.DataTree":
        nonlocal begun
        parts = []
        for _ in range(number):
            if begun:
                mcmc._states, mcmc._last_state = go_on(mcmc.last_state)
            else:
                first()
                begun = True
            parts.append(mcmc._states)
        mcmc._states = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        mcmc._states_flat = None
        return from_numpyro(mcmc, log_likelihood=log_likelihood)

    return draw


WAIT, LONGEST_WAIT = 0.05, 2.0
"""Seconds between looks at how far nutpie is. The draws that are used do not depend on them."""


@contextmanager
def _nutpie_batches(
    model: Any, key: jax.Array, num_chains: int, num_warmup: int, batch: int, max_draws: int
) -> Iterator[Draw]:
    """Give the batches of a sampler of nutpie, which rests while the errors are looked at, and is
    ended after it."""
    import nutpie

    # One run of all draws that there may be, which is paused and ended: nutpie has no way to go on
    # with a chain.
    sampler = nutpie.sample(
        model,
        draws=max(max_draws // num_chains, batch),
        tune=num_warmup,
        chains=num_chains,
        cores=num_chains,  # of fewer, a chain waits until others have all of their draws
        seed=int(jax.random.bits(key)) >> 1,
        save_warmup=False,
        progress_bar=False,
        blocking=False,
        store_gradient=True,
        store_unconstrained=True,
    )
    # A batch ends where every chain has it, whatever some have beyond: which draws are used does
    # not depend on the clock.
    done = 0

    def draw(number: int) -> "xarray.DataTree":
        nonlocal done
        sampler.resume()
        begin, done = done, done + number * batch
        with warnings.catch_warnings():
            # of fewer draws than chains ArviZ asks whether they are the chains
            warnings.simplefilter("ignore")
            wait, before = WAIT, 0
            while (have := _shortest(tree := sampler.inspect())) < done:
                threading.Event().wait(wait)
                wait, before = _next_wait(wait, have - before, done - have), have
        # Chains would run on while the errors are computed, and use the cores that this needs.
        sampler.pause()
        return tree.isel(draw=slice(begin, done), missing_dims="ignore")

    try:
        yield draw
    finally:
        sampler.cancel()


def _next_wait(wait: float, gained: int, missing: int) -> float:
    """Return the seconds until the next look, from the draws that the last wait brought and those
    still missing."""
    # A look copies all draws so far into a tree: every 0.05 s it would take the cores that the
    # chains need. In warm-up there is no pace yet, and waits double.
    factor = min(missing / gained, 2.0) if gained > 0 else 2.0
    return min(max(wait * factor, WAIT), LONGEST_WAIT)


def _shortest(tree: "xarray.DataTree") -> int:
    """Return how many draws every chain has; those of others are padded with NaN."""
    draws = tree.children[GROUP].to_dataset()[DRAWS].values
    return int(np.isfinite(draws).all(axis=-1).sum(axis=1).min()) if draws.size else 0


def until(
    draw: Draw,
    integrands: Any,
    method: str | AbstractControlVariate,
    mcse: float | Mapping[str, float],
    relative: bool,
    max_draws: int,
    *,
    progress: bool,
) -> SampledUntil:
    """Return what batches of draws give until the errors are small enough; see `sample_until`."""
    tree, done, wanted, farthest = None, 0, 1, NOTHING
    estimate: Estimate | None = None
    said: list[warnings.WarningMessage] = []
    with tqdm(
        total=100,
        disable=None if progress else True,
        unit="%",
        bar_format="{l_bar}{bar}| {elapsed}{postfix}",
    ) as bar:
        while True:
            try:
                # Few looks, since each is a chance to stop where errors look small by luck: over
                # 200 runs the bias was −0.5, 2.5 and 0.1 of its standard errors (docs/results,
                # stopping).
                more = draw(wanted - done)
                tree, done, estimate = more if tree is None else joined([tree, more]), wanted, None
                with warnings.catch_warnings(record=True) as said:
                    # Early looks warn of chains that are merely short.
                    # what the last look says of the chains is passed on
                    warnings.simplefilter("always")
                    farthest, estimate = look(tree, integrands, method, mcse, relative=relative)
            except KeyboardInterrupt:
                if tree is None:
                    raise
                warn(f"sample_until was interrupted: {_how_far(farthest)}.")
                break
            bar.set_postfix_str(_how_far(farthest))
            # Errors fall as one over the root of the draws: the share of the draws that is done is
            # the inverse square.
            # An aim of 1e-300 is 1e299 times away, whose square is no float.
            excess = min(farthest.excess, 1e9)
            bar.n = min(100, round(100 / max(excess, 1e-9) ** 2))
            bar.refresh()
            sizes = tree[GROUP].sizes
            # In batches, as `done`: of how many draws a batch has, the tree knows.
            most = max_draws * done // (sizes["chain"] * sizes["draw"])
            if farthest.excess <= 1.0 or most <= done:
                if farthest.excess > 1.0:
                    cure = "Raise max_draws, or ask for less."
                    warn(
                        f"sample_until: {max_draws:,} draws do not suffice, "
                        f"{_how_far(farthest)}. {cure}"
                    )
                break
            # At most as many again: an early error, of few draws, may be far too large.
            needed = math.ceil(done * min(excess**2 * AHEAD, 2.0))
            wanted = min(max(needed, done + 1), most)
    assert tree is not None
    if estimate is None:  # of an interrupted look
        estimate = answer(make_question(tree, integrands, method, Options(), weighted=True))
    else:
        for one in said:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return SampledUntil(tree, estimate, farthest.excess <= 1.0)


class Look(NamedTuple):
    """The quantity that is farthest from its aim: its name, error, aim, and their ratio, infinite
    if not known."""

    name: str
    error: float
    aim: float
    excess: float


NOTHING = Look("", np.nan, np.nan, np.inf)
"""Before the first look."""


def look(
    tree: "xarray.DataTree",
    integrands: Any,
    method: str | AbstractControlVariate,
    mcse: float | Mapping[str, float],
    *,
    relative: bool,
) -> tuple[Look, Estimate]:
    """Return how far the draws are from the errors that were asked for, and the estimate."""
    # The whole reduction, since the errors that count are the controlled ones.
    question = make_question(tree, integrands, method, Options(), weighted=True)
    estimate = answer(question)
    aims = _aims(estimate.names, mcse) * (estimate.sd if relative else 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # A constant has no error, and is done.
        excess = np.where(estimate.mcse > 0, estimate.mcse / aims, 0.0)
    # An error that is not known counts as infinite: otherwise a heavy tail that no draw has shown
    # yet would end the run.
    unknown = np.array([status in UNKNOWN for status in estimate.status])
    aimed = np.isfinite(_aims(estimate.names, mcse))
    excess = np.where(aimed, np.where(unknown | np.isnan(excess), np.inf, excess), 0.0)
    # Errors of chains that disagree are too small, and say nothing about how far there is to go.
    if question.convergence.unconverged:
        excess = np.where(aimed, np.maximum(excess, STUCK), excess)
    worst = int(np.argmax(excess))
    farthest = Look(
        estimate.names[worst], float(estimate.mcse[worst]), float(aims[worst]), float(excess[worst])
    )
    return farthest, estimate


STUCK = 1.5
"""How far chains count to be from their aim, at least, while R-hat says that they have not
converged."""


def _aims(names: Sequence[str], mcse: float | Mapping[str, float]) -> np.ndarray:
    """Return the error that each quantity shall have, infinite where any will do."""
    if not isinstance(mcse, Mapping):
        return np.full(len(names), float(mcse))
    aims = np.full(len(names), np.inf)
    for name, aim in mcse.items():
        places = places_named(names, name)
        if not places:
            raise _unknown(name, names)
        aims[places] = aim
    return aims


def _refuse_unknown(mcse: Mapping[str, float], variables: Sequence[str]) -> None:
    """Refuse names that are neither of these variables nor of elements of them."""
    for name in mcse:
        if name.partition("[")[0] not in variables:
            raise _unknown(name, variables)


def _unknown(name: str, names: Sequence[str]) -> InputError:
    cure = f"{did_you_mean(name, names)}There are {', '.join(names[:10])}."
    return InputError("sample_until", "names of quantities in `mcse`", name, cure)


def _how_far(farthest: Look) -> str:
    if farthest is NOTHING:
        return "at the first look"
    return (
        f"the error of {farthest.name} is {significant(farthest.error, 2)}, asked "
        f"{significant(farthest.aim, 2)}"
    )


def joined(trees: "Sequence[xarray.DataTree]") -> "xarray.DataTree":
    """Return the draws of the same chains one after the other; what has no draws is of the
    first."""
    import xarray

    groups: dict[str, Any] = {}
    for name in trees[0].children:
        parts = [tree[name].to_dataset() for tree in trees]
        if "draw" in parts[0].dims and len(parts) > 1:
            # Step sizes and the like, without a dim of draws, stay those of the first batch.
            whole = xarray.concat(
                parts, "draw", data_vars="minimal", coords="minimal", compat="override"
            )
            groups[name] = whole.assign_coords(draw=np.arange(whole.sizes["draw"])).assign_attrs(
                parts[0].attrs
            )
        else:
            groups[name] = parts[0]
    merged = xarray.DataTree.from_dict(groups)
    merged.attrs = dict(trees[0].attrs)
    return merged
