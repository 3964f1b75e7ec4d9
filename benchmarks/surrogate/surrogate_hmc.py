"""Surrogate HMC against plain HMC, NUTS and adjusted MCLMC: effective draws per true gradient and
per true energy.

    python -m benchmarks.surrogate.surrogate_hmc python -m benchmarks.surrogate.surrogate_hmc
    --targets logistic lotka_volterra van_der_pol --name _models python -m
    benchmarks.surrogate.surrogate_hmc --targets epidemics --rivals --samples 1000 --name
    _peers_epidemics

``banana``: equation 30 of de Roos, Gessner and Hennig (ICML 2021) in 100-D, P(|x₁| > 2) = 0.0455;
``rotation 0`` to ``rotation 9`` turn it at random. ``ten bananas``: ten of them in 20-D, where a
surrogate of few directions should decline. Chains start from N(0, I), those of the models near the
mode. All gradients are counted, warm-up included; ``energies`` are those that an acceptance rests
on (every leapfrog step of NUTS). ``bulk`` and ``tail`` are the least effective sizes over
coordinates, the columns per thousand take the lesser of the two; ``without`` leaves out the
gradients ``for warm-up``, as a long run would. ``HMC, same warm-up`` is the kernel with true
gradients only; ``forced, 8 × 100`` has eight directions and a hundred points and is never declined;
``HMC`` and ``NUTS`` are NumPyro's, with a diagonal mass matrix for the densities and a dense one
for the models, ``long`` with a warm-up of 1,000. ``MCLMC, 2`` is BlackJAX's adjusted MCLMC with
proposals of two integrator steps on average, four gradients, and ``dense`` its preconditioning by
the covariance of a first run; it has more draws, as many as cost about the same for all lengths.
``epidemics`` is a hierarchical ODE posterior of 20 parameters. All models have their sites on the
real line.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMC, MCMC, NUTS, init_to_value
from numpyro.infer.util import initialize_model

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.surrogate import _epidemics, _mclmc
from benchmarks.surrogate._published import PublishedSurrogate
from models import lotka_volterra, van_der_pol

STEPS = 16
TAIL = 0.0455002639
NUM_CHAINS = 4
LONG_WARMUP = 1000


class Problem(NamedTuple):
    """A target: a potential in d dimensions, or a model with its arguments and start; `tail` of
    flat draws (…, d).

    declines : whether the surrogate is expected to be declined, so that one of them is enough.
    """

    potential: Callable[[Any], Any] | None = None
    d: int = 0
    model: Callable[..., Any] | None = None
    arguments: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    tail: Callable[[np.ndarray], np.ndarray] | None = None
    declines: bool = False


def banana(x: Any) -> Any:
    return 0.5 * (x[0] ** 2 + (2 * x[0] ** 2 - 2 * x[1] + 2) ** 2 + 2 * jnp.sum(x[2:] ** 2))


def ten_bananas(x: Any) -> Any:
    return sum(banana(pair) for pair in x.reshape(10, 2))


def rotated(seed: int, d: int = 100) -> Problem:
    turn = np.linalg.qr(generator("rotation", seed).standard_normal((d, d)))[0]
    return Problem(lambda x: banana(jnp.asarray(turn) @ x), d, tail=lambda x: abs(x @ turn[0]) > 2)


def logistic(d: int = 20, n: int = 200) -> Problem:
    rng = generator("logistic", 0)
    features = rng.standard_normal((n, d))
    labels = rng.random(n) < 1 / (1 + np.exp(-features @ rng.standard_normal(d)))
    signed = jnp.asarray(features * np.where(labels, 1, -1)[:, None])
    return Problem(lambda x: jnp.sum(jax.nn.softplus(-signed @ x)) + 0.5 * jnp.sum(x**2), d)


def _model(module: Any) -> Problem:
    start = module.init() if hasattr(module, "init") else None
    return Problem(model=module.model, arguments=module.data(), start=start)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "banana": lambda: Problem(banana, 100, tail=lambda x: abs(x[..., 0]) > 2),
    **{f"rotation {seed}": partial(rotated, seed) for seed in range(10)},
    "ten bananas": lambda: Problem(
        ten_bananas, 20, tail=lambda x: abs(x[..., 0]) > 2, declines=True
    ),
    "logistic": logistic,
    "lotka_volterra": lambda: _model(lotka_volterra),
    "van_der_pol": lambda: _model(van_der_pol),
    "epidemics": lambda: _model(_epidemics),
}


class Method(NamedTuple):
    """A kernel of NumPyro or the settings of adjusted MCLMC, and the length of warm-up if not the
    common one."""

    kernel: Any
    num_warmup: int | None = None


def methods(problem: Problem) -> dict[str, Method]:
    return {name: Method(kernel) for name, kernel in kernels(problem).items()} | peers(problem)


def peers(problem: Problem) -> dict[str, Method]:
    """Return what the surrogate is compared with, beside NumPyro's kernels after the same warm-up
    as its own."""
    where = _where(problem)
    other = "NUTS, diagonal, long" if problem.potential is None else "NUTS, dense, long"
    return {
        "surrogate, long": Method(mp.SurrogateHMC(**where, num_steps=STEPS), LONG_WARMUP),
        "NUTS, long": Method(NUTS(**where), LONG_WARMUP),
        other: Method(NUTS(**where | {"dense_mass": problem.model is None}), LONG_WARMUP),
        **{f"MCLMC, {length}": Method(_mclmc.AdjustedMCLMC(length)) for length in (2, 4, 8, 16)},
        **{
            f"MCLMC, dense, {length}": Method(_mclmc.AdjustedMCLMC(length, dense=True))
            for length in (2, 4)
        },
    }


def _where(problem: Problem) -> dict[str, Any]:
    if problem.model is None:
        return {"potential_fn": problem.potential}
    where: dict[str, Any] = {"model": problem.model, "dense_mass": True}
    return (
        where
        if problem.start is None
        else where | {"init_strategy": init_to_value(values=problem.start)}
    )


def kernels(problem: Problem) -> dict[str, Any]:
    where = _where(problem)
    surrogate = {**where, "num_steps": STEPS}
    forced = {"max_gradient_error": np.inf}
    dense = {"NUTS, dense": NUTS(**where, dense_mass=True)} if problem.model is None else {}
    return {
        "NUTS": NUTS(**where),
        **dense,
        "HMC": HMC(**where, num_steps=STEPS, trajectory_length=None),
        "HMC, same warm-up": mp.SurrogateHMC(**surrogate, true_gradient_probability=1.0),
        "surrogate": mp.SurrogateHMC(**surrogate),
        "surrogate, 8 moves": mp.SurrogateHMC(**surrogate, delayed_acceptance=8),
        **{
            f"forced, {q} × {m}": mp.SurrogateHMC(
                **surrogate, surrogate=mp.SubspaceSurrogate(m, q, None, 50), **forced
            )
            for q, m in ((8, 200), (8, 100), (4, 50), (2, 50))
        },
        "published": mp.SurrogateHMC(**surrogate, surrogate=PublishedSurrogate(), **forced),
    }


def ess(draws: np.ndarray, kind: str) -> float:
    """Return the effective size of draws (c, n)."""
    more = {"prob": (0.05, 0.95)} if kind == "tail" else {}
    return float(array_stats.ess(draws, chain_axis=0, draw_axis=1, method=kind, **more))


class Run(NamedTuple):
    """A finished run.

    draws : (c, n, d). warm_up, gradients : true gradients until the end of warm-up, and in all.
        energies : true ones.
    accepted : mean probability of acceptance. seconds : of the CPU, compiling included.
    used, gradient_error : of the surrogate. mcmc : of NumPyro, None for adjusted MCLMC.
    """

    draws: np.ndarray
    warm_up: int
    gradients: int
    energies: int
    accepted: float
    seconds: float
    used: str = "-"
    gradient_error: float = float("nan")
    mcmc: MCMC | None = None


def starts(name: str, problem: Problem) -> Any:
    """Return the starts of all chains of a density, (c, d)."""
    return jnp.asarray(generator(f"{name} start", 0).standard_normal((NUM_CHAINS, problem.d)))


def run(name: str, problem: Problem, method: Method, num_warmup: int, num_samples: int) -> Run:
    if isinstance(method.kernel, _mclmc.AdjustedMCLMC):
        return run_mclmc(name, problem, method.kernel, num_samples)
    start = time.process_time()
    kernel, num_warmup = method.kernel, method.num_warmup or num_warmup
    ours = isinstance(kernel, mp.SurrogateHMC)
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    fields = () if ours else ("num_steps", "accept_prob", "z_grad")
    arguments = problem.arguments or {}
    init = None if problem.potential is None else starts(name, problem)
    warm_up = 0
    if not ours:  # ours counts warm-up itself
        mcmc.warmup(
            jax.random.key(0),
            init_params=init,
            extra_fields=fields,
            collect_warmup=True,
            **arguments,
        )
        warm_up = NUM_CHAINS + int(mcmc.get_extra_fields()["num_steps"].sum())
    mcmc.run(
        jax.random.key(1), init_params=init if ours else None, extra_fields=fields, **arguments
    )
    found = mcmc.get_extra_fields(group_by_chain=True)
    if ours:
        total = {
            key: int(found[f"num_{key}"][:, -1].sum())
            for key in ("true_gradients", "true_energies")
        }
        warm_up, before = (
            int(found[f"num_warmup_{key}"][:, -1].sum()) for key in ("gradients", "energies")
        )
        gradients, energies = warm_up + total["true_gradients"], before + total["true_energies"]
    else:
        gradients = warm_up + int(found["num_steps"].sum())
        tree = isinstance(kernel, NUTS)
        energies = gradients if tree else NUM_CHAINS * (num_warmup + num_samples)
    return Run(
        _flat(problem, mcmc),
        warm_up,
        gradients,
        energies,
        float(found["accept_prob"].mean()),
        time.process_time() - start,
        str(bool(found["surrogate_used"][0, -1])) if ours else "-",
        float(found["gradient_error"][0, -1]) if ours else float("nan"),
        mcmc,
    )


def _flat(problem: Problem, mcmc: MCMC) -> np.ndarray:
    samples = mcmc.get_samples(group_by_chain=True)
    sites = samples if isinstance(samples, dict) else {"x": samples}
    if problem.model is not None:
        sites = {key: sites[key] for key in mcmc.last_state.z}
    return np.concatenate(
        [np.asarray(v).reshape(*v.shape[:2], -1) for v in sites.values()], axis=-1
    )


def run_mclmc(name: str, problem: Problem, settings: _mclmc.AdjustedMCLMC, num_samples: int) -> Run:
    begin = time.process_time()
    if problem.potential is not None:
        potential, start = problem.potential, starts(name, problem)
    else:
        assert problem.start is not None
        info = initialize_model(
            jax.random.key(0),
            problem.model,
            init_strategy=init_to_value(values=problem.start),
            model_kwargs=problem.arguments,
        )
        flat, unravel = ravel_pytree(info.param_info.z)
        potential, start = lambda x: info.potential_fn(unravel(x)), jnp.stack([flat] * NUM_CHAINS)
    found = _mclmc.run(settings, lambda x: -potential(x), start, num_samples)
    return Run(
        found.draws,
        found.warm_up,
        found.warm_up + found.gradients,
        found.energies,
        found.accepted,
        time.process_time() - begin,
    )


def row(name: str, problem: Problem, method: str, done: Run) -> dict[str, Any]:
    flat = done.draws
    bulk, tail = (
        min(ess(flat[..., i], kind) for i in range(flat.shape[-1])) for kind in ("bulk", "tail")
    )
    inside = None if problem.tail is None else problem.tail(flat).astype(float)
    error = float("nan") if inside is None else inside.std() / np.sqrt(ess(inside, "mean"))
    return {
        "target": name,
        "method": method,
        "used": done.used,
        "gradient error": done.gradient_error,
        "accepted": done.accepted,
        "draws": flat.shape[1],
        "bulk": bulk,
        "tail": tail,
        "for warm-up": done.warm_up,
        "gradients": done.gradients,
        "energies": done.energies,
        "per 1000 gradients": 1e3 * min(bulk, tail) / done.gradients,
        "without warm-up": 1e3 * min(bulk, tail) / (done.gradients - done.warm_up),
        "per 1000 energies": 1e3 * min(bulk, tail) / done.energies,
        "P(|x1|>2)": float("nan") if inside is None else inside.mean(),
        "±": error,
        "off": float("nan") if inside is None else (inside.mean() - TAIL) / error,
        "CPU s": done.seconds,
    }


def reduced(name: str, method: str, done: Run) -> list[dict[str, Any]]:
    """Return the effective draws (sd/mcse)² per true gradient, scores counted, with and without
    control variates."""
    tree = mp.from_numpyro(done.mcmc)
    scores = int(tree["sample_stats"].attrs.get("score_evaluations", 0))
    rows = []
    for control in ("plain", "auto"):
        found = mp.expectation(tree, method=control)
        draws = (found.sd / found.mcse) ** 2
        cost = done.gradients + (scores if control != "plain" else 0)
        rows.append(
            {
                "target": name,
                "sampler": method,
                "control": control,
                "gradients": done.gradients,
                "for scores": scores if control != "plain" else 0,
                "least effective draws": float(draws.min()),
                "median": float(np.median(draws)),
                "least per gradient": float(draws.min()) / cost,
                "median per gradient": float(np.median(draws)) / cost,
            }
        )
    return rows


def wanted(problem: Problem, chosen: list[str] | None, against_peers: bool) -> list[str]:
    """Return the names of the methods to run on a problem."""
    if chosen:
        return [name for name in methods(problem) if name in chosen]
    if against_peers:
        fewer = ("NUTS, diagonal, long", "MCLMC, 4", "MCLMC, 8", "MCLMC, 16")
        return [
            "NUTS",
            "surrogate",
            *(name for name in peers(problem) if problem.model is None or name not in fewer),
        ]
    names = kernels(problem)
    few = {"NUTS", "NUTS, dense", "HMC", "surrogate"}
    return [
        name for name in names if name in few or not (problem.declines or name.startswith("forced"))
    ]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--targets banana --methods NUTS surrogate --samples 300")
    parser.add_argument("--targets", nargs="+", choices=PROBLEMS, default=["banana", "ten bananas"])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=None,
        help="those of this package and NumPyro, or the peers, by default",
    )
    parser.add_argument(
        "--rivals",
        action="store_true",
        help="long warm-ups and adjusted MCLMC, no control variates",
    )
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--samples", type=int, default=2000)
    args = parser.parse_args()
    title = "Surrogate HMC: effective draws per true gradient and per true energy, warm-up counted"
    settings = {
        "chains": NUM_CHAINS,
        "warmup": args.warmup,
        "samples": args.samples,
        "steps": STEPS,
    }
    rows: list[dict[str, Any]] = []
    products: list[dict[str, Any]] = []
    for name in args.targets:
        problem = PROBLEMS[name]()
        for method in wanted(problem, args.methods, args.rivals):
            done = run(name, problem, methods(problem)[method], args.warmup, args.samples)
            rows.append(row(name, problem, method, done))
            if done.mcmc is not None and problem.model is not None and not args.rivals:
                products += reduced(name, method, done)
            emit("surrogate_hmc" + args.name, title, rows, final=False, **settings)
    emit("surrogate_hmc" + args.name, title, rows, **settings)
    if products:
        emit(
            "surrogate_product" + args.name,
            "The product of both gains: surrogate and control variates",
            products,
        )


if __name__ == "__main__":
    main()
