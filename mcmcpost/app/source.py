"""The draws of the command line: a stored trace, with or without its model file, or a model file
that is sampled."""

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import mcmcpost
from mcmcpost.app.edge import (
    POSTERIOR,
    check_distinct,
    is_model_file,
    phase,
    refuse_sampling,
    say,
    settings_of,
    stopwatch,
)
from mcmcpost.app.model_file import ModelFile, load_model_file, load_program, parse_options
from mcmcpost.app.quantities import example_tree, with_quantities
from mcmcpost.core.arguments import MOMENTS
from mcmcpost.core.devices import map_rows
from mcmcpost.core.errors import InputError, fault
from mcmcpost.stopping import FIELDS, METHOD, Goal, SampledUntil, numpyro_batches, until
from mcmcpost.trees import is_evidence_alone, is_ladder
from mcmcpost.trees.convention import sample_dataset
from mcmcpost.trees.integrands import as_numbers
from mcmcpost.trees.numpyro_model import ProbedModel, dotted, probe_model
from mcmcpost.trees.stan import is_cmdstan

if TYPE_CHECKING:
    import xarray
    from numpyro.infer import MCMC


JITTER = 0.05
"""Standard deviation of the starts of the chains around `init()`, on the unconstrained space."""


def sample_posterior(
    model_file: ModelFile,
    *,
    key: jax.Array,
    num_warmup: int = POSTERIOR["warmup"],
    num_samples: int = POSTERIOR["draws"],
    num_chains: int = POSTERIOR["chains"],
    options: Mapping[str, object] | None = None,
    progress: bool = False,
    ask: "Callable[[xarray.DataTree], object] | None" = None,
    run: "Callable[[MCMC, jax.Array, tuple[Any, ...], dict[str, Any], Any], object] | None" = None,
) -> "MCMC":
    """Run NUTS with a dense mass matrix on a model file and return NumPyro's `MCMC`, scores kept.

    Chains are vectorised: they move in lockstep, and the same program runs on a CPU or a GPU. They
    start at the file's ``init()`` with normal noise of standard deviation `JITTER`, or at NumPyro's
    default. The precision is that of the process: switch ``jax_enable_x64`` on before.

    Parameters
    ----------
    model_file
        From `load_model_file`.
    key
        Split once, for the starts and for the chains.
    num_warmup, num_samples, num_chains
        Draws per chain to adapt on and to keep, and the number of chains.
    options
        Passed by name to ``data()`` and ``init()``, to whichever accepts them.
    progress
        Show NumPyro's progress bar.
    ask
        Called before the sampling with a tree of one draw, shaped as that of the run: it raises the
        errors of what will be asked of the draws.
    run
        Runs the sampler, given the key, the arguments of the model and the starts, in another way
        than once.

    Returns
    -------
    numpyro.infer.MCMC
        With ``z_grad`` (the gradient of the potential: score = −z_grad) among its extra fields.
    """
    from numpyro.infer import MCMC, NUTS

    for name, value in (
        ("num_warmup", num_warmup),
        ("num_samples", num_samples),
        ("num_chains", num_chains),
    ):
        if value < 1:
            raise InputError("sample_posterior", f"`{name}` of at least 1", value, "Ask for more.")
    # Chains have the same key with and without init().
    start_key, chain_key = jax.random.split(key)
    with phase(f"model {model_file.path.name}"):
        args, kwargs = model_file.arguments(options)
        probed = probe_model(f"Model file {model_file.path}", model_file.model, args, kwargs)
        # All that can be wrong with model, quantities and request is told before the first
        # gradient.
        example = example_tree(model_file, probed)
        check_draws_fit(num_chains * num_samples, len(probed.names))
        if ask is not None:
            ask(example)
        start = _starts(model_file, start_key, num_chains, probed, options)
    mcmc = MCMC(
        # On hare–lynx a dense mass matrix took 11,000 leapfrog steps where a diagonal one took
        # 52,000, with three to four times the effective draws, and one seed of the diagonal one
        # ended with a stuck chain (by hand).
        NUTS(model_file.model, dense_mass=True),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        # "parallel" fails with diffrax's default adjoint, and needs as many devices as chains.
        chain_method="vectorized",
        progress_bar=progress,
    )
    try:
        if run is None:
            mcmc.run(chain_key, *args, extra_fields=FIELDS, init_params=start, **kwargs)
        else:
            run(mcmc, chain_key, args, kwargs, start)
    except RuntimeError as error:
        # NumPyro's own message names no cure; the usual cause is NaN among the data.
        if "Cannot find valid initial parameters" in str(error):
            raise InputError(_no_start(model_file, probed, "none in NumPyro's attempts")) from error
        raise
    return mcmc


