"""The commands, thin over the public functions. JAX, NumPy and the rest are imported inside them,
when one runs."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from mcmcpost.app import edge, options
from mcmcpost.core.errors import InputError

if TYPE_CHECKING:
    import xarray


app = typer.Typer(
    help="Post-processing of MCMC traces: Stein control variates with Monte Carlo errors, "
    "evidence, reports.",
    epilog="Exit codes: 0 done; 1 a fault of mcmcpost, with a traceback; 2 bad input or usage, in "
    "a line; 130 Ctrl-C.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


PIPE_CLOSED = 141
"""The exit code of programs that the signal SIGPIPE ends, 128 + 13."""


def run() -> None:
    """Run the command line. Errors in the input end in one line and exit code 2, errors of mcmcpost
    in a traceback."""
    code = 0
    edge.prepare_streams()
    try:
        arguments = sys.argv[1:]
        # Not standalone: typer would print its own errors and exit.
        code = app(arguments or ["--help"], prog_name="mcmcpost", standalone_mode=False) or (
            0 if arguments else 2
        )
        sys.stdout.flush()
    except (Exception, SystemExit) as error:  # a model file may exit
        # The flush above is within the block, because Python's own at exit can only print what went
        # wrong. Output goes nowhere from here on, so that it has nothing left to write.
        # what reads the output has enough of it
        if BrokenPipeError in (type(error), type(error.__context__)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        # In this order: an InputError that a model file's own code raises is told with the line of
        # that file.
        message = (
            edge.usage_fault(error)
            or edge.model_file_fault(error)
            or (str(error) if edge.is_user_error(error) else None)
        )
        if os.environ.get("MCMCPOST_DEBUG") or message is None:
            raise
        edge.say("error", message)
        code = 2
    sys.exit(code)


def _print_version(wanted: bool | None) -> None:
    # Eager: `mcmcpost --version` must not ask for a command, nor import JAX.
    if wanted:
        from importlib.metadata import version

        print(f"mcmcpost {version('mcmcpost')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[  # noqa: ARG001  (typer calls back, and passes None on)
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", hidden=True, help="Show tracebacks of user errors.")
    ] = False,
) -> None:
    if debug:
        os.environ["MCMCPOST_DEBUG"] = "1"


@app.command()
def sample(
    model: Annotated[
        Path,
        typer.Argument(
            callback=options.named,
            help="Model file: a Python file with model() and data(); or the name of a shipped one.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="New file, .nc or .zarr; nothing is overwritten.")
    ],
    warmup: options.Warmup = None,
    draws: options.Draws = None,
    chains: options.Chains = None,
    seed: options.Seed = None,
    option: options.Options = None,
    until: Annotated[
        float | None,
        typer.Option(
            help="Sample in batches of --draws [default: 250] until every controlled error is at "
            "most this.",
        ),
    ] = None,
    relative: Annotated[
        bool,
        typer.Option("--relative", help="Errors of --until are in posterior standard deviations."),
    ] = False,
    max_draws: Annotated[
        int | None,
        typer.Option(
            help="Draws of all chains together at most, of --until [default: 100000].", min=1
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Sample a model file with NUTS and write the trace, with scores and log likelihoods."""
    with _program() as out:
        import mcmcpost
        from mcmcpost.app.edge import phase
        from mcmcpost.app.source import keeping, sample_model
        from mcmcpost.core.runtime import number_of_draws
        from mcmcpost.stopping import BATCH, MAX_DRAWS, Goal, check_goal
        from mcmcpost.trees import check_convergence, posterior_variables

        # An output that cannot be written is refused before minutes of sampling.
        edge.check_output(output)
        given = {"warmup": warmup, "draws": draws, "chains": chains, "seed": seed}
        if until is None and (relative or max_draws is not None):
            name, use = (
                ("relative", "is its unit") if relative else ("max-draws", "bounds its draws")
            )
            raise InputError(f"--{name}: expected --until, got none. It {use}.")
        most = MAX_DRAWS if max_draws is None else max_draws
        goal = None if until is None else Goal(until, relative, most)
        # With --until the draws are those of a batch, which are looked at again and again.
        settings = edge.settings_of(
            given, edge.POSTERIOR if goal is None else edge.POSTERIOR | {"draws": BATCH}
        )
        if goal is not None:
            check_goal("sample", goal, settings["chains"] * settings["draws"])
        tree = sample_model(model, settings, option, log_likelihood=True, goal=goal)
        # Whatever fails from here on, the draws are on disk.
        with keeping(model, lambda: tree):
            convergence = check_convergence(tree, posterior_variables(tree).scalars())
            for kind, text in (("warning", convergence.complaint), ("note", convergence.note)):
                if text:
                    edge.say(kind, text)
            with phase(f"writing {output}"):
                mcmcpost.save_tree(tree, output)
        shape = tree["posterior"].sizes
        if as_json:
            facts = {"path": str(output), "chains": shape["chain"], "draws": shape["draw"]}
            _print_json(
                facts
                | {
                    "max_rhat": convergence.max_rhat,
                    "divergences": convergence.recorded_divergences,
                },
                out,
            )
        else:
            print(f"{output}: {number_of_draws(shape['chain'], shape['draw'])}", file=out)


