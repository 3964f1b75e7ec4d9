"""Outside the kernel's space: f = mean exp(0.3x) under N(0, I₄). Does the reported error cover?

    python -m benchmarks.control.out_of_rkhs

500 independent draws as 4 chains of 125. The error that a kernel's own model gives its rule is too
small here (docs/mathematics.md section 5); `Estimate.mcse`, from held-out residuals, has to cover
the truth.
"""

import jax
import numpy as np

from benchmarks._command import Command
from benchmarks._replicate import generator, replicate
from benchmarks.control.calibration import calibration_row, emit_calibration

METHODS = ("plain", "zv2", "cf", "secf", "auto")
DIMENSION, SHAPE = 4, (4, 125)
TRUTH = float(np.exp(0.3**2 / 2))


def sample(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = generator("out_of_rkhs", replication).standard_normal((*SHAPE, DIMENSION))
    return x, -x, np.exp(0.3 * x).mean(-1, keepdims=True)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 20")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop early")
    args = parser.parse_args()
    runs = replicate(
        "out_of_rkhs", sample, {m: m for m in args.methods}, args.replications, args.minutes
    )
    rows = [calibration_row(method, run, 0, "mean exp(.3x)", TRUTH) for method, run in runs.items()]
    emit_calibration("out_of_rkhs", "f = mean exp(.3x), N(0, I₄), 4 × 125", rows, args.replications)


if __name__ == "__main__":
    main()
