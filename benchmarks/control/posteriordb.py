"""10,000 posteriordb reference draws through `attach_scores`: variance ratios and errors against
exact values.

    python -m benchmarks.control.posteriordb

blr and eight schools have exact expectations, by quadrature. lynx–hare is compared with its
reference means in combined Monte Carlo standard errors. An in-sample fit of degree 2 has variance
ratios of 1080–1250 on blr, 4.5 (τ) to 102 (μ) on eight schools and 57–136 on lynx–hare;
cross-fitted ones should reach 0.9 of the least of these.
"""

import json
import time
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import Command, add_shared, needed
from benchmarks._table import emit
from models import lotka_volterra

METHODS = ("plain", "zv2", "zv3", "auto")
TARGET_Z = 4
BLR_TRUTHS = {"sigma": 1.042851182, "beta[1]": 0.9996512642}
IN_SAMPLE = {"blr": 1080.0, "eight_schools mu": 102.0, "eight_schools tau": 4.5, "lynx_hare": 57.0}
"""The least in-sample variance ratio of degree 2 of each posterior."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--posteriors eight_schools")
    add_shared(parser)
    parser.add_argument("--posteriors", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    args = parser.parse_args()
    root = needed(args.shared / "data" / "posteriordb", "--shared")
    rows = [row for name in args.posteriors for row in _rows(name, root, args.methods)]
    emit(
        "posteriordb",
        "posteriordb reference draws: cross-fitted variance ratios, and z against exact values",
        rows,
        target=f"zv2 ratio ≥ .9 of the in-sample figure; |z| ≤ {TARGET_Z}",
        in_sample=IN_SAMPLE,
    )


def _rows(posterior: str, root: Path, methods: list[str]) -> list[dict]:
    start = time.perf_counter()
    tree, names, values, truths = CASES[posterior](root)
    scoring = time.perf_counter() - start
    rows = []
    for method in methods:
        start = time.perf_counter()
        found = mp.expectation(tree, values, method)
        seconds = time.perf_counter() - start
        for j, name in enumerate(names):
            truth, truth_mcse = truths.get(name, (np.nan, np.nan))
            z = (found.mean[j] - truth) / np.hypot(found.mcse[j], truth_mcse)
            floor = IN_SAMPLE.get(posterior, IN_SAMPLE.get(f"{posterior} {name}"))
            judged = method == "zv2" and floor is not None
            rows.append(
                {
                    "posterior": posterior,
                    "method": method,
                    "quantity": name,
                    "ratio": found.variance_ratio[j],
                    "ratio met": ("yes" if found.variance_ratio[j] >= 0.9 * floor else "NO")
                    if judged
                    else "",
                    "gain": found.gain[j],
                    "mean": found.mean[j],
                    "mcse": found.mcse[j],
                    "z": z if np.isfinite(z) else "",
                    "z met": ("yes" if abs(z) <= TARGET_Z else "NO") if np.isfinite(z) else "",
                    "status": str(found.status[j]),
                    "chosen": found.method[j],
                    "seconds": seconds,
                    "scores s": scoring,
                }
            )
    return rows


def _read(root: Path, posterior: str, name: str) -> object:
    with zipfile.ZipFile(root / posterior / f"{name}.json.zip") as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def _chains(root: Path, posterior: str) -> dict[str, np.ndarray]:
    chains = _read(root, posterior, f"{posterior}.draws")
    return {name: np.array([chain[name] for chain in chains]) for name in chains[0]}


def _tree(sites: dict[str, np.ndarray]) -> xarray.DataTree:
    variables = {
        name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(array.ndim - 2))), array)
        for name, array in sites.items()
    }
    coords = {"chain": np.arange(10), "draw": np.arange(1000)}
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables, coords=coords)})


def _vector(draws: dict[str, np.ndarray], name: str, size: int) -> np.ndarray:
    return np.stack([draws[f"{name}[{i + 1}]"] for i in range(size)], -1)


def _blr_model(design: np.ndarray, outcome: np.ndarray) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([design.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(jnp.asarray(design) @ beta, sigma), obs=jnp.asarray(outcome))


def _blr(root: Path) -> tuple:
    draws, data = _chains(root, "sblrc-blr"), _read(root, "sblrc-blr", "sblrc")
    tree = _tree({"beta": _vector(draws, "beta", 5), "sigma": draws["sigma"]})
    tree = mp.attach_scores(tree, _blr_model, np.array(data["X"]), np.array(data["y"]))
    names = list(draws)
    truths = {name: (value, 0.0) for name, value in BLR_TRUTHS.items()}
    return tree, names, np.stack([draws[name] for name in names], -1), truths


def _eight(root: Path) -> tuple:
    draws = _chains(root, "eight_schools-eight_schools_noncentered")
    theta, mu, tau = _vector(draws, "theta", 8), draws["mu"], draws["tau"]
    tree = _tree({"eta": (theta - mu[..., None]) / tau[..., None], "mu": mu, "tau": tau})
    tree = mp.attach_scores(tree, _eight_schools.model)
    truths = {name: (_eight_schools.TRUTHS[name], 0.0) for name in ("mu", "tau", "theta1")}
    return tree, ["mu", "tau", "theta1"], np.stack([mu, tau, theta[..., 0]], -1), truths


def _lynx_hare(root: Path) -> tuple:
    posterior = "hudson_lynx_hare-lotka_volterra"
    draws = _chains(root, posterior)
    sites = {
        name: _vector(draws, name, size)
        for name, size in (("theta", 4), ("z_init", 2), ("sigma", 2))
    }
    tree = mp.attach_scores(_tree(sites), lotka_volterra.model, **lotka_volterra.data("stan"))
    reference = json.loads((root / posterior / f"mean_value.{posterior}.json").read_text())
    truths = dict(
        zip(
            reference["names"],
            zip(reference["mean_value"], reference["mcse_mean"], strict=True),
            strict=True,
        )
    )
    return tree, list(draws), np.stack(list(draws.values()), -1), truths


CASES = {"blr": _blr, "eight_schools": _eight, "lynx_hare": _lynx_hare}


if __name__ == "__main__":
    main()