@app.command()
def reduce(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE_OR_MODEL...",
            callback=options.named,
            help="A trace (.nc, .zarr, .csv), or several, one a job or chain, taken together; or a "
            "model file, or the name of a shipped one, such as lotka-volterra.",
        ),
    ],
    output: options.Output = None,
    var_names: options.VarNames = None,
    filter_vars: options.FilterVars = None,
    expect: options.Expect = None,
    method: options.Method = options.MethodName.AUTO,
    quantile: options.Quantile = None,
    ci: options.Ci = None,
    ci_kind: options.CiKind = None,
    spread: options.Spread = None,
    elpd: options.Elpd = None,
    model: options.ModelOf = None,
    data: options.Data = None,
    diagnostics: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.csv",
            help="Diagnostic file of CmdStan, which has the scores; by default those beside the "
            "outputs. Repeatable.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    allow_bad_scores: options.AllowBadScores = False,
    warmup: options.Warmup = None,
    draws: options.Draws = None,
    chains: options.Chains = None,
    seed: options.Seed = None,
    option: options.Options = None,
) -> None:
    """Print the posterior expectations of a trace, or of a model file sampled first, with smaller
    errors."""
    with _program() as out:
        import mcmcpost
        from mcmcpost.app.commands import Beyond, estimates_text, reduce_tree, sum_traces, tree_with
        from mcmcpost.app.edge import phase
        from mcmcpost.app.expressions import parse_expressions
        from mcmcpost.app.quantities import Selection, named_scalars
        from mcmcpost.app.source import keeping, open_source, refuse_evidence
        from mcmcpost.core.arguments import check_probabilities
        from mcmcpost.core.errors import UnequalChains
        from mcmcpost.distributions import resolve_interval
        from mcmcpost.trees import posterior_variables

        # Everything that was typed is parsed before a file is opened: a misspelt expression must
        # not cost a run.
        selection = Selection(parse_expressions(expect or []), var_names, filter_vars)
        chosen = method.value
        probabilities = check_probabilities(quantile) if quantile else None
        beyond = Beyond(
            probabilities,
            resolve_interval("--ci", ci, ci_kind),
            tuple(kind.value for kind in spread or ()),
            elpd,
        )
        edge.check_output(output)
        given = {"warmup": warmup, "draws": draws, "chains": chains, "seed": seed}

        # Of a model file names and shapes are known from an abstract run: what is asked is tried on
        # it before sampling.
        def ask(example: "xarray.DataTree") -> None:
            named_scalars(example, posterior_variables(example), selection)

        beside, option = diagnostics or [], options.with_data(option, data)
        # Means alone need sums, which add whatever the lengths: a file each, no draw is left out.
        of_sums = not beyond and len(sources) > 1 and len(beside) in (0, len(sources))
        try:
            with warnings.catch_warnings():
                if of_sums:
                    warnings.simplefilter("error", UnequalChains)
                tree = open_source(
                    sources,
                    model,
                    given,
                    option,
                    allow_bad_scores=allow_bad_scores,
                    diagnostics=beside,
                    ask=ask,
                )
        except UnequalChains:
            edge.say(
                "note",
                "chains of different lengths: each trace is summed, and weighs as many draws "
                "as it has",
            )
            traces = [
                list(files)
                for files in (zip(sources, beside, strict=True) if beside else zip(sources))
            ]
            tree = sum_traces(
                traces, None, selection, chosen, model, option, allow_bad_scores
            ).to_datatree()
            selection, chosen = Selection({}, None, None), options.MethodName.AUTO.value
        refuse_evidence(sources[0], tree)
        with keeping(sources[0], lambda: tree):
            reduced = reduce_tree(tree, selection, beyond, chosen, allow_bad_scores)
            if as_json:
                _print_json(
                    {
                        "quantities": [
                            q for e in reduced.estimates for q in e.to_json_dict()["quantities"]
                        ]
                    },
                    out,
                )
            else:
                print(estimates_text(reduced.printed), file=out)
            if output is not None:  # after the table, which no fault in writing may cost
                out.flush()
                with phase(f"writing {output}"):
                    mcmcpost.save_tree(tree_with(tree, reduced), output)


