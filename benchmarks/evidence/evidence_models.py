"""Log evidences of real models from ladders sampled here, every method on the same draws, beside
the exact values.

    python -m benchmarks.evidence.evidence_models
    python -m benchmarks.evidence.evidence_models --models hare_lynx hare_lynx_limited

`bridge` is `bridge_evidence` on a separate, long NUTS run of the posterior. Targets: radiata pine's
Bayes factor 4862.10 within 0.1 % by thermodynamic integration with control variates and within 1 %
by bridge sampling; hare-lynx agrees with bridge sampling, its pooled error ten times below plain
thermodynamic integration's.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_median, init_to_value

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import Command, add_shared, needed
from benchmarks._table import emit
from benchmarks.control import posteriordb
from benchmarks.evidence._van_der_pol import LOG_EVIDENCE
from models import lotka_volterra, radiata_pine, van_der_pol

RADIATA = {"x": -309.924327665, "z": -301.435101851}


class Case(NamedTuple):
    """A model with its arguments, start, ladder and exact log evidence, NaN where unknown.

    Hare-lynx runs HMC of equal lengths: trees of NUTS in lockstep, with an ODE solve a leaf, cost
    several times more.
    """

    model: Callable[..., Any]
    kwargs: dict[str, Any]
    init: dict[str, Any] | None
    rungs: int
    exact: float
    kernel: mp.HamiltonianKernel | None = None


def cases(shared: Path) -> dict[str, Callable[[], Case]]:
    def radiata(predictor: str) -> Case:
        data, start = radiata_pine.data(predictor), radiata_pine.init()
        return Case(radiata_pine.model, data, start, 16, RADIATA[predictor])

    def hare_lynx(limited: bool) -> Case:
        data, start = lotka_volterra.data(limited=limited), lotka_volterra.init(limited=limited)
        return Case(
            lotka_volterra.model, data, start, 16, np.nan, mp.HamiltonianKernel(num_steps=8)
        )

    def blr() -> Case:
        data = posteriordb._read(
            needed(shared / "data" / "posteriordb", "--shared"), "sblrc-blr", "sblrc"
        )
        kwargs = {"design": np.array(data["X"], float), "outcome": np.array(data["y"], float)}
        return Case(posteriordb._blr_model, kwargs, None, 16, -194.9675885389)

    return {
        "radiata_x": lambda: radiata("x"),
        "radiata_z": lambda: radiata("z"),
        "van_der_pol": lambda: Case(
            van_der_pol.model, van_der_pol.data(), van_der_pol.init(), 31, LOG_EVIDENCE
        ),
        "blr": blr,
        "eight_schools": lambda: Case(_eight_schools.model, {}, None, 16, -31.3113473523),
        "hare_lynx": lambda: hare_lynx(False),
        "hare_lynx_limited": lambda: hare_lynx(True),
    }


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--models radiata_x --draws 100")
    add_shared(parser)
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--draws", type=int, default=500, help="per chain and rung")
    parser.add_argument("--name", default="evidence_models", help="of the JSON file")
    args = parser.parse_args()
    every = cases(args.shared)
    rows: list[dict[str, Any]] = []
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in args.models or list(every):
        case = every[name]()
        found[name] = estimates(name, case, args.draws, rows)
        emit(args.name, _TITLE, rows, final=False)
    for one, other in (("radiata_z", "radiata_x"), ("hare_lynx_limited", "hare_lynx")):
        if one in found and other in found:
            rows += [
                _factor(one, other, found, method)
                for method in found[one]
                if method in found[other]
            ]
    emit(args.name, _TITLE, rows, chains=4, draws=args.draws, bayes_factor_radiata=4862.10)


_TITLE = "log evidence and Bayes factors, all methods on the same draws"


def estimates(
    name: str, case: Case, draws: int, rows: list[dict[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Append one row per method and return (value, error) of each."""
    start = time.process_time()
    ladder = mp.sample_power_posteriors(
        case.model,
        kwargs=case.kwargs,
        temperatures=mp.power_ladder(case.rungs, 5),
        key=jax.random.key(1),
        num_warmup=500,
        num_samples=draws,
        num_chains=4,
        init=case.init,
        kernel=case.kernel,
    )
    sampled = time.process_time() - start
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        evidence = mp.log_evidence(ladder)
        seconds = time.process_time() - start
        plain = mp.log_evidence(ladder, "plain", path="rungs", degree=0)
        start = time.process_time()
        bridge = mp.bridge_evidence(
            _posterior(case), case.model, key=jax.random.key(3), **case.kwargs
        )
        bridged = time.process_time() - start
    print(*(f"{name}: {item.message}" for item in caught), sep="\n")
    timed = {evidence.method: seconds, "bridge": bridged}
    pairs = {e.method: (e.value, float(np.hypot(e.mcse, _missed(e)))) for e in evidence.estimates}
    pairs |= {
        f"plain {e.method}": (e.value, float(np.hypot(e.mcse, _missed(e))))
        for e in plain.estimates[:1]
    }
    pairs["bridge"] = (bridge.value, bridge.error)
    for method, (value, error) in pairs.items():
        gap = value - case.exact
        rows.append(
            {
                "model": name,
                "method": method,
                "value": f"{value:.6f}",
                "error": error,
                "exact": f"{case.exact:.6f}",
                "difference": gap,
                "z": gap / error,
                "CPU s": timed.get(method, ""),
                "of sampling": sampled if method == evidence.method else "",
                "smallest ess": evidence.pooled.info["smallest_ess"] if method == "pooled" else "",
            }
        )
    return pairs


def _missed(estimate: mp.EvidenceEstimate) -> float:
    return estimate.info.get("discretisation_error", 0.0)


def _posterior(case: Case) -> Any:
    """Return a long NUTS run of the posterior itself."""
    start = init_to_median() if case.init is None else init_to_value(values=case.init)
    mcmc = MCMC(
        NUTS(case.model, dense_mass=True, init_strategy=start),
        num_warmup=1_000,
        num_samples=5_000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(2), extra_fields=("z_grad",), **case.kwargs)
    return mp.from_numpyro(mcmc)


def _factor(
    one: str, other: str, found: dict[str, dict[str, tuple[float, float]]], method: str
) -> dict[str, Any]:
    (a, ea), (b, eb) = found[one][method], found[other][method]
    error = float(np.hypot(ea, eb))
    exact = RADIATA["z"] - RADIATA["x"] if one == "radiata_z" else np.nan
    return {
        "model": f"BF {one} / {other}",
        "method": method,
        "value": f"{np.exp(a - b):.4f}",
        "error": float(np.exp(a - b) * error),
        "exact": f"{np.exp(exact):.4f}",
        "difference": float(np.exp(a - b) - np.exp(exact)),
        "z": (a - b - exact) / error,
        "CPU s": "",
        "of sampling": "",
        "smallest ess": "",
    }


if __name__ == "__main__":
    main()
