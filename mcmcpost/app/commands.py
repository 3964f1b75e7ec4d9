"""The commands ``reduce``, ``moments``, ``evidence`` and ``report``: what each computes, and its
text."""

import json
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas

import mcmcpost
from mcmcpost.app import edge
from mcmcpost.app.contents import diagnostics_text, known_lines, listed_rows
from mcmcpost.app.info import evidence_line
from mcmcpost.app.model_file import ModelFile, load_model_file, load_program, parse_options
from mcmcpost.app.page import check_destination, gather, read_subject, render, write_html
from mcmcpost.app.quantities import (
    Selection,
    chosen_names,
    named_scalars,
    say_left_out,
    where_they_are,
)
from mcmcpost.app.source import check_draws_fit, keeping, load_trace, refuse_sums
from mcmcpost.control import Estimate, Options, TraceMoments
from mcmcpost.core.errors import WITHOUT_GAIN, InputError, Status
from mcmcpost.core.runtime import digits_of, duration, number_of_quantities, significant
from mcmcpost.evidence import EVIDENCE_GROUP, disagreements, stored_evidence
from mcmcpost.evidence.barrier import MOST
from mcmcpost.evidences import check_same_data
from mcmcpost.expectations import WITHOUT_KERNELS, Answers
from mcmcpost.ladders import tempered_target
from mcmcpost.sums import as_moments, is_summed, new_draws
from mcmcpost.trees import (
    is_evidence_alone,
    is_ladder,
    posterior_rung,
    posterior_variables,
)

if TYPE_CHECKING:
    import pandas
    import xarray

    from mcmcpost.evidence import Evidence, EvidenceComparison


GROUP = "control_variates"
"""The group of a tree that holds the expectations; those of what else was asked for have its name
and one more word."""


class Beyond(NamedTuple):
    """What is asked for beyond expectations.

    spreads : names of `mcmcpost.control.KINDS`. elpd : the variable of the group `log_likelihood`.
    """

    probabilities: np.ndarray | None = None
    interval: tuple[float, str] | None = None
    spreads: Sequence[str] = ()
    elpd: str | None = None

    def __bool__(self) -> bool:
        # Not by equality: that of an array with several quantiles has no truth value.
        return (
            self.probabilities is not None
            or self.interval is not None
            or bool(self.spreads)
            or self.elpd is not None
        )


class Reduced(NamedTuple):
    """What a trace was reduced to: expectations, and by a word for each what else was asked for."""

    means: Estimate
    others: Mapping[str, Estimate] = {}

    @property
    def estimates(self) -> list[Estimate]:
        """All of them, the expectations first."""
        return [self.means, *self.others.values()]

    @property
    def printed(self) -> list[Estimate]:
        """The same with the totals alone of `elpd`, which has two rows for each observation
        besides."""
        totals = {
            word: e.select(np.arange(3)) if word == "elpd" else e for word, e in self.others.items()
        }
        return [self.means, *totals.values()]