@app.command("moments")
def add_moments(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Traces (.nc, .zarr, .csv) of one posterior, of any lengths."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New file of sums, .nc or .zarr.")],
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="SUMS",
            help="Add to the sums of this file; its draws, and other quantities, are left out.",
        ),
    ] = None,
    var_names: options.VarNames = None,
    filter_vars: options.FilterVars = None,
    expect: options.Expect = None,
    method: options.Method = options.MethodName.AUTO,
    model: options.ModelOf = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
    allow_bad_scores: options.AllowBadScores = False,
    option: options.Options = None,
) -> None:
    """Sum over traces what `reduce` needs of them, without their draws. Files of sums are given to
    `reduce` later."""
    with _program() as out:
        import mcmcpost
        from mcmcpost.app.commands import sum_traces, summed_expressions, sums_with_expressions
        from mcmcpost.app.edge import phase
        from mcmcpost.app.expressions import parse_expressions
        from mcmcpost.app.quantities import Selection
        from mcmcpost.core.runtime import counts_text

        expressions = expect or summed_expressions(append)
        selection = Selection(parse_expressions(expressions), var_names, filter_vars)
        edge.check_output(output)
        # The same draws twice would halve the variance of every error.
        edge.check_distinct("moments", list(map(os.path.realpath, sources)), "traces")
        chosen = options.with_data(option, data)
        total = sum_traces(
            [[source] for source in sources],
            append,
            selection,
            method.value,
            model,
            chosen,
            allow_bad_scores,
        )
        if as_json:
            _print_json(total.counts, out)
        else:
            print(counts_text(total.counts), file=out)
        with phase(f"writing {output}"):
            mcmcpost.save_tree(sums_with_expressions(total, expressions), output)


