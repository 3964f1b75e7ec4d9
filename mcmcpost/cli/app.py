"""The command line: thin over the public functions. Heavy imports wait until a command runs."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcmcpost._core.errors import InputError
from mcmcpost._core.text import one_line
from mcmcpost.cli.edge import cache_directory, is_user_error, model_file_fault

if TYPE_CHECKING:
    import pandas
    import xarray

    from mcmcpost.control import Estimate


app = typer.Typer(
    help="What happens after MCMC: Stein control variates with honest errors.",
    epilog="Exit codes: 0 done; 1 a fault of mcmcpost, with a traceback; 2 bad input or usage, in one line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class MethodName(StrEnum):
    """The keys of `mcmcpost.METHODS`, which is too heavy to import for ``--help``."""

    AUTO = "auto"
    PLAIN = "plain"
    ZV1 = "zv1"
    ZV2 = "zv2"
    ZV3 = "zv3"
    CF = "cf"
    SECF = "secf"


class PathName(StrEnum):
    """The keys of `mcmcpost.evidence.PATHS`, likewise."""

    AUTO = "auto"
    POOLED = "pooled"
    RUNGS = "rungs"


Warmup = Annotated[int | None, typer.Option(help="Adaptation draws per chain [default: 500].", min=1)]


Draws = Annotated[int | None, typer.Option(help="Draws per chain to keep [default: 1000].", min=1)]


Chains = Annotated[int | None, typer.Option(help="Number of chains [default: 4].", min=1)]


Seed = Annotated[int | None, typer.Option(help="Seed of the sampler [default: 0].", min=0)]


Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Argument of the model file's data(), as priors=stan."),
]


Expect = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=EXPRESSION", help="Add an expectation, as 'p=alpha > 0.5'. Repeatable."),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


ModelOf = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE.py", help="Model file of a trace without scores: they are computed from it."),
]


Output = Annotated[Path | None, typer.Option("--output", "-o", help="New file, .nc or .zarr; nothing is overwritten.")]


def main() -> None:
    """Run the command line: a user's error is one line and exit code 2, a fault of ours a traceback."""
    try:
        app()
    except Exception as error:
        message = model_file_fault(error) or (str(error) if is_user_error(error) else None)
        if os.environ.get("MCMCPOST_DEBUG") or message is None:
            raise
        print(f"mcmcpost: error: {one_line(message)}", file=sys.stderr)
        sys.exit(2)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"mcmcpost {version('mcmcpost')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[  # noqa: ARG001  (typer calls back, and passes None on)
        bool | None,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", hidden=True, help="Show tracebacks of user errors.")] = False,
) -> None:
    if debug:
        os.environ["MCMCPOST_DEBUG"] = "1"


