"""Precision: functions run in float64, points as floating JAX arrays, units, and what is equal up
to rounding."""

import functools
import gc
import inspect
import traceback
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from mcmcpost.core.arguments import HUGE, as_real
from mcmcpost.core.errors import InputError, InputTypeError, warn


def in_float64[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit JAX and return its arrays as NumPy arrays.

    Float64 JAX arrays must not leave an ``enable_x64`` block (ordinary operations outside would
    truncate them), so every JAX array in the result, a pytree, is handed back as a NumPy array. The
    global configuration is untouched.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return jax.tree.map(_to_numpy, function(*args, **kwargs))

    return wrapped


NOT_TRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a function needs the numbers themselves."""


def not_traceable(
    where: str, name: str, function: Callable[..., object], error: Exception
) -> InputError:
    """Return the error of a user's function that needs numbers where JAX has none yet: its own
    words, of many lines, name neither the function nor what to write."""
    # The innermost line of the function's file: what it calls there may be NumPy or JAX.
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    place = f" in line {lines[-1]} of {file}" if lines else ""
    return InputError(
        where,
        f"`{name}` in operations of jax.numpy",
        f"{type(error).__name__}{place}",
        "Write jnp.exp for np.exp, and jnp.where for if.",
    )


MIXED = ("types of different precisions", "RuntimeProgramInputMismatch")
"""What XLA's errors say of dtypes that differ, which JAX itself has let pass."""


def in_either_precision[R](run: Callable[[], R]) -> R:
    """Return ``run()`` under 64-bit JAX, or under 32-bit JAX where a user's function works in that
    alone.

    As long as a compiled program lives, JAX takes each NumPy array that it reads, found by
    identity, in the precision of that program. After a run of NumPyro in float32, the data of the
    model are float32 in every precision, and mixed with float64 parameters they are an error
    (``lax.mul requires arguments to have the same dtypes``). The float32 result has the precision
    that the run had. `run` must compile what it evaluates, and not keep what a failed attempt has
    made.
    """
    try:
        with jax.enable_x64(True):
            return run()
    except (InputError, InputTypeError, *NOT_TRACEABLE):
        raise
    except (TypeError, ValueError):  # dtypes that differ, when traced or when lowered
        pass
    except jax.errors.JaxRuntimeError as error:
        # as of a failed solve, which is of no precision
        if not any(text in str(error) for text in MIXED):
            raise
    # the frames of the failed attempt hold arrays that were new to JAX, in the other precision
    gc.collect()
    try:
        with jax.enable_x64(False):
            return run()
    except (TypeError, ValueError):
        pass
    with jax.enable_x64(True):
        # what fails in both is no matter of precision: as it is, with its own traceback
        return run()


LARGEST_ROUNDING = 1e-3
"""Nats by which a log density may be rounded without a word: less than an evidence is wanted to."""


def check_rounding(where: str, log_density: np.ndarray) -> None:
    """Refuse a log density that is too large for double precision, and warn of one that was
    evaluated in single precision (see `in_either_precision`) and is too large for that.

    In single precision a sum over a million observations of −1e6 nats is rounded by 0.1, as much as
    some evidences are asked about.
    """
    finite = log_density[np.isfinite(log_density)]
    # Where the density is highest: it may be as low as it likes at prior draws without any weight.
    rounding = (
        float(abs(finite.max())) * float(np.finfo(log_density.dtype).eps) if finite.size else 0.0
    )
    if rounding <= LARGEST_ROUNDING:
        return
    if log_density.dtype != np.float32:
        got = f"{finite.max():.3g}, whose digits end at {rounding:.2g} nats"
        cure = "Leave large constants out: they are added to the log evidence."
        raise InputError(where, f"a log density known to {LARGEST_ROUNDING} nats", got, cure)
    warn(
        f"{where}: the log density is evaluated in single precision, the only one in which JAX "
        f"knows the arrays that it reads, and rounded by more than {LARGEST_ROUNDING} nats. Switch "
        "jax_enable_x64 on at the start of the program, or pass the data as arguments of the model."
    )


def _to_numpy(leaf: object) -> object:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def as_points(where: str, name: str, points: object) -> jax.Array:
    """Return points (n, d) as a floating JAX array; a traced array is fine."""
    array = points if isinstance(points, jax.Array) else jnp.asarray(as_real(where, name, points))
    if array.ndim != 2:
        cure = "One coordinate is a column: x[:, None]."
        raise InputError(where, f"`{name}` of shape (n, d)", array.shape, cure)
    return (
        array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))
    )


