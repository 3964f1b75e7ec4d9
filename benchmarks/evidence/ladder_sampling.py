"""Van der Pol, 31 rungs × 4 chains: one program against 31 separate NumPyro runs.

    python -m benchmarks.evidence.ladder_sampling

The same kernel (NUTS, dense mass, tree depth 6 in warm-up and 8 after), the same warm-up and draws,
starts included in the seconds. Separate runs vectorise their four chains and compile for each
temperature, as a loop over `MCMC` does. A gradient after warm-up is *asked for* by a chain's
trajectory and *computed* for every lane that waits for the longest one. The trapezoid's log
evidence, beside 10.344394 on exact means, shows that all of them sample the same ladder.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import init_to_value

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit
from models import van_der_pol

DEPTHS = (6, 8)
POWER = 5
EXACT_TRAPEZOID = 10.344394


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--rungs 5 --warmup 100 --draws 100")
    parser.add_argument("--rungs", type=int, default=31)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--key", type=int, default=0)
    args = parser.parse_args()
    settings = {
        "rungs": args.rungs,
        "chains": args.chains,
        "warmup": args.warmup,
        "draws": args.draws,
        "key": args.key,
    }
    runs = {
        "one program, NUTS": lambda: _ladder(args, mp.HamiltonianKernel(max_tree_depth=DEPTHS)),
        "one program, HMC of 4 steps": lambda: _ladder(args, mp.HamiltonianKernel(num_steps=4)),
        f"{args.rungs} separate runs, NUTS": lambda: _separate(args),
    }
    rows: list[dict] = []
    for name, run in runs.items():
        start, cpu = time.perf_counter(), time.process_time()
        work = run()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        rows.append(
            {
                "run": name,
                "seconds": seconds,
                "cpu": cpu,
                **work,
                "waste": work["computed"] / work["asked"],
            }
        )
        emit("ladder_sampling", "", rows, final=False, **settings)
    for row in rows:
        row["cpu ratio"] = rows[-1]["cpu"] / row["cpu"]
    title = (
        "Van der Pol ladder: seconds, gradients after warm-up, min bulk ESS over t > 0, trapezoid "
        "log Z"
    )
    emit("ladder_sampling", title, rows, **settings, exact_trapezoid=EXACT_TRAPEZOID)


def _ladder(args: argparse.Namespace, kernel: mp.HamiltonianKernel) -> dict:
    tree = mp.sample_power_posteriors(
        van_der_pol.model,
        kwargs=van_der_pol.data(),
        temperatures=mp.power_ladder(args.rungs, POWER),
        key=jax.random.key(args.key),
        num_warmup=args.warmup,
        num_samples=args.draws,
        num_chains=args.chains,
        kernel=kernel,
        progress=True,
    )
    stats = tree["sample_stats"]
    steps = stats["n_steps"].values[:, :, 1:]
    return {
        "asked": int(steps.sum()),
        "computed": int(steps.max(axis=(0, 2)).sum()) * steps.shape[0] * steps.shape[2],
        **_quality(tree["posterior"]["log_theta"].values, stats["log_likelihood_total"].values),
    }


def _tempered(temperature: float, observed: np.ndarray) -> None:
    log_theta = numpyro.sample(
        "log_theta", numpyro.distributions.Normal(0.0, van_der_pol.PRIOR_SCALE)
    )
    u = van_der_pol.solve(jnp.exp(log_theta), van_der_pol.TIMES).values
    likelihood = numpyro.distributions.Normal(u, van_der_pol.NOISE).log_prob(observed).sum()
    numpyro.deterministic("log_likelihood", likelihood)
    numpyro.factor("tempered", temperature * likelihood)


def _separate(args: argparse.Namespace) -> dict:
    draws, likelihood, asked, computed = [], [], 0, 0
    for i, temperature in enumerate(mp.power_ladder(args.rungs, POWER)):
        start = {"log_theta": van_der_pol.init()["log_theta"]}
        kernel = NUTS(
            _tempered,
            dense_mass=True,
            max_tree_depth=DEPTHS,
            init_strategy=init_to_value(values=start),
        )
        mcmc = MCMC(
            kernel,
            num_warmup=args.warmup,
            num_samples=args.draws,
            num_chains=args.chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        key = jax.random.fold_in(jax.random.key(args.key), i)
        mcmc.run(key, temperature, van_der_pol.OBSERVED, extra_fields=("num_steps",))
        steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
        asked += int(steps.sum())
        computed += int(steps.max(axis=0).sum()) * args.chains
        samples = mcmc.get_samples(group_by_chain=True)
        draws.append(np.asarray(samples["log_theta"]))
        likelihood.append(np.asarray(samples["log_likelihood"]))
    return {
        "asked": asked,
        "computed": computed,
        **_quality(np.stack(draws, -1), np.stack(likelihood, -1)),
    }


def _quality(draws: np.ndarray, likelihood: np.ndarray) -> dict:
    import arviz_stats.base as base

    ess = [
        base.array_stats.ess(draws[..., i], chain_axis=0, draw_axis=1)
        for i in range(1, draws.shape[-1])
    ]
    trapezoid = np.trapezoid(likelihood.mean(axis=(0, 1)), mp.power_ladder(draws.shape[-1], POWER))
    return {"min ess": float(np.min(ess)), "trapezoid": float(trapezoid)}


if __name__ == "__main__":
    main()
