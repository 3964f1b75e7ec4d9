"""Polynomials of high degree in one dimension: does the reported error cover what lies beyond the
outermost draw?

    python -m benchmarks.control.high_degree

1,200 independent draws as 4 chains of 300. A polynomial of degree eight follows 1/x, exp(2x) or
1/(1 + x²) between the draws and leaves them beyond, where no residual is. `auto` tries every degree
up to eight and keeps the one whose reported error is smallest.
"""

from collections.abc import Callable

import jax
import numpy as np

from benchmarks._command import Command
from benchmarks._replicate import generator, replicate
from benchmarks.control.calibration import calibration_row, emit_calibration
from mcmcpost import ZeroVariance

SHAPE = (4, 300, 1)
METHODS = {
    "plain": "plain",
    **{f"zv{k}": ZeroVariance(k) for k in (2, 4, 6, 7, 8)},
    "secf": "secf",
    "auto": "auto",
}
NORMAL: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp(x)": (np.exp, float(np.exp(0.5))),
    "exp(2x)": (lambda x: np.exp(2 * x), float(np.exp(2.0))),
    "1/(1+x²)": (lambda x: 1 / (1 + x**2), 0.6556795424187985),
    "|x|": (np.abs, float(np.sqrt(2 / np.pi))),
    "cos 3x": (lambda x: np.cos(3 * x), float(np.exp(-4.5))),
}


def gamma(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw log x, x ~ Gamma(3, 2), with its score and 1/x, whose mean is one."""
    x = generator("high_degree gamma", replication).gamma(3.0, 0.5, SHAPE)
    return np.log(x), 3 - 2 * x, 1 / x


def normal(function: Callable[[np.ndarray], np.ndarray]) -> Callable:
    def sample(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = generator("high_degree normal", replication).standard_normal(SHAPE)
        return x, -x, function(x)

    return sample


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 5")
    parser.add_argument("--replications", type=int, default=100)
    args = parser.parse_args()
    targets = {"gamma 1/x": (gamma, 1.0)} | {
        f"normal {k}": (normal(f), truth) for k, (f, truth) in NORMAL.items()
    }
    rows = []
    for name, (sample, truth) in targets.items():
        runs = replicate(name, sample, METHODS, args.replications)
        rows += [calibration_row(method, run, 0, name, truth) for method, run in runs.items()]
    emit_calibration(
        "high_degree", "one dimension, 4 × 300 independent draws", rows, args.replications
    )


if __name__ == "__main__":
    main()