def reduce_tree(
    tree: "xarray.DataTree",
    selection: Selection,
    beyond: Beyond,
    method: str,
    allow_bad_scores: bool,
) -> Reduced:
    """Return the expectations of every quantity, and what else is asked for."""
    if (sums := as_moments(tree)) is not None:
        return Reduced(_of_sums(sums, selection, method, bool(beyond), allow_bad_scores))
    variables, options = posterior_variables(tree), Options(allow_bad_scores=allow_bad_scores)
    say_left_out(variables)
    with edge.phase("score gate"):
        integrands = where_they_are if is_summed(tree, method, options) else named_scalars
        answers = Answers.of(tree, integrands(tree, variables, selection), method, options)
    if note := answers.question.convergence.note:
        edge.say("note", note)
    others: dict[str, Estimate] = {}
    # Before the means, which take longer: a missing log likelihood must not cost them.
    if beyond.elpd is not None:
        with edge.phase("elpd"):
            chosen = WITHOUT_KERNELS if method == "auto" else method
            others["elpd"] = mcmcpost.elpd(
                tree, beyond.elpd, chosen, allow_bad_scores=allow_bad_scores
            )
        _say_influential(others["elpd"])
    for kind in dict.fromkeys(beyond.spreads):
        with edge.phase(kind):
            others[kind] = answers.spread(kind)
    since = edge.stopwatch()
    with edge.phase("control variates"):
        means = answers.expectation()
    say_sampling_cost(means, since())
    if beyond.probabilities is None and beyond.interval is None:
        return Reduced(means, others)
    with edge.phase("quantiles"):
        dist = answers.distribution()
        estimate, intervals = dist.quantiles_and_interval(beyond.probabilities, beyond.interval)
        # Those of an indicator are zero or one, which its mean has said already.
        numbers = ~_is_indicator(answers.question.sample.values)
        if not numbers.all():
            events = ", ".join(compress(means.names, ~numbers))
            edge.say("note", f"no quantiles of {events}: they are 0 or 1, as the mean tells.")
        for word, found in (("quantiles", estimate), ("intervals", intervals)):
            if found is not None and numbers.any():
                each = len(found.names) // len(numbers)
                others[word] = found.select(np.flatnonzero(np.repeat(numbers, each)))
    return Reduced(means, others)


def _is_indicator(values: np.ndarray) -> np.ndarray:
    """Return which quantities (c, n, p) are zero or one at every draw, and not always the same."""
    ends = (values.min(axis=(0, 1)) == 0) & (values.max(axis=(0, 1)) == 1)
    # Column by column: few have these ends, and a trace may be large.
    columns = [ends[j] and np.isin(values[..., j], (0, 1)).all() for j in range(len(ends))]
    return np.array(columns, dtype=bool)


def _say_influential(elpd: Estimate) -> None:
    """Say for which observations leaving them out has a heavy tail: they make the totals
    doubtful."""
    rows = zip(elpd.names[3:], elpd.status[3:], strict=True)
    heavy = [
        name
        for name, status in rows
        if name.startswith("elpd_loo(") and status is Status.HEAVY_TAIL
    ]
    if heavy:
        shown = ", ".join(heavy[:5]) + (", …" if len(heavy) > 5 else "")
        edge.say(
            "note",
            f"{len(heavy)} of {(len(elpd.names) - 3) // 2} observations have a heavy tail: {shown}",
        )


def _of_sums(
    sums: TraceMoments, selection: Selection, method: str, more: bool, allow_bad_scores: bool
) -> Estimate:
    """Return the expectations of the quantities that were summed; more : whether more than means is
    asked for."""
    # Quantiles, and functions that were not summed, need the draws themselves.
    if selection.expressions or more:
        got = "more, as --expect, --quantile, --ci, --spread or --elpd"
        cure = "Ask the trace, or sum what is wanted: mcmcpost moments --expect."
        raise InputError("reduce", "of a file of sums means of what was summed", got, cure)
    if method != "auto":
        cure = "Leave it out here: mcmcpost moments --method chooses what is summed."
        raise InputError("reduce", "of a file of sums no other --method", method, cure)
    if allow_bad_scores:
        got, cure = "--allow-bad-scores", "Leave it out: scores were tested when they were summed."
        raise InputError("reduce", "of a file of sums nothing on scores", got, cure)
    # "theta[0]" and "theta[1]" are of one variable, and --var-names names variables.
    variables = list(dict.fromkeys(name.partition("[")[0] for name in sums.features.names))
    with edge.phase("control variates"):
        return mcmcpost.expectation(
            sums, None if selection.names is None else chosen_names(variables, selection), method
        )


_EXPRESSIONS = "mcmcpost_expect"


def summed_expressions(before: Path | None) -> list[str]:
    """Return what --expect was where a file of sums was made, which knows names and no formulas."""
    tree = None if before is None else mcmcpost.load_tree(before)
    return [] if tree is None else json.loads(tree.attrs.get(_EXPRESSIONS, "[]"))


def sums_with_expressions(sums: TraceMoments, expressions: list[str]) -> "xarray.DataTree":
    """Return sums as a tree for `summed_expressions`."""
    tree = sums.to_datatree()
    tree.attrs[_EXPRESSIONS] = json.dumps(expressions)
    return tree