@app.command()
def evidence(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            callback=options.named,
            help="Traces (.nc, .zarr, .csv) with --model, ladders, model files, or what -o or "
            "--json has stored.",
        ),
    ],
    output: options.Output = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py|FILE.stan",
            callback=options.named,
            help="Model of the traces: one for all, or one for each in order.",
        ),
    ] = None,
    data: options.Data = None,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="Also sample a ladder of temperatures, from a normal fitted to each trace to its "
            "posterior.",
        ),
    ] = False,
    rungs: Annotated[
        int | None,
        typer.Option(
            help=f"Temperatures of the ladder [default: {edge.LADDER['rungs']}; with "
            "--ladder, as many as it needs].",
            min=2,
        ),
    ] = None,
    exchange: Annotated[
        int | None,
        typer.Option(
            help="Swap neighbouring temperatures every so many iterations [default: never].", min=1
        ),
    ] = None,
    path: Annotated[
        options.PathName | None,
        typer.Option(
            help="Answer of a ladder: all draws pooled, or rung by rung; auto pools where rungs "
            f"overlap [default: {options.PathName.AUTO}]."
        ),
    ] = None,
    method: Annotated[
        options.MethodName | None,
        typer.Option(help="Control variate of each rung, or of a bridge [default: chosen]."),
    ] = None,
    as_json: options.AsJson = False,
    allow_bad_scores: options.AllowBadScores = False,
    warmup: options.Warmup = None,
    draws: Annotated[
        int | None,
        typer.Option(
            help=f"Draws per chain and rung to keep [default: {edge.LADDER['draws']}].", min=1
        ),
    ] = None,
    chains: options.Chains = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help=f"Seed of the sampler, or of a bridge [default: {edge.POSTERIOR['seed']}].",
            min=0,
            max=edge.LARGEST_SEED,
        ),
    ] = None,
    option: options.Options = None,
) -> None:
    """Print the log evidence of a trace, of a ladder, or of a model file sampled first; of several,
    compare them.

    An evidence that is stored in a file is printed as it is, unless --method, --path or --model ask
    for another.
    """
    with _program() as out:
        import mcmcpost
        from mcmcpost.app.commands import (
            compare,
            comparison_text,
            evidence_text,
            open_sources,
            source_evidence,
        )
        from mcmcpost.app.edge import phase

        edge.check_output(output)
        # A file holds one evidence: which of several it is of could not be told.
        if output is not None and len(sources) > 1:
            raise InputError(
                f"--output: expected one source, got {len(sources)}. Write them one by one."
            )
        edge.check_distinct("evidence", list(map(os.path.realpath, sources)), "sources")
        given = {
            "rungs": rungs,
            "warmup": warmup,
            "draws": draws,
            "chains": chains,
            "seed": seed,
            "exchange": exchange,
        }
        choice = None if method is None else method.value
        option, evidences = options.with_data(option, data), {}
        with ExitStack() as stack:
            # A stored evidence is shown as it is, unless an option asks for what it does not hold.
            again = path is not None or choice is not None or allow_bad_scores
            opened = open_sources(
                sources,
                model or [],
                given,
                option,
                stack,
                estimate=path,
                with_ladder=ladder,
                again=again,
            )
            for source in opened:
                estimate = source_evidence(
                    source,
                    option,
                    path=path or options.PathName.AUTO,
                    method=choice,
                    seed=seed,
                    allow_bad_scores=allow_bad_scores,
                )
                evidences[str(source.path)] = estimate
            comparison = compare(evidences)
            if as_json:
                records = [{"source": name} | e.to_json_dict() for name, e in evidences.items()]
                table = None if comparison is None else comparison.to_dataframe().reset_index()
                _print_json(
                    {"evidence": records}
                    | ({} if table is None else {"comparison": table.to_dict("records")}),
                    out,
                )
            else:
                texts = [evidence_text(name, e) for name, e in evidences.items()]
                texts += [] if comparison is None else [comparison_text(comparison)]
                print("\n\n".join(texts), file=out)
            if output is not None:  # of one source
                out.flush()
                # The loop has left its only source and estimate behind.
                kept = source.tree if source.ladder is None else source.ladder
                with phase(f"writing {output}"):
                    mcmcpost.save_tree(estimate.to_datatree(kept), output)


