"""What one thousand draws of twelve models of published data give, plain and with mcmcpost, and
what sampling the same would cost.

    python -m benchmarks.control.real_models [--models NAME ...] [--replicates 12]

A trace is 4 × 250 draws of NumPyro's NUTS after 500 of warm-up. Means, standard deviations, medians
and bounds of the interval of 0.9 are those of `mcmcpost.summary`, the log evidence that of
`mcmcpost.bridge_evidence`. Quantities are all variables that a program declares.

``plain``, ``controlled`` : root mean square error over the replicates, the median over quantities;
    of an evidence as it is, of others over the posterior standard deviation of the quantity.
``true`` : mean square error of the plain estimate over that of the controlled one, the median over
    quantities, and ``least`` the smallest. The plain evidence is that of the warp-III bridge,
    without scores.
``reported`` : median of the gains by the errors that are reported.
``z²`` : mean of ((estimate − truth)/error)², the error of the truth included, and ``worst |z|`` the
    largest. Left out are errors below 1e-6 of what they are an error of, which are rounding.
``sampler s`` : CPU seconds of the draws that the plain estimate needs for the same error, one
    thousand times ``true``, with their part of the warm-up and without compilation.
``CPU s`` : of a call for the means alone; of scales and of quantiles what a call takes longer that
    asks for these too, and of the evidence its own. The median over the replicates, with programs
    compiled before.

The truth is by the same calls from four other chains of 10,000 draws, without kernels, and of the
evidence from a quarter of them. Traces are kept in a folder, ``--folder``; delete those of a model
after a change of it.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray
from numpyro.infer import MCMC, NUTS, init_to_median, init_to_value

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import aligned, emit
from benchmarks.control._real_models import MODELS, RealModel
from benchmarks.control.costs import kept_tree
from mcmcpost.control.auto import Auto

FOLDER = Path(__file__).parents[1] / ".cache" / "real_models"
CHAINS, WARMUP, DRAWS = 4, 500, 250
TIMED_DRAWS = 2_000
"""Draws of each chain of the run that gives the seconds of the sampler."""
TRUTH_DRAWS, TRUTH_THINNED = 10_000, 4
REPLICATE_SEED, TRUTH_SEED, EVIDENCE_SEED = 100, 200, 300
COLUMNS = {
    "means": [("mean", "mean_cv", "mcse_cv")],
    "scales": [("sd", "sd_cv", "mcse_sd_cv")],
    "quantiles": [
        ("0.05", "eti90_lb_cv", "mcse_eti90_lb_cv"),
        ("median", "median_cv", "mcse_median_cv"),
        ("0.95", "eti90_ub_cv", "mcse_eti90_ub_cv"),
    ],
}
"""Row of the table ↦ what it takes together: name, and columns of `mcmcpost.summary`."""
ROUNDING = 1e-6
"""Of the posterior standard deviation, or of the log evidence: errors below are not judged."""


def sample(model: RealModel, num_chains: int, num_draws: int, seed: int) -> xarray.DataTree:
    """Return draws of NUTS with scores."""
    mcmc = sampler(model, num_chains, num_draws)
    mcmc.run(jax.random.key(seed), **model.data, extra_fields=("z_grad", "potential_energy"))
    return mp.from_numpyro(mcmc)


def sampler(model: RealModel, num_chains: int, num_draws: int) -> MCMC:
    """Return NUTS on a model, not yet run."""
    place = init_to_median if model.start is None else init_to_value(values=model.start)
    return MCMC(
        NUTS(model.program, init_strategy=place),
        num_warmup=WARMUP,
        num_samples=num_draws,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )


def seconds_per_thousand(model: RealModel) -> float:
    """Return the CPU seconds of 1,000 draws with their part of the warm-up, without compilation."""

    @jax.jit  # NumPyro compiles in every run otherwise
    def run(key: jax.Array) -> dict[str, jax.Array]:
        mcmc = sampler(model, CHAINS, TIMED_DRAWS)
        mcmc.run(key, **model.data)
        return mcmc.get_samples()

    jax.block_until_ready(run(jax.random.key(0)))
    start = time.process_time()
    jax.block_until_ready(run(jax.random.key(1)))
    return (time.process_time() - start) / (CHAINS * TIMED_DRAWS / 1_000)


class Answer(NamedTuple):
    """Estimates of p quantities, their errors, and the CPU seconds of the call."""

    value: np.ndarray
    mcse: np.ndarray
    seconds: float


MORE = {
    "means": {},
    "scales": {"sd": True},
    "quantiles": {"median": True, "ci_prob": 0.9, "ci_kind": "eti"},
}
"""Row of the table ↦ what is asked for beside the rows before."""


def summarise(tree: xarray.DataTree, method: Any, timed: bool = False) -> dict[str, Answer]:
    """Return every number of the summary for each row of the table, by one call, or by one more for
    each row whose seconds are wanted."""
    options: dict[str, Any] = {}
    before, taken = 0.0, {}
    for place, (kind, more) in enumerate(MORE.items()):
        options |= more
        if timed or place == len(MORE) - 1:
            start = time.process_time()
            table = mp.summary(tree, method=method, **options)
            seconds = time.process_time() - start
            taken[kind], before = seconds - before, seconds
    return {
        kind: Answer(
            table[[value for _, value, _ in columns]].to_numpy().T,
            table[[mcse for *_, mcse in columns]].to_numpy().T,
            taken.get(kind, np.nan),
        )
        for kind, columns in COLUMNS.items()
    }


def evidence(tree: xarray.DataTree, model: RealModel, seed: int) -> tuple[Answer, Answer]:
    """Return the log evidence and that of the plain bridge."""
    start = time.process_time()
    found = mp.bridge_evidence(tree, model.program, key=jax.random.key(seed), **model.data)
    seconds = time.process_time() - start
    without = mp.bridge_evidence(
        tree, model.program, key=jax.random.key(seed), method="plain", **model.data
    )
    plain = next(one for one in without.estimates if "warp-III" in one.method)
    return tuple(
        Answer(np.array([[each.value]]), np.array([[each.mcse]]), seconds)
        for each in (found, plain)
    )


def measured(name: str, folder: Path, replicates: int, summary: bool) -> Iterator[dict]:
    """Yield the rows of a model: those of its `summary`, and that of its evidence."""
    model = MODELS[name]

    def kept(r: int, chains: int, draws: int, seed: int) -> xarray.DataTree:
        return kept_tree(folder / name, r, lambda: sample(model, chains, draws, seed))

    # All replicates in one run, since a program is compiled in each.
    together = kept(0, CHAINS * replicates, DRAWS, REPLICATE_SEED)
    trees = [
        together.isel(chain=slice(CHAINS * r, CHAINS * (r + 1)), missing_dims="ignore")
        for r in range(replicates)
    ]
    longer = kept(1, CHAINS, TRUTH_DRAWS, TRUTH_SEED)
    facts = longer["sample_stats"].sizes["unconstrained_parameter"], seconds_per_thousand(model)
    if summary:
        truths = summarise(longer, Auto(kernel=False))
        # The first of them twice: it compiles what the others use.
        found = [summarise(tree, "auto", timed=True) for tree in (trees[0], *trees)][1:]
        plain = [summarise(tree, "plain") for tree in trees]
        sd = truths["scales"].value
        for kind in COLUMNS:
            yield row(
                name,
                kind,
                *([each[kind] for each in answers] for answers in (found, plain)),
                truths[kind],
                sd,
                *facts,
            )
    thinned = longer.isel(draw=slice(None, None, TRUTH_THINNED), missing_dims="ignore")
    truth, _ = evidence(thinned, model, EVIDENCE_SEED)
    both = [evidence(tree, model, r) for r, tree in enumerate((trees[0], *trees))][1:]
    yield row(name, "evidence", *zip(*both, strict=True), truth, np.ones((1, 1)), *facts)


def row(
    name: str,
    kind: str,
    found: Sequence[Answer],
    plain: Sequence[Answer],
    truth: Answer,
    unit: np.ndarray,
    num_parameters: int,
    per_thousand: float,
) -> dict:
    """Return a row of the table: errors over `unit`, and what the plain ones would cost."""
    error, plain_error = (
        np.array([each.value - truth.value for each in answers]) / unit
        for answers in (found, plain)
    )
    mcse, plain_mcse = (
        np.array([each.mcse for each in answers]) / unit for answers in (found, plain)
    )
    z2 = error**2 / (mcse**2 + (truth.mcse / unit) ** 2)
    z2 = np.where(mcse > ROUNDING, z2, np.nan)
    square, plain_square = (error**2).mean(0), (plain_error**2).mean(0)
    true = plain_square / square
    gain = float(np.median(true))
    judged = np.isfinite(z2).any()
    return {
        "model": name,
        "d": num_parameters,
        "what": kind,
        "number": square.size,
        "plain": float(np.median(np.sqrt(plain_square))),
        "controlled": float(np.median(np.sqrt(square))),
        "true": gain,
        "least": float(true.min()),
        "reported": float(np.median((plain_mcse / mcse) ** 2)),
        "z²": float(np.nanmean(z2)) if judged else "",
        "worst |z|": float(np.sqrt(np.nanmax(z2))) if judged else "",
        "sampler s": per_thousand * gain,
        "CPU s": float(np.median([each.seconds for each in found])),
    }


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--models beetles --replicates 2")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--evidence-alone", action="store_true", help="no other rows")
    parser.add_argument("--replicates", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    rows: list[dict] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what stays plain: the table shows it
        for name in args.models:
            for one in measured(name, args.folder, args.replicates, not args.evidence_alone):
                rows.append(one)
                print(aligned([one]), flush=True)
            emit("real_models", TITLE, rows, final=name == args.models[-1], draws=CHAINS * DRAWS)


TITLE = "Twelve models of published data: one thousand draws, and what sampling the same would cost"

if __name__ == "__main__":
    main()
