"""CPU seconds of a reduction beside those of the sampler, with the true and the reported gains.

    python -m benchmarks.control.costs [--models NAME ...] [--method auto] [--replicates 12]

A row is one quantity, or a variable of more than two entries: its gains are then medians over the
entries, z² is their mean and `worst |z|` the largest. One call reduces all quantities of a model,
so that `reduction` is the same in all its rows: the median over the replicates, with the programs
compiled before on another replicate. `sampler` is the CPU time of the chains with their warm-up,
without the compilation of the model; for Gaussian targets it is that of exact draws.

``true`` : mean square error of the plain mean over that of the controlled one.
``reported`` : median of (plain error/controlled error)².
``z²``, ``plain z²`` : mean of ((mean − truth)/error)², the error of the truth included. Quantities
    that are reproduced up to rounding have no z.
``truth`` : square error of the truth over the mean square error of the controlled mean. Where it is
    not small, the true gain is larger than the table says.

Traces are 4 × 1,000 draws; those of `three` are 4 × 250, and those of the bridge 4 × 200.
Posteriors are those of PyMC programs sampled by nutpie (extra ``interop``). Their truth is by
quadrature, or from 800,000 other draws with a control variate by least squares. Hare–lynx has no
truth: the mean of the controlled means of all replicates stands for it, which needs two replicates
or more. Replicates and truths are kept in a folder, ``--folder``; delete those of a model after a
change of it.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jax.scipy.stats import norm
from scipy.special import logsumexp

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.control._lotka_volterra_pool import expected_prey
from benchmarks.control._pools import run_lotka_volterra
from benchmarks.control._posteriors import POSTERIORS, bridge_data
from models import lotka_volterra

FOLDER = Path(__file__).parents[1] / ".cache" / "costs"
CHAINS, DRAWS, WARMUP = 4, 1_000, 1_000
TRUTH_DRAWS = 12_500
"""Draws of each of the four chains of a run that the truth is computed from."""
REPLICATE_SEED, TRUTH_SEED = 100, 10_000
"""Seeds of the first replicate and of the first run of the truth; the next ones count up."""
REPRODUCED = ("exact", "on_trust", "constant")
"""Statuses of quantities whose errors are rounding."""


STATISTICS = ("unconstrained_draw", "gradient", "diverging", "logp")
"""What is kept of the group ``sample_stats``; the log density verifies the scores."""


def sample(compiled: Any, num_draws: int, seed: int) -> xarray.DataTree:
    """Return draws of nutpie with scores; the attribute `sampling_cpu_seconds` is their cost."""
    import nutpie

    start = time.process_time()
    tree = nutpie.sample(
        compiled,
        draws=num_draws,
        tune=WARMUP,
        chains=CHAINS,
        seed=seed,
        save_warmup=False,
        store_gradient=True,
        store_unconstrained=True,
        progress_bar=False,
    )
    seconds = time.process_time() - start
    return reduced_tree(tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset(), seconds)


def reduced_tree(
    posterior: xarray.Dataset,
    stats: xarray.Dataset,
    seconds: float,
) -> xarray.DataTree:
    """Return a tree of what a reduction reads, with the sampler's CPU seconds as an attribute."""
    read = [name for name in STATISTICS if name in stats]
    tree = xarray.DataTree.from_dict({"posterior": posterior, "sample_stats": stats[read]})
    tree.attrs["sampling_cpu_seconds"] = seconds
    return tree


def kept_tree(folder: Path, r: int, make: Callable[[], xarray.DataTree]) -> xarray.DataTree:
    """Return the tree of replicate `r` in a folder, made if it is not there."""
    path = folder / f"replicate_{r:03d}.nc"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial")
        make().to_netcdf(unfinished, engine="h5netcdf")
        unfinished.rename(path)  # a file that is there is whole
    return mp.load_tree(path).load()