def sum_traces(
    sources: Sequence[Sequence[Path]],
    before: Path | None,
    selection: Selection,
    method: str,
    model: Path | None,
    option: list[str] | None,
    allow_bad_scores: bool,
) -> TraceMoments:
    """Return the sums over traces, each read from files of its own, and those of a file of sums
    `before` them.

    Draws that are in the sums already, of chains that went on, are left out; so is what is not in
    the file, where no names are asked for.
    """
    total = None if before is None else as_moments(mcmcpost.load_tree(before))
    if before is not None and method != "auto":
        cure = "Leave it out: what is added has the controls of the file."
        raise InputError("--append", "no --method beside it", method, cure)
    if before is not None and total is None:
        raise InputError(
            "--append", "a file of sums, from mcmcpost moments", before, "Sum its trace first."
        )
    for source in sources:
        # One trace in memory at a time: sums add, whatever the number of traces.
        edge.refuse_model_file("moments", source[0])
        tree = load_trace(source, model, option, allow_bad_scores=allow_bad_scores)
        cure = "Add it with --append, or give all files of sums to mcmcpost reduce together."
        refuse_sums("moments", source[0], tree, cure)
        # Chains that went on have their first draws in the sums: counted twice they would narrow
        # errors.
        start, draws = (0, 1) if total is None else new_draws(tree, total)
        if start >= draws:
            raise InputError(
                "moments", f"draws in {source[0]} that are not summed yet", "none", "Leave it out."
            )
        variables = posterior_variables(tree)
        say_left_out(variables)
        integrands: Any = where_they_are(tree, variables, selection)
        names = () if total is None else total.features.names
        if (
            before is not None
            and selection.names is None
            and set(selection.expressions) <= set(names)
        ):
            # What is summed is that of the file; `moments` names what no variable gives.
            integrands = (
                {name: integrands[name] for name in names if name in integrands} or None
                if isinstance(integrands, dict)
                else None
            )
        with edge.phase(f"sums over {source[0]}"):
            added = mcmcpost.moments(
                tree, integrands, method, like=total, start=start, allow_bad_scores=allow_bad_scores
            )
        total = added if total is None else total + added
    assert total is not None
    return total


def say_sampling_cost(estimate: Estimate, seconds: float) -> None:
    """Say what a reduction that took so long is worth, where the trace records the time of its
    sampling."""
    if sentence := estimate.info.get("worth"):
        edge.say("note", f"{sentence} This reduction took {duration(seconds)}.")


def tree_with(tree: "xarray.DataTree", reduced: Reduced) -> "xarray.DataTree":
    """Return a new tree with the estimates beside the draws; quantiles and the like of before are
    not kept."""
    # Those of an earlier run, of other draws or another method, would not belong to these means.
    stale = [name for name in tree.children if name.startswith(f"{GROUP}_")]
    result = reduced.means.to_datatree(tree.drop_nodes(stale))
    for word, estimate in reduced.others.items():
        result[f"{GROUP}_{word}"] = estimate.to_datatree()[GROUP]
    return result


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """Return one row for each quantity, every mean to the digits that its error supports, and a
    line for constants."""
    rows = [row for estimate in estimates for row in listed_rows(estimate)]
    table = [pandas.DataFrame(rows).set_index("name").rename_axis(None).to_string()] if rows else []
    return "\n".join([*table, *known_lines(estimates[0])])


POWER = 5.0
"""Exponent of the temperatures from the prior, that of Friel and Pettitt (2008)."""


class Source(NamedTuple):
    """A ladder, a posterior trace with the model file of its density, or a stored evidence.

    path : as given on the command line. tree : what it holds. model : of a trace; None for a
        ladder. ladder : sampled from a normal fitted to the trace; None where it was not asked for.
        stored : the evidence in the tree is wanted.
    """

    path: Path
    tree: "xarray.DataTree"
    model: Path | None
    ladder: "xarray.DataTree | None" = None
    stored: bool = False