def check_draws_fit(draws: int, width: int, cure: str = "Ask for less.") -> None:
    """Refuse numbers of draws that no memory holds, each with `width` parameters, as many scores
    and their log density.

    The memory of the machine is a bound: a run needs more than its draws.
    """
    # Draws, scores and the log density, of eight bytes each. Where memory runs out the system kills
    # the program without a word.
    needed = 8 * draws * (2 * width + 1)
    if hasattr(os, "sysconf") and needed > (
        have := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    ):
        got = f"{draws} draws of {width} parameters, {needed / 1e9:.3g} GB"
        raise InputError(
            "--draws, --chains", f"draws that fit into {have / 1e9:.3g} GB of memory", got, cure
        )


def _no_start(model_file: ModelFile, probed: ProbedModel, got: str) -> str:
    where, missing = f"Model file {model_file.path}", probed.observed_nan()
    if missing:
        cure = "Leave missing values out, or make them parameters."
        return fault(
            where, "observed values that are numbers", f"NaN in {', '.join(missing)}", cure
        )
    return fault(
        where, "a start where the log density is finite", got, "Define init() near the mode."
    )


def _starts(
    model_file: ModelFile,
    key: jax.Array,
    num_chains: int,
    probed: ProbedModel,
    options: Mapping[str, object] | None,
) -> dict[str, jax.Array] | None:
    """Return unconstrained starts, (c, ...) per site, or None if the file has no ``init``.

    The log density is evaluated there, so that a model that fails does so before the sampling.
    """
    from numpyro.infer.util import potential_energy, unconstrain_fn

    values = model_file.start(options)
    if values is None:
        return None
    sites, where = list(probed.sites), f"Model file {model_file.path}"
    if set(values) != set(sites):
        raise InputError(where, f"`init()` to name the sites {sites}", sorted(values), "Name each.")
    constrained = {
        name: as_numbers(where, f"init()[{name!r}]", values[name], jnp.asarray) for name in sites
    }
    for name, value in constrained.items():
        if value.shape != probed.sites[name] or value.dtype.kind not in "fiub":
            expected = f"`init()[{name!r}]` of shape {probed.sites[name]}, real"
            raise InputError(
                where,
                expected,
                f"shape {value.shape}, {value.dtype}",
                "Give one value for each element.",
            )
    constrained = {name: value.astype(float) for name, value in constrained.items()}
    # The noise is added on the unconstrained space: there no start can leave the support.
    centre = unconstrain_fn(probed.model, probed.args, probed.kwargs, constrained)
    bad = [name for name in sites if not jnp.isfinite(centre[name]).all()]
    if bad:
        raise InputError(where, "`init()` inside the support", f"{bad} outside", "Move it inside.")
    keys = dict(zip(sites, jax.random.split(key, len(sites)), strict=True))
    lead = () if num_chains == 1 else (num_chains,)  # NumPyro wants no chain axis for one chain
    around = {
        name: jnp.broadcast_to(centre[name], lead + jnp.shape(centre[name])) for name in sites
    }
    # Chains that start at one point agree for a while, and R-hat would see convergence.
    starts = {
        name: x + JITTER * jax.random.normal(keys[name], x.shape, x.dtype)
        for name, x in around.items()
    }
    rows = starts if lead else {name: x[None] for name, x in starts.items()}
    # NumPyro takes a start as it is: at an infinite energy the chain would never move.
    energies = map_rows(
        lambda row: potential_energy(probed.model, probed.args, probed.kwargs, row), rows
    )
    if not np.isfinite(energies).all():
        raise InputError(_no_start(model_file, probed, f"{energies.tolist()} at those of `init()`"))
    return starts


