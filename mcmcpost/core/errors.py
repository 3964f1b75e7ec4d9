"""The vocabulary that every layer shares: errors about the input of a user, statuses of results,
and warnings.

Shapes, everywhere: ``c`` chains, ``n`` draws, ``d`` unconstrained parameters, ``p`` integrands,
``k`` right-hand sides, ``m`` training or inducing points, ``q`` basis functions.
"""

import functools
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path


class InputError(ValueError):
    """An argument of a user has a value that cannot be used.

    The message says where, what was expected, what was got, and the cure: four arguments, or one
    sentence of all.
    """

    def __init__(
        self, where: str, expected: str | None = None, got: object = None, cure: str = ""
    ) -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


class InputTypeError(TypeError):
    """An argument of a user has a type that cannot be used; the arguments are those of
    `InputError`."""

    def __init__(
        self, where: str, expected: str | None = None, got: object = None, cure: str = ""
    ) -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


class MissingPackageError(ImportError):
    """An optional package is not installed; the arguments are those of `InputError`."""

    def __init__(
        self, where: str, expected: str | None = None, got: object = None, cure: str = ""
    ) -> None:
        super().__init__(where if expected is None else fault(where, expected, got, cure))


ADDED = (
    "Means of all draws come from sums, which add whatever the lengths: "
    "mp.expectation(mp.moments(one) + mp.moments(other)), on the command line mcmcpost reduce "
    "ONE OTHER, a file for each length and nothing but means asked for."
)
"""What to do with chains of different lengths."""


def fault(where: str, expected: str, got: object, cure: str) -> str:
    """Return a message that says where, what was expected, what was got, and the cure."""
    return f"{where}: expected {expected}, got {got}. {cure}"


def written_whole[**P, R](
    what: str, cure: str, where: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function that reads stored objects refuse those without one of their parts.

    what : such as ``an evidence``. where : by default the first argument of the function.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except KeyError as error:
                # xarray says a sentence of the name, others the name alone.
                name = re.search(r"'([^']+)'", str(error))
                got = f"one without {name[1] if name else error}"
                expected = f"{what} that this version of mcmcpost wrote"
                raise InputError(where or str(args[0]), expected, got, cure) from error

        return wrapped

    return decorate


class Status(StrEnum):
    """What happened to one quantity; the only values a ``status`` field can take."""

    CONTROLLED = "controlled"
    """The control variate reduced the error."""
    EXACT = "exact"
    """The control variate reproduces the integrand up to rounding at every draw. What the density
    does where no draw is, as beyond a kink of a Laplace prior that none has crossed, is not in the
    error."""
    CONSTANT = "constant"
    """The integrand has one value at every draw, up to rounding, as the diagonal of a correlation
    matrix."""
    ON_TRUST = "on_trust"
    """As ``exact``, if the scores are right: nothing in the trace verifies them. A recorded log
    density would."""
    HEAVY_TAIL = "heavy_tail"
    """The Pareto k̂ of the integrand is too large for its draws, as where its variance is infinite:
    the error of the mean, controlled or plain, may be far too small, and the more so the fewer
    draws the tail has."""
    UNSEEN = "unseen"
    """An indicator that no draw contradicts: the error is one over the effective sample size, not
    zero. Or a quantile with fewer than three effective draws beyond it: its error rests on the tail
    that others show."""
    PLAIN = "plain"
    """No gain was found: the plain posterior mean is returned."""
    REGULARISED = "regularised"
    """Draws are too few for an unpenalised fit of this basis; a penalty was chosen."""
    NUGGET_RAISED = "nugget_raised"
    """The kernel system was singular at the requested nugget, which was raised."""
    NOT_CONVERGED = "not_converged"
    """An iterative solve stopped at its budget; the reported error is that of the result it
    returned."""
    TOO_FEW_DRAWS = "too_few_draws"
    """Too few distinct draws for any control variate of the requested kind: the plain mean is
    returned."""
    UNDEFINED = "undefined"
    """The integrand is not finite at some draw: NaN in, NaN out."""
    BAD_SCORES = "bad_scores"
    """The scores failed the score gate, or the controlled mean contradicts the plain one: the plain
    mean is returned, unless the caller overrode the gate."""


REPRODUCED = (Status.EXACT, Status.ON_TRUST, Status.CONSTANT)
"""Statuses of an integrand that is known up to rounding."""

WITHOUT_GAIN = (
    *REPRODUCED,
    Status.HEAVY_TAIL,
    Status.UNSEEN,
    Status.TOO_FEW_DRAWS,
    Status.UNDEFINED,
    Status.BAD_SCORES,
)
"""Statuses whose gain is not reported: it is rounding, or its error cannot be trusted."""

TRUSTED = (Status.CONTROLLED, Status.REGULARISED, Status.NUGGET_RAISED, Status.PLAIN)
"""Statuses whose error is believed, and is not at rounding."""

WORST_FIRST = (
    Status.UNDEFINED,
    Status.BAD_SCORES,
    Status.TOO_FEW_DRAWS,
    Status.HEAVY_TAIL,
    Status.NOT_CONVERGED,
    Status.NUGGET_RAISED,
    Status.REGULARISED,
    Status.CONTROLLED,
    Status.PLAIN,
    Status.UNSEEN,
    Status.ON_TRUST,
    Status.EXACT,
    Status.CONSTANT,
)
"""What is made of several parts has the first of their statuses."""


_PACKAGE = str(Path(__file__).parents[1])

_BETWEEN = ("beartype", "equinox", "jax", "jaxtyping", "numpyro")
"""Packages that call this one on a user's behalf, or wrap its functions."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and give as the place the nearest caller outside this package and the packages that
    call it.

    Python shows a warning once for every place: a place inside this package would silence all later
    calls.
    """
    folders = [
        Path(path)
        for name in _BETWEEN
        if (path := getattr(sys.modules.get(name), "__file__", None))
    ]
    inside = (_PACKAGE, *(str(folder.parent) for folder in folders), "<@beartype(")
    warnings.warn(message, category, skip_file_prefixes=inside)


class UnequalChains(UserWarning):
    """Chains differ in length, and draws that not all of them have are left out."""


def shortest(where: str, lengths: Sequence[int]) -> int:
    """Return how many draws all chains have, and warn of those that are left out."""
    least = min(lengths)
    if left := sum(lengths) - least * len(lengths):
        counted = [f"{number} of {length:,}" for length, number in Counter(lengths).items()]
        warn(
            f"{where}: chains of different lengths, {', '.join(counted)} draws. The first "
            f"{least:,} of each are kept, and {left:,} of {sum(lengths):,} draws left out. {ADDED}",
            UnequalChains,
        )
    return least
