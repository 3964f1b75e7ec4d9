"""Where the command line's draws come from: a trace, a trace and the model that it is of, or a model file sampled."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray


def sample_model(
    path: Path,
    warmup: int | None,
    draws: int | None,
    chains: int | None,
    seed: int | None,
    options: list[str] | None,
    *,
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Sample a model file with NUTS, scores kept; None is the default of each setting."""
    import jax

    import mcmcpost
    from mcmcpost.io._model_file import load_model_file, parse_options
    from mcmcpost.io._quantities import with_quantities
    from mcmcpost.io._sampling import sample_posterior

    model_file = load_model_file(path)
    mcmc = sample_posterior(
        model_file,
        key=jax.random.key(seed or 0),
        num_warmup=warmup or 500,
        num_samples=draws or 1000,
        num_chains=chains or 4,
        options=parse_options(options or []),
        progress=sys.stderr.isatty(),
    )
    tree = with_quantities(mcmcpost.from_numpyro(mcmc, allow_bad_scores=allow_bad_scores), model_file)
    tree.attrs |= {"model_file": path.name, "seed": seed or 0, "num_warmup": warmup or 500}
    return tree


def load_trace(
    path: Path, model: Path | None, options: list[str] | None, *, allow_bad_scores: bool = False
) -> "xarray.DataTree":
    """Load a trace; with a model file, compute its scores and quantities from that."""
    import mcmcpost
    from mcmcpost.io._model_file import load_model_file, parse_options
    from mcmcpost.io._quantities import with_quantities

    if model is None:
        if options:
            raise ValueError(f"--option: expected a model file, got the trace {path} alone. Add --model FILE.py.")
        return _loaded(path)
    model_file = load_model_file(model)
    args, kwargs = model_file.arguments(parse_options(options or []))
    scored = mcmcpost.attach_scores(_loaded(path), model_file.model, *args, allow_bad_scores=allow_bad_scores, **kwargs)
    scored = with_quantities(scored, model_file)
    scored.attrs |= {"model_file": model.name}
    return scored


def _loaded(path: Path) -> "xarray.DataTree":
    """Load a trace and say which of its variables nothing can be computed of."""
    import mcmcpost
    from mcmcpost.io._integrands import unusable_variables

    tree = mcmcpost.load_tree(path)
    unusable = unusable_variables(tree) if "posterior" in tree.children else []
    if unusable:
        text = f"left out {', '.join(unusable)}: not a number for every chain and draw"
        print(f"mcmcpost: warning: {text}", file=sys.stderr)
    return tree
