"""Where the ticks of an axis of transformed numbers are, and the true numbers that they say."""

import math

import numpy as np

MOST_TICKS = 8
PLAIN_DECADES = 4
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decade_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return log₁₀ of the round numbers between 10^low and 10^high, and the numbers as text.

    Powers of ten, at most eight; where they are fewer than three also their double and fivefold.
    """
    powers = range(math.ceil(low), math.floor(high) + 1)
    stride = math.ceil(len(powers) / MOST_TICKS)
    if len(powers) > 2:
        kept = [k for k in powers if k % stride == 0]
        return [float(k) for k in kept], [_power_text(k) for k in kept]
    places = [(k + math.log10(m), m * 10.0**k) for k in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [(place, value) for place, value in places if low <= place <= high]
    return [place for place, _ in inside], [f"{value:g}" for _, value in inside]


def whole_ticks(last: int) -> list[int]:
    """Return whole numbers from 0 to `last`, evenly spaced, at most nine."""
    steps = (m * 10**k for k in range(20) for m in (1, 2, 5))
    return list(range(0, last + 1, next(step for step in steps if step * MOST_TICKS >= last)))


def bent(values: np.ndarray, bend: float) -> np.ndarray:
    """Return asinh(values/bend): proportional to the values below `bend`, to their logarithm far above."""
    return np.arcsinh(values / bend)


def bent_ticks(bend: float, most: float) -> tuple[list[float], list[str]]:
    """Return places on the axis of `bent`, of zero and of round numbers from `bend`/3 to `most`, and their text."""
    powers, texts = decade_ticks(math.log10(bend / 3), math.log10(most))
    return [0.0, *bent(10.0 ** np.array(powers), bend).tolist()], ["0", *texts]


def _power_text(power: int) -> str:
    plain = abs(power) <= PLAIN_DECADES
    return f"{10.0**power:g}" if plain else "10" + str(power).translate(SUPERSCRIPTS)