def units_of(values: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    """Return a power of two of its size for each integrand whose variance would overflow or vanish,
    one for others."""
    with np.errstate(invalid="ignore"):
        size = np.maximum(values.max(axis=(0, 1)), -values.min(axis=(0, 1)))
    odd = np.isfinite(size) & (size > 0) & ((size >= HUGE) | (size <= 1 / HUGE))
    # Powers of two, by which a division is exact; 2^−1074 is the least number there is.
    _, exponent = np.frexp(np.where(odd, size, 1.0))
    return np.ldexp(1.0, np.where(odd, np.maximum(exponent - 2, -1074), 0))


def in_units(
    values: Float[np.ndarray, "c n p"], units: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "c n p"]:
    """Return values divided by their units, without a copy where all are one."""
    return values if (units == 1).all() else values / units


ROUNDINGS = 8.0
"""Units in the last place by which what is constant, or the same, may differ: those of a product of
matrices."""


def beyond_rounding(values: Float[np.ndarray, "c n p"]) -> Bool[np.ndarray, " p"]:
    """Return which series are finite and vary by more than the rounding of float64, of float32
    where they were that."""
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = values.min(axis=(0, 1)), values.max(axis=(0, 1))
        spread, size = high - low, np.maximum(high, -low)
    varies = (
        np.isfinite(low)
        & np.isfinite(high)
        & (spread > ROUNDINGS * np.finfo(np.float64).eps * size)
    )
    for j in np.flatnonzero(varies & (spread <= ROUNDINGS * np.finfo(np.float32).eps * size)):
        varies[j] = not _is_single(values[..., j])
    return varies


SHARE = 1e-3
"""Part of their spread by which two series that are the same may differ, however few digits they
have."""


def same_to_rounding(one: Float[np.ndarray, "c n"], two: Float[np.ndarray, "c n"]) -> bool:
    """Return whether two finite series differ nowhere by more than their rounding."""
    gap, size = np.abs(one - two).max(), np.abs(one).max()
    if gap > ROUNDINGS * np.finfo(np.float64).eps * size:
        near = gap <= min(ROUNDINGS * np.finfo(np.float32).eps * size, SHARE * np.ptp(one))
        return bool(near and _is_single(one) and _is_single(two))
    return True


TEXT_DIGITS = 12
"""Significant digits that no text file of rounded numbers has more of: CmdStan writes six, and
eight since 2.36."""


def digits_of_text(values: Float[np.ndarray, "..."]) -> int | None:
    """Return the significant digits that finite numbers were rounded to; None where they have more
    than `TEXT_DIGITS`.

    Judged by up to 200 of them, since the shortest decimal that a number is read from has the
    digits of the text.
    """
    flat = values.reshape(-1)
    subset = flat[np.linspace(0, flat.size - 1, min(flat.size, 200)).astype(int)]
    mantissas = (np.format_float_scientific(x, trim="-").partition("e")[0] for x in subset)
    most = max(sum(letter.isdigit() for letter in mantissa) for mantissa in mantissas)
    return most if most <= TEXT_DIGITS else None


def unit_of_text(values: Float[np.ndarray, "..."]) -> float:
    """Return one unit in the last place of the largest of finite numbers that were rounded, zero
    where none were."""
    digits, largest = digits_of_text(values), float(np.abs(values).max())
    return (
        0.0
        if digits is None or largest == 0
        else float(10.0 ** (np.floor(np.log10(largest)) + 1 - digits))
    )


def _is_single(series: np.ndarray) -> bool:
    """Return whether the numbers were float32: they are exact in it, and not all whole, as counts
    are."""
    with np.errstate(over="ignore"):
        return np.array_equal(series, series.astype(np.float32)) and not np.array_equal(
            series, np.rint(series)
        )
