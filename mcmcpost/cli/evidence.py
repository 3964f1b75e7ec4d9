"""The command ``evidence``: ladders, posterior traces with their model files, or models to sample; the text."""

import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

import mcmcpost
from mcmcpost._core.errors import InputError
from mcmcpost._core.text import digits_of, significant
from mcmcpost.cli.edge import say
from mcmcpost.cli.model_file import ModelFile, load_model_file, parse_options
from mcmcpost.cli.options import LADDER, POSTERIOR, is_model_file, refuse_sampling, settings_of
from mcmcpost.cli.progress import phase
from mcmcpost.cli.source import check_memory, keeping
from mcmcpost.io import is_ladder, posterior_rung, tempered_target
from mcmcpost.report import diagnostics_text

if TYPE_CHECKING:
    import pandas
    import xarray

    from mcmcpost.evidence import Evidence, EvidenceComparison


POWER = 5.0


class Source(NamedTuple):
    """A ladder, or a posterior trace with the model file of its density.

    path : as given on the command line. tree : what it holds. model : of a trace; None for a ladder. ladder : sampled
        from a normal fitted to the trace; None where it was not asked for.
    """

    path: Path
    tree: "xarray.DataTree"
    model: Path | None
    ladder: "xarray.DataTree | None" = None


def open_sources(
    paths: list[Path],
    models: list[Path],
    given: Mapping[str, int | None],
    options: list[str] | None,
    stack: ExitStack,
    *,
    estimate: str = "auto",
    with_ladder: bool = False,
) -> list[Source]:
    """Load ladders and traces, and sample the power posteriors of model files, all of which are checked before.

    models : of the traces, one for all of them or one for each in order. given : sampling settings, None for the
        default; stored files take none of them, but a trace the seed of its proposals.
    estimate : that of --path, of ladders; refused where there is none. with_ladder : sample one from a
        normal fitted to each trace, with these settings.
    stack : keeps what was sampled where anything fails before it is closed.
    """
    with phase("reading"):
        trees = {path: mcmcpost.load_tree(path) for path in paths if not is_model_file(path)}
    traces = [path for path, tree in trees.items() if not is_ladder(tree)]
    if traces and not models:
        raise InputError(
            f"evidence: expected a ladder, or a trace with --model FILE.py, got the posterior trace {traces[0]} alone."
            " Add the model file that was sampled: the evidence then comes from the trace, by bridge sampling. Without"
            " a trace, `mcmcpost evidence FILE.py` samples a ladder of power posteriors."
        )
    if models and len(models) not in (1, len(traces)):
        expected = f"one for all or one for each of the {len(traces)} traces" if traces else "none without a trace"
        raise InputError(f"evidence: expected of --model {expected}, got {len(models)}. Ladders need no model.")
    if models and not traces:
        raise InputError(f"evidence: expected a trace with --model, got {paths[0]}. Leave --model out.")
    model_of = dict(zip(traces, models if len(models) == len(traces) else models * len(traces), strict=True))
    if with_ladder and len(traces) < len(paths):
        other = next(path for path in paths if path not in traces)
        raise InputError(f"evidence: expected of --ladder traces with --model alone, got {other}. Leave --ladder out.")
    if estimate != "auto" and not with_ladder and len(traces) == len(paths):
        raise InputError(
            f"evidence: expected a ladder with --path, got the trace {traces[0]}. Add --ladder to sample one."
        )
    if trees and not with_ladder and not any(map(is_model_file, paths)):
        own = {"option": None if traces else options or None, "seed": None if traces else given["seed"]}
        if traces:
            cure = "Drop them, or add --ladder to sample one from the trace."
            refuse_sampling("evidence", traces[0], "trace", {**given, **own}, cure)
        else:
            refuse_sampling("evidence", next(iter(trees)), "ladder", {**given, **own})
    settings = settings_of(given, LADDER)
    if with_ladder:
        placed = settings_of(given, POSTERIOR | {"draws": LADDER["draws"]})
        runs = {path: _prepare(model_of[path], options, placed) for path in paths}
        ladders = {}
        for path, run in runs.items():
            ladders[path] = sample_ladder(run, placed, trees[path])
            stack.enter_context(keeping(model_of[path], partial(ladders.__getitem__, path)))
        return [Source(path, trees[path], model_of[path], ladders[path]) for path in paths]
    runs = {path: _prepare(path, options, settings) for path in paths if is_model_file(path)}
    for path, run in runs.items():
        trees[path] = sample_ladder(run, settings)
        stack.enter_context(keeping(path, partial(trees.__getitem__, path)))
    return [Source(path, trees[path], model_of.get(path)) for path in paths]


def source_evidence(
    source: Source,
    options: list[str] | None,
    *,
    path: str,
    method: str | None,
    seed: int | None,
    allow_bad_scores: bool,
) -> "Evidence":
    """Return the evidence of a ladder; of a trace, by bridges; of a sampled ladder, by both."""
    file = source.path if is_model_file(source.path) else source.model
    if file is None:
        with phase("ladder"):
            return mcmcpost.log_evidence(source.tree, method, path=path, allow_bad_scores=allow_bad_scores)
    key = jax.random.key(POSTERIOR["seed"] if seed is None else seed)

    def bridge(trace: "xarray.DataTree") -> "Evidence":
        model_file = load_model_file(file)
        args, kwargs = model_file.arguments(parse_options(options or []))
        choice = "auto" if method is None else method
        with phase("bridges"):
            return mcmcpost.bridge_evidence(
                trace, model_file.model, *args, key=key, method=choice, allow_bad_scores=allow_bad_scores, **kwargs
            )

    if source.model is not None and source.ladder is None:
        return bridge(source.tree)
    ladder = source.tree if source.ladder is None else source.ladder
    beside = None
    try:
        with warnings.catch_warnings():  # a cross-check that is not sound is not used
            warnings.simplefilter("ignore", mcmcpost.EvidenceWarning)
            warnings.simplefilter("ignore", mcmcpost.ScoreWarning)
            if source.ladder is None:  # its last rung's divergences are among those that the ladder's evidence tells
                warnings.simplefilter("ignore", mcmcpost.ConvergenceWarning)
            beside = bridge(posterior_rung(ladder) if source.ladder is None else source.tree)
    except InputError as error:
        say("warning", f"no bridge beside the ladder: {error}")
    with phase("ladder"):
        return mcmcpost.log_evidence(ladder, method, path=path, allow_bad_scores=allow_bad_scores, bridge=beside)


