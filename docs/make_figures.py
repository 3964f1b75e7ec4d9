"""Draw the figures of the README and of the gallery, from real posteriors: ``python
docs/make_figures.py``.

It samples the hare–lynx posterior and a ladder of the radiata pine regression and writes PNG files
beside the other static files of the documentation; a few minutes on one core. Run it when a plot,
an estimate or its error changes.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray
from numpyro.infer import MCMC, NUTS

import mcmcpost as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from models import borehole, lotka_volterra, radiata_pine

FIGURES = Path(__file__).parent / "_static" / "figures"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
LONGEST = 30 * 86_400.0


def save(name: str) -> None:
    """Write the current figure; the same input gives the same file."""
    FIGURES.mkdir(exist_ok=True)
    plt.savefig(FIGURES / f"{name}.png", bbox_inches="tight", metadata={"Software": None})
    plt.close()


def hare_lynx() -> None:
    """Draw what `reduce` does to the means of the hare–lynx posterior, and what the gate and the
    residuals say."""
    mcmc = MCMC(
        NUTS(lotka_volterra.model),
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    data = lotka_volterra.data(priors="stan")
    mcmc.run(jax.random.key(1), **data, extra_fields=("z_grad",))
    trace = mp.from_numpyro(mcmc)
    estimate = mp.expectation(trace, ["theta", "z_init", "sigma"])
    mp.plot_controlled_forest(estimate)
    save("controlled_forest")
    dist = mp.distribution(trace, ["theta", "z_init", "sigma"])
    mp.plot_distribution(dist, ["theta", "sigma"], kde=True)
    save("distribution")
    mp.plot_gain(estimate)
    save("gain")
    values = np.concatenate(
        [trace.posterior[name].values for name in ("theta", "z_init", "sigma")], axis=-1
    )
    mp.plot_residual_autocorrelation(estimate, values)
    save("residual_autocorrelation")
    mp.plot_score_check(
        mp.check_tree(trace), list(map(str, trace.sample_stats["unconstrained_parameter"].values))
    )
    save("score_check")


def evidence() -> None:
    """Draw the path of a ladder of 16 rungs."""
    ladder = mp.sample_power_posteriors(
        radiata_pine.model,
        kwargs=radiata_pine.data(),
        temperatures=mp.power_ladder(16, 5),
        key=jax.random.key(2),
        progress=False,
    )
    mp.plot_evidence_path(mp.log_evidence(ladder))
    save("evidence_path")


def tasks() -> None:
    """Draw the learnt relation of two fidelities of the borehole, twenty runs each."""

    def runs(seed: int, flow: Callable[[np.ndarray], object]) -> xarray.DataTree:
        draws, scores = borehole.sample(np.random.default_rng(seed), 20)
        return mp.from_arrays(
            draws[None], scores[None], values=np.asarray(flow(draws))[None, :, None]
        )

    known = (borehole.MEAN, borehole.SD)
    both = {"high": (runs(1, borehole.flow_high), None), "low": (runs(2, borehole.flow_low), None)}
    mp.plot_task_correlation(mp.joint_expectation(both, standardize=known))
    save("task_correlation")


KINDS = {"means": "o", "scales": "s", "quantiles": "^", "evidence": "D"}
"""Rows of the table of real models, and their markers."""


def real_models() -> None:
    """Draw what sampling the precision of one thousand draws with mcmcpost would cost, of twelve
    models."""
    rows = json.loads((RESULTS / "real_models.json").read_text())["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    _, ax = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    for height, model in enumerate(reversed(models)):
        own = {row["what"]: row for row in rows if row["model"] == model}
        for place, (kind, marker) in enumerate(KINDS.items()):
            at, color = height + 0.18 * (1.5 - place), f"C{place}"
            # Beyond a month of one core it does not matter by how much.
            seconds = min(own[kind]["sampler s"], LONGEST)
            label = kind if height == 0 else None
            ax.plot(seconds, at, marker, color=color, label=label, ms=5)
            ax.plot(own[kind]["CPU s"], at, "|", color=color, ms=9, mew=2)
    ax.set(
        xscale="log",
        xlabel="CPU seconds of sampling for the same error; bars: of mcmcpost",
        yticks=range(len(models)),
        yticklabels=[
            f"{name} ({next(row['d'] for row in rows if row['model'] == name)})"
            for name in reversed(models)
        ],
    )
    ax.grid(axis="x", alpha=0.3)
    ax.legend(loc="lower right", fontsize="small")
    save("real_models")


def sums_cost() -> None:
    """Draw what sums over a trace in chunks cost against draws, parameters and quantities, beside
    reading the trace."""
    rows = json.loads((RESULTS / "sums_cost.json").read_text())["rows"]
    varied = ("draws", "parameters", "quantities")
    _, axes = plt.subplots(1, 3, figsize=(9.0, 3.2), sharey=True, layout="constrained")
    for ax, name in zip(axes, varied, strict=True):
        line = sorted(
            (row for row in rows if row["varied"] in ("none", name)), key=lambda row: row[name]
        )
        for column, label in (("CPU s", "sums and estimates"), ("reading s", "reading")):
            ax.plot([row[name] for row in line], [row[column] for row in line], "o-", label=label)
        ticks = [row[name] for row in line]
        ax.set(xscale="log", yscale="log", xlabel=name)
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.set_xticks([], minor=True)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds")
    axes[0].legend(fontsize="small")
    save("sums_cost")


def structure() -> None:
    """Draw which products x_i s_j share a coefficient in each family, of three globals and two
    blocks of eight."""
    names, sizes = ("globals", "block a", "block b"), (3, 8, 8)
    of, place = np.repeat(np.arange(3), sizes), np.concatenate([np.arange(size) for size in sizes])
    i, j = np.indices((len(of), len(of)))
    kind, ahead = 3 * of[i] + of[j], place[j] - place[i]
    in_blocks, both_global, alike = (of[i] > 0) & (of[j] > 0), of[i] + of[j] == 0, of[i] == of[j]
    # each pair of coordinates has its own
    pair = 10 + np.minimum(i, j) * len(of) + np.maximum(i, j)
    of_sums = np.where(in_blocks | (of[j] == 0), 10 * kind + place[j] * (of[j] == 0), -1)
    panels = {
        "all pairs, which these replace": pair,
        "sums over the groups": np.where(in_blocks & (ahead == 0), kind, -1),
        "products of sums, and globals": np.where(both_global, pair, of_sums),
        "neighbours": np.where(in_blocks & alike & (abs(ahead) == 1), 2 * kind + (ahead > 0), -1),
        "squares": np.where(i == j, i, -1),
        "pairs": np.where(
            (in_blocks & ~alike & (ahead == 0)) | ((of[i] == 0) ^ (of[j] == 0)), pair, -1
        ),
    }
    fig, axes = plt.subplots(2, 3, figsize=(9.0, 6.2), layout="constrained")
    for ax, (title, controls) in zip(axes.flat, panels.items(), strict=True):
        number = np.unique(controls, return_inverse=True)[1].reshape(controls.shape)
        ax.pcolormesh(
            np.ma.masked_where(controls < 0, number % 10),
            cmap="tab10",
            vmin=0,
            vmax=9,
            ec="w",
            lw=0.5,
        )
        middles, edges = np.cumsum(sizes) - np.array(sizes) / 2, np.cumsum(sizes)[:-1]
        ax.set(
            title=title,
            aspect="equal",
            xticks=middles,
            xticklabels=names,
            yticks=middles,
            yticklabels=names,
        )
        ax.invert_yaxis()
        ax.tick_params(length=0)
        for edge in edges:
            ax.axhline(edge, color="0.6", lw=0.8)
            ax.axvline(edge, color="0.6", lw=0.8)
    fig.supxlabel("score $s_j$")
    fig.supylabel("coordinate $x_i$")
    save("structure")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", mp.ScoreWarning)  # twenty draws are too few to test the scores
    mpl.rcParams["savefig.dpi"] = 130
    hare_lynx()
    evidence()
    tasks()
    structure()
    real_models()
    sums_cost()
