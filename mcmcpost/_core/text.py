"""How numbers and counts are printed."""

import difflib
import math
from collections.abc import Iterable
from typing import Any


def one_line(message: object) -> str:
    """Return the message on one line."""
    return " ".join(str(message).split())


def did_you_mean(name: str, known: Iterable[object]) -> str:
    """Return a question about the known name that is most like `name`, and "" where none is."""
    alike = difflib.get_close_matches(name, list(map(str, known)), 1)
    return f"Did you mean {alike[0]!r}? " if alike else ""


def number_of_quantities(count: int) -> str:
    """Return how many quantities in words."""
    return "1 quantity" if count == 1 else f"{count} quantities"


def number_of_draws(chains: int, draws: int) -> str:
    """Return "1 chain of 500 draws", "4 chains of 1 draw"."""
    return f"{chains} chain{'s' * (chains != 1)} of {draws} draw{'s' * (draws != 1)}"


def significant(value: float, digits: int) -> str:
    """Return `value` with that many significant digits, without an exponent where it stays readable."""
    if not math.isfinite(value):
        return str(float(value))
    if value == 0 or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}" if value else "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


UNITS = ((120.0, 1.0, "s"), (7_200.0, 60.0, "min"), (172_800.0, 3_600.0, "h"), (6.3e7, 86_400.0, "days"))
"""Units of time: below how many seconds each is used, how many seconds it has, and its name; years beyond."""


def duration(seconds: float) -> str:
    """Return a time to two significant digits, in the unit that reads best."""
    size, name = next(((size, name) for below, size, name in UNITS if seconds < below), (31_557_600.0, "years"))
    value = seconds / size
    return f"{significant(value, 2) if value < 100 else f'{float(f"{value:.1e}"):,.0f}'} {name}"


def digits_of(value: float, error: float) -> str:
    """Return `value` down to the first digit that `error` touches; six significant digits without an error."""
    if not math.isfinite(value):
        return str(float(value))
    if not math.isfinite(error) or error <= 0:
        return f"{value:.6g}"
    place = math.floor(math.log10(error))
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{min(15, max(0, math.floor(math.log10(abs(value))) - place))}e}"
    return f"{value:.{min(12, max(0, -place))}f}"


def json_able(value: Any) -> Any:
    """Return plain lists, dicts and numbers, None for NaN and infinities."""
    plain = value.tolist() if hasattr(value, "tolist") else value  # an array or a number of NumPy
    if isinstance(plain, (list, tuple)):
        return [json_able(item) for item in plain]
    if isinstance(plain, dict):
        return {str(key): json_able(item) for key, item in plain.items()}
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