class Run(NamedTuple):
    """A model file that can be sampled, with the arguments of its model, and starting values or None."""

    file: ModelFile
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    init: dict[str, Any] | None


def _prepare(path: Path, options: list[str] | None, settings: Mapping[str, int]) -> Run:
    model_file, chosen = load_model_file(path), parse_options(options or [])
    args, kwargs = model_file.arguments(chosen)
    target, _ = tempered_target(f"Model file {path}", model_file.model, args, kwargs)
    check_memory(settings.get("rungs", 1) * settings["chains"] * settings["draws"], len(target.names))
    return Run(model_file, args, kwargs, model_file.start(chosen))


def sample_ladder(
    run: Run, settings: Mapping[str, int], reference: "xarray.DataTree | None" = None
) -> "xarray.DataTree":
    """Sample the power posteriors of a model file, from its prior or from a normal fitted to a trace.

    settings : those of `LADDER`, and `exchange`, the iterations between swaps, where rungs are swapped. Without
        `rungs`, a ladder from a reference has as many as its barrier asks for.
    """
    seed = settings["seed"]
    # The bridge beside it uses the same seed.
    key = jax.random.key(seed) if reference is None else jax.random.fold_in(jax.random.key(seed), 1)
    tree = mcmcpost.sample_power_posteriors(
        run.file.model,
        run.args,
        run.kwargs,
        temperatures=mcmcpost.power_ladder(settings["rungs"], POWER) if reference is None else settings.get("rungs"),
        reference=reference,
        key=key,
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        init=run.init,
        exchange=settings.get("exchange"),
        progress=sys.stderr.isatty(),
    )
    tree.attrs |= {"model_file": run.file.path.name, "seed": seed}
    return tree


def compare(found: Mapping[str, "Evidence"]) -> "EvidenceComparison | None":
    """Return the comparison of several evidences; those that are undefined are left out of it, which is said."""
    known = {name: evidence for name, evidence in found.items() if np.isfinite([evidence.value, evidence.error]).all()}
    lost = [name for name in found if name not in known]
    if lost and len(found) > 1:
        say("warning", f"not compared: the log evidence of {', '.join(lost)} is undefined")
    return mcmcpost.compare_evidence(known) if len(known) > 1 else None


def evidence_text(name: str, evidence: "Evidence") -> str:
    """Return the estimate, every method on the same draws, and the rungs."""
    errors = f"± {significant(evidence.mcse, 2)} (Monte Carlo)"
    if evidence.discretisation_error:
        errors += f" ± {significant(evidence.discretisation_error, 2)} (discretisation)"
    value = digits_of(evidence.value, evidence.error)
    head = f"{name}: log evidence {value} {errors}, {evidence.method}, {evidence.status}"
    facts = diagnostics_text(evidence)
    methods = evidence.to_dataframe()
    table = methods.assign(
        log_evidence=[digits_of(e.value, e.error) for e in evidence.estimates],
        mcse=[significant(x, 2) for x in methods["mcse"]],
        discretisation_error=["" if np.isnan(x) else significant(x, 2) for x in methods["discretisation_error"]],
    )
    tables = [table] if evidence.health is None else [table, _rungs(evidence.rungs_to_dataframe())]
    return "\n\n".join([f"{head}\n{facts}" if facts else head, *(shown.to_string() for shown in tables)])


def _rungs(rungs: "pandas.DataFrame") -> "pandas.DataFrame":
    shown: dict[str, list[str]] = {}
    if "mean_cv" in rungs:
        shown["mean_cv"] = list(map(digits_of, rungs["mean_cv"], rungs["mcse_cv"]))
        shown |= {key: [significant(x, 2) for x in rungs[key]] for key in ("mcse_cv", "mcse")}
        shown |= {key: [significant(x, 3) for x in rungs[key]] for key in ("gain", "ess", "variance")}
    for key in ("overlap", "rejection", "swap_rate"):
        if key in rungs and np.isfinite(rungs[key]).any():
            shown[key] = ["" if np.isnan(x) else significant(x, 2) for x in rungs[key]]
    shown["rhat"] = [significant(x, 4) for x in rungs["rhat"]]
    if any(rungs["problem"]):
        shown["problem"] = list(rungs["problem"])
    index = [significant(x, 4) for x in rungs.index]
    return type(rungs)(shown, index=type(rungs.index)(index, name="temperature"))


def comparison_text(comparison: "EvidenceComparison") -> str:
    """Return one line per model, best first."""
    table = comparison.to_dataframe()
    errors = {"log_evidence": "error", "log_bayes_factor": "log_bayes_factor_error", "probability": "probability_error"}
    shown: dict[str, Any] = {}
    for column, error in errors.items():
        shown[column] = list(map(digits_of, table[column], table[error]))
        shown[error] = [significant(x, 2) for x in table[error]]
    return type(table)(shown, index=table.index).to_string()
