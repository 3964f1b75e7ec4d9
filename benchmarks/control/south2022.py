"""South et al. (2022), f = 1 + x₂ + 0.1x₁x₂x₃ + sin(x₁)exp(−(x₂x₃)²) under N(0, I₄): RMSE at N =
500.

    python -m benchmarks.control.south2022

The R package ZVCV has 0.0497 (plain), 0.0109 (ZV2), 0.0211 (CF) and 0.0058 (SECF). Target: at most
0.0058.
"""

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator, replicate
from benchmarks._table import emit

METHODS = {name: name for name in ("plain", "zv1", "zv2", "zv3", "cf", "secf", "auto")} | {
    "secf, isotropic": mp.SemiExact(2, tuning=mp.GridREML(polish=False))
}
TRUTH = 1.0
TARGET = 0.0058
SHAPES = {"1x500": (1, 500), "4x125": (4, 125)}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 10 --shapes 4x125")
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop early, per shape")
    args = parser.parse_args()
    rows = []
    for shape in args.shapes:
        runs = replicate(shape, _sampler(SHAPES[shape]), METHODS, args.replications, args.minutes)
        for method, run in runs.items():
            square = (run.mean[:, 0] - TRUTH) ** 2
            z = (run.mean[:, 0] - TRUTH) / run.mcse[:, 0]
            rows.append(
                {
                    "shape": shape,
                    "method": method,
                    "R": len(square),
                    "rmse": np.sqrt(square.mean()),
                    "se": square.std(ddof=1) / np.sqrt(len(square)) / 2 / np.sqrt(square.mean()),
                    "rmse_first20": np.sqrt(square[:20].mean()),
                    "target": TARGET if method[:4] in ("secf", "auto") else "",
                    "max|err|": np.sqrt(square.max()),
                    "mean z²": np.mean(z**2),
                    "median gain": np.median(run.gain[:, 0]),
                    "seconds": run.seconds,
                    "status": run.statuses(0),
                }
            )
    emit(
        "south2022",
        "South et al. (2022), N = 500",
        rows,
        replications=args.replications,
        truth=TRUTH,
    )


def _sampler(shape: tuple[int, int]):
    def sample(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = generator("south2022", replication).standard_normal((500, 4)).reshape(*shape, 4)
        x1, x2, x3 = x[..., 0], x[..., 1], x[..., 2]
        f = 1 + x2 + 0.1 * x1 * x2 * x3 + np.sin(x1) * np.exp(-((x2 * x3) ** 2))
        return x, -x, f[..., None]

    return sample


if __name__ == "__main__":
    main()