def open_source(
    sources: Sequence[Path],
    model: Path | None,
    given: Mapping[str, int | None],
    options: list[str] | None,
    *,
    allow_bad_scores: bool,
    diagnostics: Sequence[Path] = (),
    ask: "Callable[[xarray.DataTree], object] | None" = None,
) -> "xarray.DataTree":
    """Return the trace of a model file, by sampling, or of stored files, for which sampling options
    are refused.

    model : model file of a stored trace. given : sampling settings, None for the default.
    diagnostics : CmdStan's files of scores, beside its outputs. ask : of `sample_posterior`.
    """
    # Each mistake has a cure of its own, which one message could not give. CmdStan's two kinds of
    # files are told apart by their columns; beside another trace they would count as more chains.
    sources = [*sources, *diagnostics]
    other = [one for one in sources if diagnostics and one.exists() and not is_cmdstan(one)]
    if other:
        cure = (
            "Leave it out: other traces hold their scores, or get them from --model."
            if other[0] not in diagnostics
            else "CmdStan writes them with `output diagnostic_file=diagnostic.csv`."
        )
        raise InputError("--diagnostics", "outputs and diagnostic files of CmdStan", other[0], cure)
    source, *others = sources
    # A link that leads round has no end, which `Path.resolve` raises.
    check_distinct("reduce", list(map(os.path.realpath, sources)), "traces")
    models = [one for one in sources if is_model_file(one)]
    if programs := [one for one in sources if one.suffix == ".stan"]:
        cure = (
            "Sample it with CmdStan, and reduce its outputs: mcmcpost reduce output_*.csv "
            f"--model {programs[0]}."
        )
        raise InputError(
            "reduce", "traces, or a model file NAME.py", f"the Stan program {programs[0]}", cure
        )
    if models and others:
        cure = f"Sample it first: mcmcpost sample {models[0]} -o trace.nc."
        raise InputError(
            f"reduce: expected traces beside each other, got the model file {models[0]}. {cure}"
        )
    if not models:
        refuse_sampling("reduce", source, "trace", given)
        return load_trace(sources, model, options, allow_bad_scores=allow_bad_scores)
    if model is not None:
        raise InputError(
            f"--model: expected a trace, got the model file {source}. Leave --model out."
        )
    return sample_model(
        source, settings_of(given, POSTERIOR), options, allow_bad_scores=allow_bad_scores, ask=ask
    )


def sample_model(
    path: Path,
    settings: Mapping[str, int],
    options: list[str] | None,
    *,
    allow_bad_scores: bool = False,
    log_likelihood: bool = False,
    ask: "Callable[[xarray.DataTree], object] | None" = None,
    goal: Goal | None = None,
) -> "xarray.DataTree":
    """Sample a model file with NUTS, scores kept; the settings are those of `POSTERIOR`.

    goal : sample in batches of the draws that the settings say until it is reached.
    log_likelihood : keep that of every observation too, as ``az.loo`` and `elpd` need it.
    """
    import xarray

    model_file, since = load_model_file(path), stopwatch()
    reached: list[SampledUntil] = []

    def batches(
        mcmc: "MCMC", key: jax.Array, args: tuple[Any, ...], kwargs: dict[str, Any], start: Any
    ) -> None:
        assert goal is not None
        draw = numpyro_batches(mcmc, key, args, kwargs, start, log_likelihood=log_likelihood)
        reached.append(until(draw, None, METHOD, *goal, progress=True))

    mcmc = sample_posterior(
        model_file,
        key=jax.random.key(settings["seed"]),
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        options=parse_options(options or []),
        progress=sys.stderr.isatty(),
        ask=ask,
        run=None if goal is None else batches,
    )
    # JAX returns before it has computed: the time would be that of handing over the work.
    jax.block_until_ready(mcmc.last_state)
    took = since()

    def draws() -> "xarray.DataTree":
        if reached:
            return reached[0].tree
        # Without scores, since their gate may be what failed.
        sites = {
            dotted(name): np.asarray(site)
            for name, site in mcmc.get_samples(group_by_chain=True).items()
        }
        return xarray.DataTree.from_dict({"posterior": sample_dataset(sites)})

    with keeping(path, draws), phase("score gate and quantities"):
        if reached:
            scored = reached[0].tree
        else:
            scored = mcmcpost.from_numpyro(
                mcmc, allow_bad_scores=allow_bad_scores, log_likelihood=log_likelihood
            )
        tree = with_quantities(scored, model_file)
    tree.attrs |= {
        "model_file": path.name,
        "seed": settings["seed"],
        "num_warmup": settings["warmup"],
    }
    tree.attrs |= {"sampling_time": took}  # in seconds, with warm-up and compilation
    return tree


