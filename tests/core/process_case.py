"""Everything long, in one process or in one of several: writes what it found to FOLDER/RANK.npz."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

DATA = np.array([0.3, 1.2, -0.4, 0.9, 0.1])


def main(folder: Path, processes: int, rank: int, port: int) -> None:
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, rank)
    jax.config.update("jax_enable_x64", True)
    found = {"number_of_processes": np.array(jax.process_count())}
    for name, part in PARTS.items():
        found |= {
            f"{name} {quantity}": np.asarray(value) for quantity, value in part(folder).items()
        }
    np.savez(folder / f"{rank}.npz", **found)


def model(y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]))
    numpyro.sample("y", dist.Normal(slope.sum() + jnp.log(rate), 1.0).expand([5]), obs=y)


def scores(folder: Path) -> dict[str, Any]:
    import mcmcpost as mp

    rng = np.random.default_rng(0)
    posterior = {"rate": rng.gamma(2.0, size=(3, 101)), "slope": rng.normal(size=(3, 101, 2))}
    tree = arviz.from_dict({"posterior": posterior})
    scored = mp.attach_scores(tree, model, DATA, batch_size=40, allow_bad_scores=True)
    mp.save_tree(scored, folder / "scores.nc")
    mp.html_report(scored, folder / "report.html", method="zv1", allow_bad_scores=True)
    return {"gradient": scored.sample_stats.gradient}


def log_likelihood(x: jax.Array) -> jax.Array:
    return dist.Normal(x.sum(), 1.0).log_prob(DATA).sum()


def log_prior(x: jax.Array) -> jax.Array:
    return dist.Normal(0.0, 1.0).log_prob(x).sum()


def prior_draw(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (3,))


def ladder(checkpoint: Path, exchange: int | None) -> Any:
    import mcmcpost as mp

    return mp.sample_power_posteriors(
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        sample_prior=prior_draw,
        temperatures=mp.power_ladder(4, 3),
        key=jax.random.key(1),
        num_warmup=40,
        num_samples=60,
        num_chains=3,
        kernel=mp.HamiltonianKernel(num_steps=3),
        exchange=exchange,
        checkpoint=checkpoint,
    )


def facts(tree: Any) -> dict[str, Any]:
    stats = tree.sample_stats
    return {
        "draws": tree.sample_stats.unconstrained_draw,
        "likelihood": stats.gradient_log_likelihood,
        "step size": stats.step_size,
        "work": stats.attrs["lockstep_evaluations"],
    }


def evidence(folder: Path) -> dict[str, Any]:
    import mcmcpost as mp

    tree = ladder(folder / "independent.checkpoint", None)
    found = mp.log_evidence(tree, method="zv1")
    return facts(tree) | {"evidence": (found.value, found.mcse)}


def exchange(folder: Path) -> dict[str, Any]:
    """Go on from where one process was interrupted; one process leaves that behind."""
    from mcmcpost.ladders import sampling

    path, save, calls = folder / "exchange.checkpoint", sampling.save_checkpoint, []
    if path.exists():
        return facts(ladder(path, 3))
    found = facts(ladder(folder / "whole.checkpoint", 3))

    def interrupted(*args: Any) -> None:
        save(*args)
        calls.append(args)
        if len(calls) == 15:
            raise KeyboardInterrupt

    sampling.save_checkpoint = interrupted
    with suppress(KeyboardInterrupt):
        ladder(path, 3)
    sampling.save_checkpoint = save
    return found


def gaussian_process(_: Path) -> dict[str, Any]:
    from mcmcpost.gp import IterativeGP
    from mcmcpost.gp.marginal_likelihood import Pathwise
    from mcmcpost.solve import ConjugateGradients

    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=600)
    gp = IterativeGP(
        solver=ConjugateGradients(1e-11, 200, 20), estimator=Pathwise(8, 200), num_steps=3
    ).fit(X, y)
    mean, variance = gp.predict(X[:9])
    return {"mean": mean, "variance": variance, "noise": gp.noise}


def expectations(_: Path) -> dict[str, Any]:
    import mcmcpost as mp

    draws = np.random.default_rng(2).normal(size=(2, 300, 2))
    tree = mp.from_arrays(draws, -draws)
    weights = mp.stein_weights(tree, method=mp.ControlFunctional(budget=20))
    estimate = mp.expectation(tree, draws**2 + np.sin(draws), method=mp.ZeroVariance(2))
    return {"weights": weights.values, "mean": estimate.mean, "mcse": estimate.mcse}


PARTS = {
    "scores": scores,
    "evidence": evidence,
    "exchange": exchange,
    "gaussian process": gaussian_process,
    "expectations": expectations,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