@app.command()
def sample(
    model: Annotated[Path, typer.Argument(help="Model file: a Python file with model() and data().")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New file, .nc or .zarr; nothing is overwritten.")],
    warmup: Warmup = None,
    draws: Draws = None,
    chains: Chains = None,
    seed: Seed = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Sample a model file with NUTS and write the trace, scores kept."""
    with _program():
        import mcmcpost
        from mcmcpost.cli.source import sample_model

        _check_output(output)
        tree = sample_model(model, warmup, draws, chains, seed, option)
        convergence = _report_convergence(tree)
        mcmcpost.save_tree(tree, output)
        shape = tree["posterior"].sizes
        if as_json:
            facts = {"path": str(output), "chains": shape["chain"], "draws": shape["draw"]}
            _print_json(facts | convergence)
        else:
            print(f"{output}: {shape['chain']} chains of {shape['draw']} draws")


@app.command()
def reduce(
    source: Annotated[Path, typer.Argument(metavar="TRACE_OR_MODEL", help="A trace (.nc, .zarr) or a model file.")],
    output: Output = None,
    expect: Expect = None,
    method: Annotated[MethodName, typer.Option(help="Control variate.")] = MethodName.AUTO,
    quantile: Annotated[
        list[float] | None, typer.Option(help="Add this quantile of every quantity. Repeatable.")
    ] = None,
    model: ModelOf = None,
    as_json: AsJson = False,
    allow_bad_scores: Annotated[bool, typer.Option(help="Go on where the scores fail the gate.")] = False,
    warmup: Warmup = None,
    draws: Draws = None,
    chains: Chains = None,
    seed: Seed = None,
    option: Options = None,
) -> None:
    """Print the posterior expectations of a trace, or of a model file sampled first, with smaller errors."""
    with _program():
        import mcmcpost
        from mcmcpost.cli.expressions import parse_expression
        from mcmcpost.cli.quantities import named_scalars
        from mcmcpost.cli.source import load_trace, sample_model

        expressions = dict(map(parse_expression, _distinct(expect or [])))
        probabilities = _probabilities(quantile or [])
        if output is not None:
            _check_output(output)
        if source.suffix == ".py":
            if model is not None:
                raise InputError(f"--model: expected a trace, got the model file {source}. Leave --model out.")
            tree = sample_model(source, warmup, draws, chains, seed, option, allow_bad_scores=allow_bad_scores)
        elif any(value is not None for value in (warmup, draws, chains, seed)):
            raise InputError(
                f"reduce: sampling options belong to a model file, got the trace {source}. Leave them out."
            )
        else:
            tree = load_trace(source, model, option, allow_bad_scores=allow_bad_scores)
        _report_convergence(tree)
        values = named_scalars(tree, expressions)
        estimates = [mcmcpost.expectation(tree, values, method=method.value, allow_bad_scores=allow_bad_scores)]
        if probabilities:
            estimates.append(
                mcmcpost.quantile(tree, probabilities, values, method=method.value, allow_bad_scores=allow_bad_scores)
            )
        if output is not None:
            mcmcpost.save_tree(_with_results(tree, estimates), output)
        _print_estimates(estimates, as_json)


@app.command()
def evidence(
    sources: Annotated[
        list[Path], typer.Argument(metavar="LADDER_OR_MODEL...", help="Ladders (.nc, .zarr) or model files.")
    ],
    output: Output = None,
    rungs: Annotated[int | None, typer.Option(help="Rungs of the ladder (i/(n−1))^5 [default: 16].", min=2)] = None,
    exchange: Annotated[
        int | None, typer.Option(help="Iterations between swaps of neighbouring rungs [default: none].", min=1)
    ] = None,
    path: Annotated[PathName, typer.Option(help="What is reported first.")] = PathName.AUTO,
    method: Annotated[
        MethodName | None, typer.Option(help="Control variate of the rungs one by one [default: chosen].")
    ] = None,
    as_json: AsJson = False,
    allow_bad_scores: Annotated[bool, typer.Option(help="Go on where the scores fail the gate.")] = False,
    warmup: Warmup = None,
    draws: Annotated[int | None, typer.Option(help="Draws per chain and rung to keep [default: 500].", min=1)] = None,
    chains: Chains = None,
    seed: Seed = None,
    option: Options = None,
) -> None:
    """Print the log evidence of a ladder, or of a model file sampled first; of several, compare them."""
    with _program():
        import mcmcpost
        from mcmcpost.cli.evidence import comparison_text, evidence_text, sample_ladder_of

        settings = {
            "rungs": rungs, "warmup": warmup, "draws": draws, "chains": chains, "seed": seed, "exchange": exchange
        }  # fmt: skip
        if output is not None:
            if len(sources) > 1:
                raise InputError(f"--output: expected one source, got {len(sources)}. Write them one by one.")
            _check_output(output)
        names = [str(source) for source in sources]
        if len(set(names)) < len(names):
            raise InputError(f"evidence: expected distinct sources, got {names}. Name each once.")
        found = {}
        for name, source in zip(names, sources, strict=True):
            if source.suffix == ".py":
                tree = sample_ladder_of(source, settings, option or [])
            elif any(value is not None for value in (*settings.values(), option)):
                raise InputError(
                    f"evidence: sampling options belong to a model file, got the ladder {source}. Leave them out."
                )
            else:
                tree = mcmcpost.load_tree(source)
            choice = None if method is None else method.value
            found[name] = mcmcpost.log_evidence(tree, choice, path=path.value, allow_bad_scores=allow_bad_scores)
            if output is not None:
                mcmcpost.save_tree(found[name].to_datatree(tree), output)
        comparison = mcmcpost.compare_evidence(found) if len(found) > 1 else None
        if as_json:
            records = [{"source": name} | e.to_json_dict() for name, e in found.items()]
            table = None if comparison is None else comparison.to_dataframe().reset_index()
            _print_json({"evidence": records} | ({} if table is None else {"comparison": table.to_dict("records")}))
        else:
            texts = [evidence_text(name, e) for name, e in found.items()]
            print("\n\n".join([*texts, *([comparison_text(comparison)] if comparison is not None else [])]))


@app.command()
def report(
    trace: Annotated[Path, typer.Argument(help="A trace with scores, or a ladder (.nc, .zarr).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New file, .html.")],
    expect: Expect = None,
    method: Annotated[MethodName, typer.Option(help="Control variate.")] = MethodName.AUTO,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
    model: ModelOf = None,
    option: Options = None,
    as_json: AsJson = False,
    allow_bad_scores: Annotated[bool, typer.Option(help="Go on where the scores fail the gate.")] = False,
) -> None:
    """Write one self-contained HTML file about a trace: estimates, errors, scores, convergence."""
    with _program():
        from mcmcpost.cli.expressions import parse_expression
        from mcmcpost.cli.report import report_facts, report_line

        expressions = dict(map(parse_expression, _distinct(expect or [])))
        facts = report_facts(
            trace,
            output,
            expressions,
            method.value,
            model=model,
            options=option,
            overwrite=force,
            allow_bad_scores=allow_bad_scores,
        )
        if as_json:
            _print_json(facts)
        else:
            print(report_line(facts))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Print what mcmcpost runs on: devices, precision, versions, and which optional packages are here."""
    with _program():
        from mcmcpost.cli.doctor import doctor_text, examine

        facts = examine()
        if as_json:
            _print_json(facts)
        else:
            print(doctor_text(facts))


@contextmanager
def _program() -> Iterator[None]:
    """Be a program: 64 bits, a compilation cache of the user's, warnings as one line each on stderr."""
    import jax

    jax.config.update("jax_enable_x64", True)
    directory = cache_directory()
    if directory is not None and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(directory))
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"mcmcpost: warning: {one_line(message)}", file=sys.stderr)


