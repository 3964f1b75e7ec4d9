"""The options that several commands share, and their values. Imports nothing heavy: ``--help``
reads it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from mcmcpost.app.edge import LARGEST_SEED, POSTERIOR


class MethodName(StrEnum):
    """The keys of `mcmcpost.METHODS`, which is too heavy to import for ``--help``."""

    AUTO = "auto"
    PLAIN = "plain"
    ZV1 = "zv1"
    ZV2 = "zv2"
    ZV3 = "zv3"
    VF1 = "vf1"
    VF2 = "vf2"
    CF = "cf"
    SECF = "secf"
    STRUCTURED = "structured"


class SpreadName(StrEnum):
    """The keys of `mcmcpost.control.KINDS`."""

    SD = "sd"
    VARIANCE = "variance"
    COVARIANCE = "covariance"
    CORRELATION = "correlation"


class PathName(StrEnum):
    """The keys of `mcmcpost.evidence.PATHS`, which is too heavy to import for ``--help``."""

    AUTO = "auto"
    POOLED = "pooled"
    RUNGS = "rungs"


Warmup = Annotated[
    int | None,
    typer.Option(help=f"Adaptation draws per chain [default: {POSTERIOR['warmup']}].", min=1),
]

Draws = Annotated[
    int | None,
    typer.Option(help=f"Draws per chain to keep [default: {POSTERIOR['draws']}].", min=1),
]

Chains = Annotated[
    int | None, typer.Option(help=f"Number of chains [default: {POSTERIOR['chains']}].", min=1)
]

Seed = Annotated[
    int | None,
    typer.Option(
        help=f"Seed of the sampler [default: {POSTERIOR['seed']}].", min=0, max=LARGEST_SEED
    ),
]

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An argument of the model file's data(), such as priors=stan. Repeatable.",
    ),
]

Expect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=EXPRESSION",
        help="Add the expectation of an expression, such as 'p=alpha > 0.5'. Repeatable.",
    ),
]

VarNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A variable to estimate, or ~NAME for all but it. Repeatable [default: all].",
    ),
]

FilterVars = Annotated[
    Literal["like", "regex"] | None,
    typer.Option(
        help="Read --var-names as parts of names (like) or as regular expressions (regex)."
    ),
]

Quantile = Annotated[
    list[float] | None,
    typer.Option(help="Add this quantile of every quantity, such as 0.05. Repeatable."),
]

Ci = Annotated[
    float | None,
    typer.Option(
        help="Add the bounds of the interval of this probability of every quantity, such as 0.89 "
        "[default: none; with --ci-kind that of ArviZ]."
    ),
]

CiKind = Annotated[
    Literal["eti", "hdi"] | None,
    typer.Option(
        help="Interval with equal tails (eti) or the shortest (hdi) [default: that of ArviZ]."
    ),
]

Spread = Annotated[
    list[SpreadName] | None,
    typer.Option(
        help="Add these of the quantities, covariances and correlations of all pairs. Repeatable."
    ),
]

Elpd = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Add the expected log predictive density, each observation left out, of this "
        "variable's log likelihood.",
    ),
]

Method = Annotated[
    MethodName, typer.Option(help="Control variate; auto chooses one for each quantity.")
]

AllowBadScores = Annotated[
    bool,
    typer.Option(
        help="Continue although the scores fail the score gate, which `mcmcpost info` prints."
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def named[Sources: (Path | None, list[Path] | None)](given: Sources) -> Sources:
    """Return paths, those of shipped models where a name such as lotka-volterra stands for one."""
    if given is None:
        return None
    from mcmcpost.examples import named_model

    # A file of that name in the current folder comes first: a clone's own model must not be
    # shadowed.
    return named_model(given) if isinstance(given, Path) else [named_model(one) for one in given]


ModelOf = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE.py|FILE.stan",
        callback=named,
        help="Model file, or Stan program with --data, of a trace without scores: they are "
        "computed from it.",
    ),
]

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE.json",
        help="Data of a Stan program; of a model file its option `data`.",
    ),
]


def with_data(option: list[str] | None, data: Path | None) -> list[str] | None:
    """Return the options of a model with the file of its data, which is one of them."""
    return option if data is None else [*(option or []), f"data={data}"]


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="New file, .nc or .zarr; nothing is overwritten."),
]