class Store:
    """Replicates and truth of a posterior in a folder, sampled when they are first wanted.

    ``replicate_000.nc`` : a tree that `mcmcpost.load_tree` reads.
    ``truth.npz`` : mean and mcse (p,), and names where the truth is from long chains.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.posterior, self.folder = POSTERIORS[name], folder / name
        self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def compiled(self) -> Any:
        import nutpie

        return nutpie.compile_pymc_model(self.posterior.build())

    def replicate(self, r: int) -> xarray.DataTree:
        def make() -> xarray.DataTree:
            return sample(self.compiled, self.posterior.num_draws, REPLICATE_SEED + r)

        return kept_tree(self.folder, r, make)

    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the truth of all quantities and its standard error, (p,) each."""
        path = self.folder / "truth.npz"
        if not path.exists():
            if self.posterior.truth is not None:
                mean = self.posterior.truth()
                found = {"mean": mean, "mcse": np.zeros_like(mean)}
            else:
                found = long_run_truth(
                    self.compiled, self.posterior.variables, self.posterior.truth_runs
                )
            np.savez(path, **found)
        with np.load(path) as kept:
            return kept["mean"], kept["mcse"]


def stacked(tree: xarray.DataTree, variables: tuple[str, ...]) -> tuple[list[str], np.ndarray]:
    """Return labels and values (c, n, p) of all entries of variables, each in C order."""
    names, columns = [], []
    for variable in variables:
        values = tree["posterior"][variable].values
        shape = values.shape[2:]
        names += [f"{variable}{list(place)}" if shape else variable for place in np.ndindex(*shape)]
        columns.append(values.reshape(*values.shape[:2], -1))
    return names, np.concatenate(columns, -1)


def long_run_truth(compiled: Any, variables: tuple[str, ...], runs: int) -> dict[str, np.ndarray]:
    """Return names, means and standard errors over runs of four chains of 12,500 draws.

    Plain means of 100 or 200 times as many draws as a replicate has would be no truth for estimates
    that gain 50, so they have control variates too: the scores s, and (u − m) s + 1 of each
    coordinate, whose mean is zero for any constant m. Of the chains only sums are kept, and the fit
    is to all of them, since they are far more than coefficients.
    """
    centre, second, chain_means = None, 0.0, []
    for run in range(runs):
        tree = sample(compiled, TRUTH_DRAWS, TRUTH_SEED + run)
        stats = tree["sample_stats"]
        u, s = stats["unconstrained_draw"].values, stats["gradient"].values
        names, h = stacked(tree, variables)
        if centre is None:  # rounding: second moments about the means of the first run
            centre = u.mean((0, 1)), h.mean((0, 1))
        columns = np.concatenate([s, (u - centre[0]) * s + 1, h - centre[1]], -1)
        chain_means.append(columns.mean(1))
        flat = columns.reshape(-1, columns.shape[-1])
        second = second + flat.T @ flat / (runs * len(flat))
        print(f"truth: run {run + 1} of {runs}", flush=True)
    means = np.concatenate(chain_means)
    covariance = second - np.outer(means.mean(0), means.mean(0))
    num_controls = 2 * u.shape[-1]
    # scores of a scale and of a level differ in size by orders of magnitude: unit diagonal first
    scale = np.sqrt(np.diag(covariance))[:num_controls]
    gram = covariance[:num_controls, :num_controls] / np.outer(scale, scale)
    coefficients = np.linalg.solve(gram, covariance[:num_controls, num_controls:] / scale[:, None])
    residuals = means[:, num_controls:] - means[:, :num_controls] / scale @ coefficients
    # chains of 12,500 draws are much longer than their correlation: their means are independent
    mcse = residuals.std(0, ddof=1) / np.sqrt(len(residuals))
    return {"names": np.array(names), "mean": centre[1] + residuals.mean(0), "mcse": mcse}


class Result(NamedTuple):
    """Controlled and plain estimates of one replicate, their errors and statuses, p of each."""

    mean: np.ndarray
    mcse: np.ndarray
    mean_plain: np.ndarray
    mcse_plain: np.ndarray
    status: tuple[str, ...]