@app.command()
def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="A trace with scores (.nc, .zarr, .csv), or files of its chains; a ladder, or an "
            "evidence (.json).",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New file, .html.")],
    var_names: options.VarNames = None,
    filter_vars: options.FilterVars = None,
    expect: options.Expect = None,
    method: options.Method = options.MethodName.AUTO,
    quantile: options.Quantile = None,
    ci: options.Ci = None,
    ci_kind: options.CiKind = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output if it exists.")
    ] = False,
    model: options.ModelOf = None,
    data: options.Data = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
    allow_bad_scores: options.AllowBadScores = False,
) -> None:
    """Write one self-contained HTML file about a trace: estimates, errors, scores, convergence."""
    with _program() as out:
        from mcmcpost.app.commands import report_facts, report_line
        from mcmcpost.app.expressions import parse_expressions
        from mcmcpost.app.quantities import Selection
        from mcmcpost.core.arguments import check_probabilities
        from mcmcpost.distributions import resolve_interval

        edge.check_distinct("report", list(map(os.path.realpath, sources)), "traces")
        facts = report_facts(
            sources,
            output,
            Selection(parse_expressions(expect or []), var_names, filter_vars),
            method.value,
            model=model,
            options=options.with_data(option, data),
            probabilities=check_probabilities(quantile) if quantile else None,
            interval=resolve_interval("--ci", ci, ci_kind),
            overwrite=force,
            allow_bad_scores=allow_bad_scores,
        )
        if as_json:
            _print_json(facts, out)
        else:
            print(report_line(facts), file=out)


@app.command()
def info(
    trace: Annotated[Path, typer.Argument(help="A trace or a ladder (.nc, .zarr, .csv).")],
    as_json: options.AsJson = False,
) -> None:
    """Print what is in a file: variables, sampler, convergence, structure, and whether its scores
    pass the gate."""
    with _program() as out:
        from mcmcpost.app.edge import phase
        from mcmcpost.app.info import describe, description
        from mcmcpost.core.runtime import json_able

        with phase("reading and testing"):
            facts = describe(trace)
        if as_json:
            _print_json(json_able(facts), out)
        else:
            print(description(facts), file=out)


@app.command()
def doctor(as_json: options.AsJson = False) -> None:
    """Print what mcmcpost runs on: devices, precision, versions, and which optional packages are
    here."""
    with _program() as out:
        from mcmcpost.app.edge import doctor_text, examine

        facts = examine()
        if as_json:
            _print_json(facts, out)
        else:
            print(doctor_text(facts), file=out)


@contextmanager
def _program() -> Iterator[TextIO]:
    """Switch to 64 bits, use the compilation cache of the user, and print each warning as one line
    on stderr; return where results are printed.

    Of several processes only the first prints. What a model file prints goes to stderr, since it
    is no result.
    """
    from mcmcpost.app.edge import phase

    # Importing JAX and the samplers takes seconds, in which a terminal would look dead.
    with phase("starting"):
        import jax

        edge.join_processes()  # before anything is computed

        import mcmcpost.trees  # noqa: F401  (with all that takes long to import)

    from mcmcpost.core.devices import is_first_process

    # A program may set what a library must not: posteriors need the digits, and a person's process
    # is not this one.
    jax.config.update("jax_enable_x64", True)
    # the error it prints is raised too
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    directory = edge.cache_directory()
    # Compiled programs are kept between commands, which compile the same ones anew each time
    # otherwise.
    if directory is not None and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(directory))
        # by default those below a second are lost
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    with ExitStack() as stack:
        out = sys.stdout
        # Output of several processes would be mixed line by line.
        if not is_first_process():
            out = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stderr(out))
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(warnings.catch_warnings())
        # `catch_warnings` puts it back: tests run many commands in one process.
        warnings.showwarning = _once()
        yield out


def _once() -> Callable[..., None]:
    """Return a function that prints a warning which it has not printed before.

    A command of several public functions is one to who typed it, and each looks at the trace.
    """
    told: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in told:
            told.add(str(message))
            edge.say("warning", message)

    return show


def _print_json(facts: dict[str, Any], out: Any) -> None:
    # JSON has no NaN. Python would print one, which other readers refuse.
    known = {k: None if v != v else v for k, v in facts.items()}
    print(json.dumps(known, indent=2, allow_nan=False), file=out)