def open_sources(
    paths: list[Path],
    models: list[Path],
    given: Mapping[str, int | None],
    options: list[str] | None,
    stack: ExitStack,
    *,
    estimate: str | None = None,
    with_ladder: bool = False,
    again: bool = False,
) -> list[Source]:
    """Load evidences, ladders and traces, and sample the power posteriors of model files, all
    checked before.

    models : of the traces, one for all of them or one for each in order. given : sampling settings,
        None for the default; stored files take none of them, but a trace the seed of its proposals.
    estimate : that of --path, of ladders; refused where there is none. with_ladder : sample one
        from a normal fitted to each trace, with these settings. again : estimate although an
        evidence is
            stored, as --path,
        --method and --allow-bad-scores ask, and --model for traces.
    stack : keeps what was sampled where anything fails before it is closed.
    """
    with edge.phase("reading"):
        trees = {path: mcmcpost.load_tree(path) for path in paths if not edge.is_model_file(path)}
    for path, tree in trees.items():
        cure = "Give the trace that it is of, with --model FILE.py, or a ladder."
        refuse_sums("evidence", path, tree, cure)
    # Evidences of different data have no Bayes factor, and sampling a model file may take hours.
    check_same_data("evidence", {str(path): tree for path, tree in trees.items()})
    alone = [path for path, tree in trees.items() if is_evidence_alone(tree)]
    if alone and again:
        expected, cure = (
            "draws to estimate from with --method, --path or --allow-bad-scores",
            "Leave them out.",
        )
        raise InputError("evidence", expected, f"{alone[0]}, an evidence alone", cure)
    # A ladder's stored evidence stays beside --model; a trace with a model asks for a new bridge.
    keep = [
        path
        for path, tree in trees.items()
        if EVIDENCE_GROUP in tree.children and not again and not with_ladder
    ]
    stored = {path for path in keep if path in alone or is_ladder(trees[path]) or not models}
    traces = [path for path, tree in trees.items() if path not in stored and not is_ladder(tree)]
    model_of = _model_of_traces(paths, traces, models, with_ladder)
    if estimate is not None and not with_ladder and len(traces) == len(paths):
        raise InputError(
            f"evidence: expected a ladder with --path, got the trace {traces[0]}. Add "
            "--ladder to sample one."
        )
    # Where nothing is sampled, options of sampling are refused: nobody shall believe in draws that
    # were not taken. Proposals of a bridge have a seed, and its model has options.
    if trees and not with_ladder and not any(map(edge.is_model_file, paths)):
        _refuse_sampling(next(iter(trees)), traces, stored, given, options)
    settings = edge.settings_of(given, edge.LADDER)
    if with_ladder:
        # Without the sixteen rungs of a ladder from the prior: the barrier says how many are
        # needed.
        placed = edge.settings_of(given, edge.POSTERIOR | {"draws": edge.LADDER["draws"]})
        runs = {path: _prepare(model_of[path], options, placed) for path in paths}
        ladders = {}
        for path, run in runs.items():
            ladders[path] = ladder_of_model(run, placed, trees[path])
            # At once: if the ladder of the next trace fails, this one is kept.
            stack.enter_context(keeping(model_of[path], partial(ladders.__getitem__, path)))
        return [Source(path, trees[path], model_of[path], ladders[path]) for path in paths]
    # Every model is tried before one is sampled: a fault in the last would cost the runs of all.
    runs = {path: _prepare(path, options, settings) for path in paths if edge.is_model_file(path)}
    for path, run in runs.items():
        trees[path] = ladder_of_model(run, settings)
        stack.enter_context(keeping(path, partial(trees.__getitem__, path)))
    return [Source(path, trees[path], model_of.get(path), stored=path in stored) for path in paths]