class Case(NamedTuple):
    """One model of the table.

    num_parameters : of the unconstrained space.
    tree : replicate ↦ its trace, whose attribute `sampling_cpu_seconds` is what the sampler took.
    reduce : (trace, method, replicate) ↦ the estimates whose CPU time is measured.
    places : row of the table ↦ its places among the p quantities.
    truth : means and standard errors (p,); None where only replicates can be compared.
    """

    name: str
    num_parameters: int
    tree: Callable[[int], xarray.DataTree]
    reduce: Callable[[xarray.DataTree, Any, int], Result]
    places: Mapping[str, list[int]]
    truth: tuple[np.ndarray, np.ndarray] | None


def expectations(integrands: Any) -> Callable[[xarray.DataTree, Any, int], Result]:
    """Return the reduction of all integrands by one call of `mcmcpost.expectation`."""

    def reduce(tree: xarray.DataTree, method: Any, _: int) -> Result:
        found = mp.expectation(tree, integrands, method)
        status = tuple(str(one) for one in found.status)
        return Result(found.mean, found.mcse, found.mean_plain, found.mcse_plain, status)

    return reduce


def sampled_case(name: str, folder: Path) -> Case:
    """Return the case of one of `POSTERIORS`; entries of short variables have a row each."""
    store = Store(folder, name)
    first, posterior = store.replicate(0), store.posterior
    if posterior.functions is None:
        names, _ = stacked(first, posterior.variables)
        integrands, labels = list(posterior.variables), [label.split("[")[0] for label in names]
    else:
        size = first["posterior"][posterior.variables[0]].shape[-1]
        integrands = posterior.functions
        names = labels = [label for label in integrands for _ in range(size)]
    places: dict[str, list[int]] = {}
    for j, (label, entry) in enumerate(zip(labels, names, strict=True)):
        places.setdefault(entry if labels.count(label) <= 2 else label, []).append(j)
    num_parameters = first["sample_stats"].sizes["unconstrained_parameter"]
    reduce = expectations(integrands)
    return Case(name, num_parameters, store.replicate, reduce, places, store.truth())


def gaussian_case(d: int, correlation: float) -> Case:
    """Return exact draws of an AR(1) normal with means of one and scales from 0.1 to 10.

    Coordinates and their squares are reduced, up to ten of each. Scores reproduce a coordinate. Its
    products with all scores reproduce its square, and with correlation zero that with its own.
    """
    mean, sd = np.ones(d), np.geomspace(0.1, 10.0, d)
    lags = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    factor = np.linalg.cholesky(correlation**lags) * sd[:, None]
    chosen = np.unique(np.linspace(0, d - 1, 10).astype(int))
    name = f"gaussian d={d} ρ={correlation:g}"

    def tree(r: int) -> xarray.DataTree:
        start = time.process_time()
        z = generator(name, r).normal(size=(CHAINS, DRAWS, d))
        draws = mean + z @ factor.T
        seconds = time.process_time() - start
        scores = -np.linalg.solve(factor.T, z.reshape(-1, d).T).T.reshape(z.shape)
        values = np.concatenate([draws[..., chosen], draws[..., chosen] ** 2], -1)
        new = mp.from_arrays(draws, scores, values)
        stats = new["sample_stats"].to_dataset()
        stats["logp"] = ("chain", "draw"), -0.5 * (z**2).sum(-1)
        return reduced_tree(new["posterior"].to_dataset(), stats, seconds)

    p = len(chosen)
    places = {"linear": list(range(p)), "quadratic": list(range(p, 2 * p))}
    truth = np.concatenate([mean[chosen], mean[chosen] ** 2 + sd[chosen] ** 2])
    return Case(name, d, tree, expectations(None), places, (truth, np.zeros(2 * p)))


