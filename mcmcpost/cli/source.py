"""The draws of the command line: a stored trace, with or without its model file, or a model file that is sampled."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

import mcmcpost
from mcmcpost._core.errors import InputError, fault
from mcmcpost.cli.model_file import ModelFile, load_model_file, parse_options
from mcmcpost.cli.options import POSTERIOR, is_model_file, refuse_sampling, settings_of
from mcmcpost.cli.quantities import check_quantities, with_quantities
from mcmcpost.io.numpyro_model import ProbedModel, probe_model

if TYPE_CHECKING:
    import xarray
    from numpyro.infer import MCMC


EXTRA_FIELDS = ("z_grad", "potential_energy", "num_steps", "diverging")

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
) -> "MCMC":
    """Run NUTS with a dense mass matrix on a model file and return NumPyro's `MCMC`, scores kept.

    Chains are vectorised: they move in lockstep, and the same program runs on a CPU or a GPU. They start at the file's
    ``init()`` with normal noise of standard deviation `JITTER`, or at NumPyro's default. The precision is that of the
    process: switch ``jax_enable_x64`` on before.

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

    Returns
    -------
    numpyro.infer.MCMC
        With ``z_grad`` (the gradient of the potential: score = −z_grad) among its extra fields.
    """
    from numpyro.infer import MCMC, NUTS

    for name, value in (("num_warmup", num_warmup), ("num_samples", num_samples), ("num_chains", num_chains)):
        if value < 1:
            raise InputError("sample_posterior", f"`{name}` of at least 1", value, "Ask for more.")
    start_key, chain_key = jax.random.split(key)
    args, kwargs = model_file.arguments(options)
    probed = probe_model(f"Model file {model_file.path}", model_file.model, args, kwargs)
    check_quantities(model_file, probed)
    start = _starts(model_file, start_key, num_chains, probed, options)
    mcmc = MCMC(
        NUTS(model_file.model, dense_mass=True),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=progress,
    )
    try:
        mcmc.run(chain_key, *args, extra_fields=EXTRA_FIELDS, init_params=start, **kwargs)
    except RuntimeError as error:
        if "Cannot find valid initial parameters" in str(error):
            raise InputError(_no_start(model_file, "none in NumPyro's attempts")) from error
        raise
    if not jnp.isfinite(mcmc.get_extra_fields()["potential_energy"]).all():
        raise InputError(_no_start(model_file, "chains whose log density is never finite"))
    return mcmc


def _no_start(model_file: ModelFile, got: str) -> str:
    return fault(
        f"Model file {model_file.path}", "a start where the log density is finite", got, "Define init() near the mode."
    )


def _starts(
    model_file: ModelFile,
    key: jax.Array,
    num_chains: int,
    probed: ProbedModel,
    options: Mapping[str, object] | None,
) -> dict[str, jax.Array] | None:
    """Return unconstrained starts, (c, ...) per site, or None if the file has no ``init``."""
    from numpyro.infer.util import unconstrain_fn

    values = model_file.start(options)
    if values is None:
        return None
    sites = list(probed.sites)
    if set(values) != set(sites):
        raise InputError(
            f"Model file {model_file.path}", f"`init()` to name the sites {sites}", sorted(values), "Name each."
        )
    constrained = {name: jnp.asarray(values[name], jnp.result_type(float)) for name in sites}
    centre = unconstrain_fn(model_file.model, probed.args, probed.kwargs, constrained)
    bad = [name for name in sites if not jnp.isfinite(centre[name]).all()]
    if bad:
        raise InputError(
            f"Model file {model_file.path}", "`init()` inside the support", f"{bad} outside", "Move it inside."
        )
    keys = dict(zip(sites, jax.random.split(key, len(sites)), strict=True))
    lead = () if num_chains == 1 else (num_chains,)  # NumPyro wants no chain axis for one chain
    starts = {name: jnp.broadcast_to(centre[name], lead + jnp.shape(centre[name])) for name in sites}
    return {name: x + JITTER * jax.random.normal(keys[name], x.shape, x.dtype) for name, x in starts.items()}


def open_source(
    source: Path,
    model: Path | None,
    given: Mapping[str, int | None],
    options: list[str] | None,
    *,
    allow_bad_scores: bool,
) -> "xarray.DataTree":
    """Return the trace of a model file, by sampling, or of a stored file, for which sampling options are refused.

    model : model file of a stored trace. given : sampling settings, None for the default.
    """
    if not is_model_file(source):
        refuse_sampling("reduce", source, "trace", given)
        return load_trace(source, model, options, allow_bad_scores=allow_bad_scores)
    if model is not None:
        raise InputError(f"--model: expected a trace, got the model file {source}. Leave --model out.")
    return sample_model(source, settings_of(given, POSTERIOR), options, allow_bad_scores=allow_bad_scores)


def sample_model(
    path: Path, settings: Mapping[str, int], options: list[str] | None, *, allow_bad_scores: bool = False
) -> "xarray.DataTree":
    """Sample a model file with NUTS, scores kept; the settings are those of `POSTERIOR`."""
    model_file = load_model_file(path)
    mcmc = sample_posterior(
        model_file,
        key=jax.random.key(settings["seed"]),
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        options=parse_options(options or []),
        progress=sys.stderr.isatty(),
    )
    tree = with_quantities(mcmcpost.from_numpyro(mcmc, allow_bad_scores=allow_bad_scores), model_file)
    tree.attrs |= {"model_file": path.name, "seed": settings["seed"], "num_warmup": settings["warmup"]}
    return tree


def load_trace(
    path: Path, model: Path | None, options: list[str] | None, *, allow_bad_scores: bool = False
) -> "xarray.DataTree":
    """Load a trace; with a model file, compute its scores and quantities from that."""
    if model is None:
        if options:
            raise InputError(f"--option: expected a model file, got the trace {path} alone. Add --model FILE.py.")
        return mcmcpost.load_tree(path)
    model_file = load_model_file(model)
    args, kwargs = model_file.arguments(parse_options(options or []))
    tree = mcmcpost.load_tree(path)
    scored = mcmcpost.attach_scores(tree, model_file.model, *args, allow_bad_scores=allow_bad_scores, **kwargs)
    scored = with_quantities(scored, model_file)
    scored.attrs |= {"model_file": model.name}
    return scored