def _model_of_traces(
    paths: list[Path], traces: list[Path], models: list[Path], with_ladder: bool
) -> dict[Path, Path]:
    """Return the model file of each trace, after refusing what has too few or too many of them."""
    # A bridge evaluates the density at proposals, which the draws of a trace alone cannot.
    if traces and not models:
        raise InputError(
            "evidence: expected a ladder, or a trace with --model FILE.py, got the posterior "
            f"trace {traces[0]} alone. Add the model file that was sampled: the evidence then "
            "comes from the trace, by bridge sampling. Without a trace, `mcmcpost evidence "
            "FILE.py` samples a ladder of power posteriors."
        )
    if models and len(models) not in (1, len(traces)):
        expected = (
            f"one for all or one for each of the {len(traces)} traces"
            if traces
            else "none without a trace"
        )
        raise InputError(
            f"evidence: expected of --model {expected}, got {len(models)}. Ladders need no model."
        )
    if models and not traces:
        raise InputError(
            f"evidence: expected a trace with --model, got {paths[0]}. Leave --model out."
        )
    if with_ladder and len(traces) < len(paths):
        other = next(path for path in paths if path not in traces)
        raise InputError(
            f"evidence: expected of --ladder traces with --model alone, got {other}. Leave "
            "--ladder out."
        )
    return dict(
        zip(traces, models if len(models) == len(traces) else models * len(traces), strict=True)
    )


def _refuse_sampling(
    first: Path,
    traces: list[Path],
    stored: set[Path],
    given: Mapping[str, int | None],
    options: list[str] | None,
) -> None:
    """Refuse options of sampling beside stored files, of which `first` is the first."""
    adjusted: dict[str, object]
    if traces:
        adjusted = {**given, "option": None, "seed": None}
        cure = "Drop them, or add --ladder to sample one from the trace."
        edge.refuse_sampling("evidence", traces[0], "trace", adjusted, cure)
    else:
        adjusted = {**given, "option": options or None}
        kind = "stored evidence" if first in stored else "ladder"
        edge.refuse_sampling("evidence", first, kind, adjusted)


def source_evidence(
    source: Source,
    options: list[str] | None,
    *,
    path: str,
    method: str | None,
    seed: int | None,
    allow_bad_scores: bool,
) -> "Evidence":
    """Return the evidence of a ladder; of a trace, by bridges; of a sampled ladder, by both; or the
    stored one."""
    if source.stored:
        evidence = stored_evidence(f"evidence: {source.path}", source.tree)
        # What the estimate warned of when it was made is stored with it, and said again.
        for text in (*evidence.complaints, *disagreements(evidence)):
            edge.say("warning", f"{source.path}: {text}")
        return evidence
    file = source.path if edge.is_model_file(source.path) else source.model
    if file is None:
        with edge.phase("ladder"):
            return mcmcpost.log_evidence(
                source.tree, method, path=path, allow_bad_scores=allow_bad_scores
            )
    key = jax.random.key(edge.POSTERIOR["seed"] if seed is None else seed)

    def bridge(trace: "xarray.DataTree") -> "Evidence":
        model, args, kwargs, _ = load_program(file, options)
        choice = "auto" if method is None else method
        with edge.phase("bridges"):
            return mcmcpost.bridge_evidence(
                trace,
                model,
                *args,
                key=key,
                method=choice,
                allow_bad_scores=allow_bad_scores,
                **kwargs,
            )

    if source.model is not None and source.ladder is None:
        return bridge(source.tree)
    ladder = source.tree if source.ladder is None else source.ladder
    # A bridge from posterior draws checks the ladder, which stands alone where it cannot be made.
    beside = None
    try:
        with warnings.catch_warnings():  # a cross-check that is not sound is not used
            warnings.simplefilter("ignore", mcmcpost.EvidenceWarning)
            warnings.simplefilter("ignore", mcmcpost.ScoreWarning)
            # its last rung's divergences are among those that the ladder's evidence tells
            if source.ladder is None:
                warnings.simplefilter("ignore", mcmcpost.ConvergenceWarning)
            beside = bridge(posterior_rung(ladder) if source.ladder is None else source.tree)
    except InputError as error:
        edge.say("warning", f"no bridge beside the ladder: {error}")
    with edge.phase("ladder"):
        return mcmcpost.log_evidence(
            ladder, method, path=path, allow_bad_scores=allow_bad_scores, bridge=beside
        )


