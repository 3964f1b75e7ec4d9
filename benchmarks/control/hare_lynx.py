"""Hare–lynx Lotka–Volterra: 4 × 1,000 NUTS draws, every parameter mean and every expected prey
E[v₁(s′)].

    python -m benchmarks.control.hare_lynx

The paper's priors: variance ratio and gain of each method, both cross-fitted, over three keys fixed
beforehand. Target: `auto` has variance_ratio ≥ 1,000 and gain ≥ 500 on every parameter mean. Stan's
priors: posterior means against posteriordb's reference means, in combined Monte Carlo standard
errors. Target: within 4.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command, add_shared, needed
from benchmarks._table import emit
from benchmarks.control._lotka_volterra_pool import TASK_NAMES, expected_prey
from benchmarks.control._pools import run_lotka_volterra
from models import lotka_volterra

METHODS = ("auto", "zv1", "zv2", "zv3", "secf")
NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 4, 500, 1000
TARGET_RATIO, TARGET_GAIN, TARGET_Z = 1_000, 500, 4


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--tables paper --keys 0 --methods zv2 auto")
    parser.add_argument("--keys", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--tables", nargs="+", choices=("paper", "stan"), default=["paper", "stan"], help="priors"
    )
    add_shared(parser)
    args = parser.parse_args()
    sizes = {"chains": NUM_CHAINS, "warmup": NUM_WARMUP, "draws": NUM_DRAWS, "keys": args.keys}
    if "stan" in args.tables:
        reference = _reference(args.shared)
    if "paper" in args.tables:
        _emit_paper(args.keys, args.methods, sizes)
    if "stan" in args.tables:
        stan = [row for key in args.keys for row in _stan(key, reference)]
        emit(
            "hare_lynx_stan",
            "Hare–lynx, Stan's priors, against posteriordb's means",
            stan,
            **sizes,
            target=TARGET_Z,
        )


def _emit_paper(keys: list[int], methods: list[str], sizes: dict[str, Any]) -> None:
    paper, estimates = [], {}
    for key in keys:
        rows, estimates[key] = _paper(key, methods)
        paper += rows
    emit(
        "hare_lynx",
        "Hare–lynx, the paper's priors: cross-fitted variance ratio and gain",
        paper,
        **sizes,
        target=f"auto, parameters: ratio ≥ {TARGET_RATIO}, gain ≥ {TARGET_GAIN}",
    )
    if len(keys) > 1:
        emit(
            "hare_lynx_keys",
            "The same, one key against another: |difference|/combined mcse",
            _between(estimates),
        )


def _paper(key: int, methods: list[str]) -> tuple[list[dict], dict[tuple[str, str], mp.Estimate]]:
    start = time.perf_counter()
    tree = mp.from_numpyro(
        run_lotka_volterra(jax.random.key(key), NUM_CHAINS, NUM_WARMUP, NUM_DRAWS, "paper")
    )
    sampling = time.perf_counter() - start
    parameters = list(tree["posterior"].data_vars)
    names, values = _prey(tree)
    groups = {"parameters": variables(tree, parameters), "prey": values}
    rows, estimates = [], {}
    for method in methods:
        for group, array in groups.items():
            start = time.perf_counter()
            found = estimates[method, group] = mp.expectation(tree, array, method)
            labels = parameters if group == "parameters" else names
            worst = int(np.argmin(found.gain))
            met = (found.variance_ratio >= TARGET_RATIO).all() and (found.gain >= TARGET_GAIN).all()
            rows.append(
                {
                    "key": key,
                    "method": method,
                    "quantities": f"{len(labels)} {group}",
                    "min ratio": found.variance_ratio.min(),
                    "median ratio": np.median(found.variance_ratio),
                    "min gain": found.gain.min(),
                    "median gain": np.median(found.gain),
                    "worst by gain": labels[worst],
                    "met": ("yes" if met else "NO")
                    if method == "auto" and group == "parameters"
                    else "",
                    "seconds": time.perf_counter() - start,
                    "NUTS s": sampling,
                    "chosen": " ".join(sorted(set(found.method))),
                }
            )
    return rows, estimates


def _between(estimates: dict[int, dict[tuple[str, str], mp.Estimate]]) -> list[dict]:
    rows = []
    for method, group in next(iter(estimates.values())):
        runs = [found[method, group] for found in estimates.values()]
        z = np.array(
            [
                np.abs(a.mean - b.mean) / np.hypot(a.mcse, b.mcse)
                for i, a in enumerate(runs)
                for b in runs[:i]
            ]
        )
        rows.append(
            {"method": method, "quantities": group, "mean z²": np.mean(z**2), "max|z|": z.max()}
        )
    return rows


def variables(tree, names: list[str]) -> np.ndarray:
    """Return scalar variables of the posterior as (c, n, p)."""
    return np.stack([tree["posterior"][name].values for name in names], -1)


def _prey(tree) -> tuple[list[str], np.ndarray]:
    draws = variables(tree, list(lotka_volterra.init("paper")))
    return list(TASK_NAMES), expected_prey(draws)


def _reference(shared: Path) -> dict[str, Any]:
    posterior = "hudson_lynx_hare-lotka_volterra"
    folder = needed(shared / "data" / "posteriordb", "--shared")
    return json.loads((folder / posterior / f"mean_value.{posterior}.json").read_text())


def _stan(key: int, reference: dict[str, Any]) -> list[dict]:
    truth, truth_mcse = np.array(reference["mean_value"]), np.array(reference["mcse_mean"])
    tree = mp.from_numpyro(
        run_lotka_volterra(jax.random.key(key), NUM_CHAINS, NUM_WARMUP, NUM_DRAWS, "stan")
    )
    found = mp.expectation(tree, ["theta", "z_init", "sigma"], "auto")
    z = (found.mean - truth) / np.hypot(found.mcse, truth_mcse)
    plain = (found.mean_plain - truth) / np.hypot(found.mcse_plain, truth_mcse)
    return [
        {
            "key": key,
            "quantity": name,
            "mean": found.mean[j],
            "mcse": found.mcse[j],
            "reference": truth[j],
            "its mcse": truth_mcse[j],
            "z": z[j],
            "z plain": plain[j],
            "gain": found.gain[j],
            "met": "yes" if abs(z[j]) <= TARGET_Z else "NO",
        }
        for j, name in enumerate(reference["names"])
    ]


if __name__ == "__main__":
    main()