@contextmanager
def keeping(source: Path, draws: "Callable[[], xarray.DataTree]") -> Iterator[None]:
    """Save what was sampled from a model file where what follows fails, and say where.

    The file is new, in the current folder, or in the folder of temporary files where that cannot be
    written to.
    """
    try:
        yield
    except Exception:
        if is_model_file(source):
            here = Path.cwd()
            folder = here if os.access(here, os.W_OK) else Path(tempfile.gettempdir())
            # Never over a file that is there.
            names = (folder / f"{source.stem}-draws{i or ''}.nc" for i in itertools.count())
            place = mcmcpost.save_tree(
                draws(), next(name for name in names if not os.path.lexists(name))
            )
            say(
                "warning",
                f"the draws are kept in {place}. Read a trace with --model {source}, a ladder "
                "as it is.",
            )
        raise


def _in_files(tree: "xarray.DataTree") -> bool:
    """Return whether some variable is still in its file, in the chunks of dask."""
    return any(variable.chunks for node in tree.subtree for variable in node.data_vars.values())


def refuse_sums(
    where: str,
    path: Path,
    tree: "xarray.DataTree",
    cure: str = "Give the trace that it is of; of sums alone, mcmcpost reduce gives means.",
) -> None:
    """Refuse a file of sums where draws are needed."""
    if MOMENTS in tree.children:
        got = f"{path}, a file of sums, which has no draws"
        raise InputError(where, "a trace", got, cure)


def refuse_evidence(path: Path, tree: "xarray.DataTree") -> None:
    """Refuse an evidence where draws are needed."""
    if is_evidence_alone(tree):
        got, cure = f"{path}, an evidence alone", f"Print it with mcmcpost evidence {path}."
        raise InputError("reduce", "a posterior", got, cure)


def load_trace(
    paths: Sequence[Path],
    model: Path | None,
    options: list[str] | None,
    *,
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Load a trace, or the chains of several; with a model file, compute scores and quantities from
    that.

    Without one, large variables stay in their files where dask is installed; those of a ladder are
    read.
    """
    reading = phase(f"reading {', '.join(map(str, paths))}")
    if model is None:
        if options:
            got = f"the trace {paths[0]} alone. Add --model FILE.py or FILE.stan."
            raise InputError(f"--option, --data: expected a model, got {got}")
        with reading:
            # Lazily: means need sums alone, and the trace may be larger than memory. A ladder needs
            # all its draws at once, and only one with variables that stayed in its files is read
            # again.
            tree = mcmcpost.load_tree(*paths, lazy=find_spec("dask") is not None)
            return mcmcpost.load_tree(*paths) if is_ladder(tree) and _in_files(tree) else tree
    with phase(f"model {model}"):
        # The model first: it fails in seconds, reading may take minutes.
        program = load_program(model, options)
    with reading:
        tree = mcmcpost.load_tree(*paths)
    refuse_sums("--model", paths[0], tree)
    refuse_evidence(paths[0], tree)
    if is_ladder(tree):
        raise InputError(
            "--model: expected a trace, got a ladder, which has its scores. Leave --model out."
        )
    with phase("scores and quantities"):
        scored = mcmcpost.attach_scores(
            tree, program.model, *program.args, allow_bad_scores=allow_bad_scores, **program.kwargs
        )
        if program.file is not None:
            scored = with_quantities(scored, program.file)
    scored.attrs |= {"model_file": model.name}
    return scored