class SampledModel(NamedTuple):
    """A model file that can be sampled, with the arguments of its model, and starting values or
    None."""

    file: ModelFile
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    init: dict[str, Any] | None


def _prepare(path: Path, options: list[str] | None, settings: Mapping[str, int]) -> SampledModel:
    model_file, chosen = load_model_file(path), parse_options(options or [])
    args, kwargs = model_file.arguments(chosen)
    target, _ = tempered_target(f"Model file {path}", model_file.model, args, kwargs)
    # Without --rungs the barrier, which is not known yet, places up to MOST.
    cure = (
        "Ask for less."
        if "rungs" in settings
        else f"Ask for less, or for fewer than {MOST} --rungs."
    )
    check_draws_fit(
        settings.get("rungs", MOST) * settings["chains"] * settings["draws"],
        len(target.names),
        cure,
    )
    return SampledModel(model_file, args, kwargs, model_file.start(chosen))


def ladder_of_model(
    run: SampledModel, settings: Mapping[str, int], reference: "xarray.DataTree | None" = None
) -> "xarray.DataTree":
    """Sample the power posteriors of a model file, from its prior or from a normal fitted to a
    trace.

    settings : those of `LADDER`, and `exchange`, the iterations between swaps, where rungs are
        swapped. Without `rungs`, a ladder from a reference has as many as its barrier asks for.
    """
    seed = settings["seed"]
    # The bridge beside it uses the same seed.
    key = jax.random.key(seed) if reference is None else jax.random.fold_in(jax.random.key(seed), 1)
    tree = mcmcpost.sample_power_posteriors(
        run.file.model,
        run.args,
        run.kwargs,
        temperatures=mcmcpost.power_ladder(settings["rungs"], POWER)
        if reference is None
        else settings.get("rungs"),
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


def compare(evidences: Mapping[str, "Evidence"]) -> "EvidenceComparison | None":
    """Return the comparison of several evidences; those that are undefined are left out of it,
    which is said."""
    # NaN of one model would make the probabilities of all of them NaN.
    known = {
        name: evidence
        for name, evidence in evidences.items()
        if np.isfinite([evidence.value, evidence.error]).all()
    }
    lost = [name for name in evidences if name not in known]
    if lost and len(evidences) > 1:
        edge.say("warning", f"not compared: the log evidence of {', '.join(lost)} is undefined")
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
    # Only bridges have k-hats, and only quadrature has an error of its own: other rows stay empty.
    table = methods.assign(
        log_evidence=[digits_of(e.value, e.error) for e in evidence.estimates],
        mcse=[significant(x, 2) for x in methods["mcse"]],
        **{
            name: ["" if np.isnan(x) else significant(x, 2) for x in methods[name]]
            for name in methods.columns.intersection(
                ["discretisation_error", "khat_proposals", "khat_draws"]
            )
        },
    )
    tables = [table] if evidence.health is None else [table, _rungs(evidence.rungs_to_dataframe())]
    return "\n\n".join(
        [f"{head}\n{facts}" if facts else head, *(shown.to_string() for shown in tables)]
    )


def _rungs(rungs: "pandas.DataFrame") -> "pandas.DataFrame":
    # Not every ladder has every column: no swaps without exchange, no means where rungs have no
    # estimate of their own.
    shown: dict[str, list[str]] = {}
    if "mean_cv" in rungs:
        shown["mean_cv"] = list(map(digits_of, rungs["mean_cv"], rungs["mcse_cv"]))
        shown |= {key: [significant(x, 2) for x in rungs[key]] for key in ("mcse_cv", "mcse")}
        shown |= {
            key: [significant(x, 3) for x in rungs[key]] for key in ("gain", "ess", "variance")
        }
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
    errors = {
        "log_evidence": "error",
        "log_bayes_factor": "log_bayes_factor_error",
        "probability": "probability_error",
    }
    shown: dict[str, Any] = {}
    for column, error in errors.items():
        shown[column] = list(map(digits_of, table[column], table[error]))
        shown[error] = [significant(x, 2) for x in table[error]]
    return type(table)(shown, index=table.index).to_string()


def report_facts(
    sources: Sequence[Path],
    output: Path,
    selection: Selection,
    method: str,
    *,
    model: Path | None,
    options: list[str] | None,
    probabilities: np.ndarray | None,
    interval: tuple[float, str] | None,
    overwrite: bool,
    allow_bad_scores: bool,
) -> dict[str, Any]:
    """Write the report of a stored trace, of one file or several, a ladder or an evidence, and
    return its summary, as plain values for JSON."""
    # First, since a report that cannot be written shows only after minutes of estimating.
    place = check_destination(output, overwrite)
    first = sources[0]
    for source in sources:
        edge.refuse_model_file("report", source)
    tree = load_trace(sources, model, options, allow_bad_scores=allow_bad_scores)
    refuse_sums("report", first, tree)
    with warnings.catch_warnings():
        for told in (mcmcpost.ScoreWarning, mcmcpost.ConvergenceWarning, mcmcpost.EvidenceWarning):
            warnings.simplefilter("ignore", told)  # the notices of the report contain them
        with edge.phase("evidence" if is_ladder(tree) else "reading"):
            subject = (
                None if is_evidence_alone(tree) else read_subject(tree, None, allow_bad_scores)
            )
            evidence = (
                stored_evidence(f"report: {first}", tree) if subject is None else subject.evidence
            )
        scalars = None
        if subject is not None:
            say_left_out(subject.variables)
            settings = Options(allow_bad_scores=allow_bad_scores)
            chosen = where_they_are if is_summed(subject.tree, method, settings) else named_scalars
            scalars = chosen(subject.tree, subject.variables, selection)
        elif selection.expressions or selection.names:
            cure = "Report the trace or ladder that it is of."
            raise InputError(
                "report",
                "draws, of which to report quantities",
                f"{first}, an evidence alone",
                cure,
            )
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        since = edge.stopwatch()
        with edge.phase("control variates"):
            contents = gather(
                subject,
                scalars,
                method,
                evidence=evidence,
                title=f"Report on {first.name}{more}",
                asked={"File": ", ".join(map(str, sources))}
                | ({} if model is None else {"Model": str(model)}),
                command=shlex.join(["mcmcpost", *sys.argv[1:]]),
                options=Options(allow_bad_scores=allow_bad_scores),
                levels=probabilities,
                interval=interval,
            )
    # Without the figures: what is compared with the time of the sampling are the estimates.
    took = since()
    for text in contents.notices:
        edge.say("warning", text)
    with edge.phase("figures"):
        text = render(contents)
        write_html(text, place, overwrite)
    facts: dict[str, Any] = {
        "path": str(place),
        "bytes": len(text.encode()),
        "notices": list(contents.notices),
    }
    if (posterior := contents.posterior) is not None:
        say_sampling_cost(posterior.estimate, took)
        estimates = [
            estimate
            for estimate in (posterior.estimate, posterior.quantiles, posterior.intervals)
            if estimate is not None
        ]
        facts |= {
            "score_check": posterior.check.verdict,
            "divergences": posterior.divergences,
            "quantities": [
                q for estimate in estimates for q in estimate.to_json_dict()["quantities"]
            ],
        }
    if evidence is not None:
        facts["evidence"] = evidence.to_json_dict()
    return facts


def report_line(facts: dict[str, Any]) -> str:
    """Return the summary in one line."""
    if "quantities" not in facts:
        return f"{facts['path']}: log evidence {evidence_line(facts['evidence']) or 'undefined'}"
    # Constants, quantities that are reproduced exactly and errors that are not trusted have no
    # gain.
    varying = [q for q in facts["quantities"] if q["status"] != Status.CONSTANT]
    gains = [
        q["gain"] for q in varying if q["gain"] is not None and q["status"] not in WITHOUT_GAIN
    ]
    gain = f", median gain {significant(float(np.median(gains)), 3)}" if gains else ""
    return (
        f"{facts['path']}: {number_of_quantities(len(varying))}{gain}, scores "
        f"{facts['score_check']}"
    )