def hare_lynx_case(folder: Path) -> Case:
    """Return the hare–lynx posterior, the paper's priors: 8 parameters and the prey at 20 times.

    NumPyro compiles its program in every run, and that is in the sampler's seconds.
    """
    parameters = list(lotka_volterra.init("paper"))

    def make(r: int) -> xarray.DataTree:
        start = time.process_time()
        mcmc = run_lotka_volterra(jax.random.key(r), CHAINS, WARMUP // 2, DRAWS, "paper")
        seconds = time.process_time() - start
        tree = mp.from_numpyro(mcmc)
        posterior = tree["posterior"].to_dataset()
        prey = expected_prey(np.stack([posterior[name].values for name in parameters], -1))
        posterior["prey"] = ("chain", "draw", "time"), prey
        return reduced_tree(posterior, tree["sample_stats"].to_dataset(), seconds)

    def tree(r: int) -> xarray.DataTree:
        return kept_tree(folder / "hare-lynx", r, lambda: make(r))

    num_times = len(lotka_volterra.TASK_YEARS)
    p = len(parameters)
    places = {"parameters": list(range(p)), "prey": list(range(p, p + num_times))}
    return Case("hare-lynx", p, tree, expectations([*parameters, "prey"]), places, None)


def bridge_case(folder: Path) -> Case:
    """Return the log evidence of a normal sample, 800 draws; the plain estimate is warp-III."""
    store, y = Store(folder, "bridge"), bridge_data()

    def log_density(u: jax.Array) -> jax.Array:
        mu, sigma = u[0], jnp.exp(u[1])
        prior = norm.logpdf(mu, 0.0, 5.0) + jnp.log(2.0) + norm.logpdf(sigma, 0.0, 2.0) + u[1]
        return norm.logpdf(y, mu, sigma).sum() + prior

    def reduce(tree: xarray.DataTree, method: Any, r: int) -> Result:
        key = jax.random.key(r)
        found = mp.bridge_evidence(tree, logdensity_fn=log_density, key=key, method=method)
        plain = next(one for one in found.estimates if "warp-III" in one.method)
        numbers = (found.value, found.mcse, plain.value, plain.mcse)
        return Result(*(np.array([number]) for number in numbers), (str(found.status),))

    # the trapezoidal rule: the density vanishes smoothly at the ends
    mu, log_sigma = np.linspace(y.mean() - 6, y.mean() + 6, 601), np.linspace(-3, 4, 601)
    grid = jnp.asarray(np.stack(np.meshgrid(mu, log_sigma, indexing="ij"), -1).reshape(-1, 2))
    cell = (mu[1] - mu[0]) * (log_sigma[1] - log_sigma[0])
    truth = logsumexp(np.asarray(jax.vmap(log_density)(grid))) + np.log(cell)
    truths = np.array([truth]), np.zeros(1)
    return Case("bridge", 2, store.replicate, reduce, {"log evidence": [0]}, truths)


def cases(args: Any) -> Iterator[Case]:
    """Yield the cases of the command line, each sampled when its turn comes."""
    for name in args.models:
        match name:
            case "gaussian":
                for d in args.dimensions:
                    for correlation in args.correlations:
                        yield gaussian_case(d, correlation)
            case "hare-lynx":
                yield hare_lynx_case(args.folder)
            case "bridge":
                yield bridge_case(args.folder)
            case _:
                yield sampled_case(name, args.folder)


class Measured(NamedTuple):
    """What the reductions of R replicates cost, and how far from the truth the p quantities are.

    sampler, reduction : CPU seconds, medians over the replicates.
    true, reported : gains (p,). share : square error of the truth over the mean square error (p,).
    z2, plain_z2 : ((mean − truth)/error)² (R, p); NaN where the error is rounding.
    status : (R, p).
    """

    sampler: float
    reduction: float
    true: np.ndarray
    reported: np.ndarray
    share: np.ndarray
    z2: np.ndarray
    plain_z2: np.ndarray
    status: np.ndarray


def measure(case: Case, method: Any, replicates: int) -> Measured:
    """Reduce the replicates of a case and compare them with its truth."""
    results, seconds, sampling = [], [], []
    warm_up = max(replicates - 1, 1)  # compiles the programs; it is not the first that is measured
    for r in (warm_up, *range(replicates)):
        tree = case.tree(r)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.append(case.reduce(tree, method, r))
        seconds.append(time.process_time() - start)
        sampling.append(tree.attrs["sampling_cpu_seconds"])

    # squares of the errors: (R, p), the row of the warm-up left out
    measured = results[1:]
    mean, mcse, plain, mcse_plain = (
        np.array([getattr(result, field) for result in measured]) for field in Result._fields[:4]
    )
    status = np.array([result.status for result in measured])
    if case.truth is None:  # a deviation from the mean of R estimates has 1 − 1/R of the variance
        truth, truth_mcse, freedom = mean.mean(0), np.zeros(mean.shape[1]), 1 - 1 / replicates
    else:
        truth, truth_mcse, freedom = *case.truth, 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        square, plain_square = (mean - truth) ** 2 / freedom, (plain - truth) ** 2
        z2 = square / (mcse**2 + truth_mcse**2)
        plain_z2 = plain_square / (mcse_plain**2 + truth_mcse**2)
        true = plain_square.mean(0) / square.mean(0)
        reported = np.median((mcse_plain / mcse) ** 2, 0)
        share = truth_mcse**2 / square.mean(0)
    rounding = np.isin(status, REPRODUCED)  # their errors are rounding, and z has no distribution
    z2, share = np.where(rounding, np.nan, z2), np.where(rounding.all(0), np.nan, share)
    sampler, reduction = float(np.median(sampling[1:])), float(np.median(seconds[1:]))
    return Measured(sampler, reduction, true, reported, share, z2, plain_z2, status)


def rows(case: Case, method: Any, replicates: int) -> list[dict]:
    """Reduce the replicates of a case and return its rows."""
    measured = measure(case, method, replicates)

    def row(label: str, places: list[int]) -> dict:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of rows with nothing but NaN
            return {
                "model": case.name,
                "d": case.num_parameters,
                "quantity": label,
                "number": len(places),
                "sampler CPU s": measured.sampler,
                "reduction CPU s": measured.reduction,
                "ratio": measured.reduction / measured.sampler,
                "true": float(np.median(measured.true[places])),
                "reported": float(np.median(measured.reported[places])),
                "z²": float(np.nanmean(measured.z2[:, places])),
                "worst |z|": float(np.sqrt(np.nanmax(measured.z2[:, places]))),
                "plain z²": float(measured.plain_z2[:, places].mean()),
                "truth": float(np.nanmedian(measured.share[places])),
                "status": counted(measured.status[:, places]),
            }

    return [row(label, places) for label, places in case.places.items()]


def counted(status: np.ndarray) -> str:
    """Return how often each status was seen, the most frequent first."""
    counts = Counter(status.ravel().tolist()).most_common()
    return " ".join(f"{name}:{count}" for name, count in counts)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    models = ("radon", "walk", "crossed", "gaussian", "three", "hare-lynx", "bridge")
    parser = Command(__doc__, quick="--models gaussian --dimensions 2 20 --replicates 2")
    parser.add_argument("--models", nargs="+", choices=models, default=list(models))
    parser.add_argument("--replicates", type=int, default=12)
    parser.add_argument("--method", default="auto", help="a name in mcmcpost.METHODS")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of replicates and truths")
    sizes, neighbours = [2, 20, 100, 1_000], [0.0, 0.5]
    parser.add_argument("--dimensions", type=int, nargs="+", default=sizes, help="of Gaussians")
    parser.add_argument("--correlations", type=float, nargs="+", default=neighbours)
    args = parser.parse_args()
    title = "CPU seconds of reductions beside those of the samplers, with true and reported gains"
    table: list[dict] = []
    settings = {"method": args.method, "replicates": args.replicates}
    for case in cases(args):
        table += rows(case, args.method, args.replicates)
        print(f"{case.name} done", file=sys.stderr, flush=True)
        emit("costs", title, table, final=False, **settings)
    emit("costs", title, table, **settings)


if __name__ == "__main__":
    main()