def _check_output(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    from mcmcpost._core.checks import check_writable

    if path.suffix.lower() not in (".nc", ".zarr"):
        raise InputError(f"--output: expected a name ending in .nc or .zarr, got {path}. The suffix is the format.")
    if path.exists():
        raise FileExistsError(f"--output: expected a new file, got {path}, which exists. Nothing is overwritten.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output: expected an existing folder, got {path.parent}. Make it first.")
    check_writable("--output", path.parent)


def _distinct(expect: list[str]) -> list[str]:
    names = [text.partition("=")[0].strip() for text in expect]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"--expect: expected distinct names, got {repeated} twice. Rename one.")
    return expect


def _probabilities(quantile: list[float]) -> list[float]:
    if not all(0 < p < 1 for p in quantile):
        raise InputError(
            f"--quantile: expected numbers between 0 and 1, got {quantile}. A percentage is divided by 100."
        )
    return quantile


def _report_convergence(tree: "xarray.DataTree") -> dict[str, Any]:
    from mcmcpost.io.checks import check_convergence

    convergence = check_convergence(tree)
    if convergence.complaint:
        print(f"mcmcpost: warning: {convergence.complaint}", file=sys.stderr)
    return {"max_rhat": convergence.max_rhat, "divergences": convergence.divergences}


def _with_results(tree: "xarray.DataTree", estimates: "list[Estimate]") -> "xarray.DataTree":

    result = estimates[0].to_datatree(tree)
    for more in estimates[1:]:
        result["control_variates_quantiles"] = more.to_datatree()["control_variates"]
    return result


def _print_estimates(estimates: "list[Estimate]", as_json: bool) -> None:
    import pandas

    if as_json:
        _print_json({"quantities": [q for e in estimates for q in e.to_json_dict()["quantities"]]})
    else:
        print(_format(pandas.concat([estimate.to_dataframe() for estimate in estimates])).to_string())


def _print_json(facts: dict[str, Any]) -> None:
    print(json.dumps({k: None if v != v else v for k, v in facts.items()}, indent=2, allow_nan=False))


def _format(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return `table` as text: every mean to the digits that its error supports."""
    import pandas

    from mcmcpost._core.text import digits_of, significant

    return pandas.DataFrame(
        {
            "mean": list(map(digits_of, table["mean"], table["mcse"])),
            "sd": [significant(x, 3) for x in table["sd"]],
            "mcse": [significant(x, 2) for x in table["mcse"]],
            "mean_cv": list(map(digits_of, table["mean_cv"], table["mcse_cv"])),
            "mcse_cv": [significant(x, 2) for x in table["mcse_cv"]],
            "gain": [significant(x, 3) for x in table["gain"]],
            "method": list(map(str, table["method"])),
            "status": list(map(str, table["status"])),
        },
        index=pandas.Index(list(table.index)),
    )
