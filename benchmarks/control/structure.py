"""Means of hierarchical models with and without the structure that their names tell: gains,
calibration, costs.

    python -m benchmarks.control.structure [--models NAME ...] [--structures NAME ...] [--replicates
    12]

A row is all globals, scales or locals of a model, each a kind that `benchmarks.control._posteriors`
gives every variable. One call of `mcmcpost.expectation` reduces all quantities of the model, so
that `sampler CPU s` and `reduction CPU s` are the same in its rows: medians over the replicates,
with programs compiled before.

``structure`` : `with` is ``auto`` with the labels of the trace's coordinates. `without` has labels
    of scalars only, so that only polynomials and kernels are left. `shuffled` has the trace's
    labels in random order, so that sums are over coordinates that have nothing in common: it should
    be no worse than `scores`, the method ``zv1``.
``true gain`` : mean square error of the plain mean over that of the controlled one, median of the
    entries, and the least of them.
``reported`` : median of (plain error/controlled error)².
``z²`` : mean of ((mean − truth)/error)², the error of the truth included, and the largest of an
    entry. With 12 replicates one that is right has z² above 1.75 in one of twenty entries.
``truth`` : square error of the truth over the mean square error of the controlled mean. Where it is
    not small, the true gain is larger than the table says.

Replicates are 4 × 1,000 draws of nutpie after 1,000 of warm-up. The truth is from 400,000 other
draws or 800,000, with a control variate by least squares. Both are kept in the folder of
`benchmarks.control.costs`.
"""

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray

from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import RESULTS, emit
from benchmarks.control import costs
from benchmarks.control._posteriors import GLOBALS, LOCALS, SCALES

MODELS = (
    "radon-centred",
    "radon",
    "crossed",
    "nested",
    "walk",
    "autoregression",
    "item-response",
    "horseshoe",
    "gaussian-process",
    "spatial",
    "interaction",
    "walks",
)


def as_sampled(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del rng  # as those that need none
    return labels


def scalars(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return labels without an index, of which none is an entry of a variable."""
    del rng
    return np.array([f"p{place}" for place in range(len(labels))])


def shuffled(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(labels)


class Structure(NamedTuple):
    """What a method is told of the coordinates: (labels, generator) ↦ their labels."""

    relabel: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    method: str = "auto"


STRUCTURES: Mapping[str, Structure] = {
    "with": Structure(as_sampled),
    "without": Structure(scalars),
    "shuffled": Structure(shuffled),
    "scores": Structure(as_sampled, "zv1"),
}


def case_of(name: str, structure: Structure, folder: Path) -> costs.Case:
    """Return a model's case, whose rows are kinds of quantities and whose traces have the labels of
    a structure."""
    store = costs.Store(folder, name)
    first, posterior = store.replicate(0), store.posterior

    def tree(r: int) -> xarray.DataTree:
        sampled = store.replicate(r)
        stats = sampled["sample_stats"].to_dataset()
        labels = structure.relabel(stats["unconstrained_parameter"].values, generator(name, r))
        stats = stats.assign_coords(unconstrained_parameter=labels)
        return costs.reduced_tree(
            sampled["posterior"].to_dataset(), stats, sampled.attrs["sampling_cpu_seconds"]
        )

    names, _ = costs.stacked(first, posterior.variables)
    kind = [posterior.kinds[label.split("[")[0]] for label in names]
    places = {
        one: [j for j, own in enumerate(kind) if own == one]
        for one in (GLOBALS, SCALES, LOCALS)
        if one in kind
    }
    num_parameters = first["sample_stats"].sizes["unconstrained_parameter"]
    reduce = costs.expectations(list(posterior.variables))
    return costs.Case(name, num_parameters, tree, reduce, places, store.truth())


def rows(case: costs.Case, name: str, replicates: int) -> list[dict]:
    """Reduce the replicates of a case and return a row for each kind of quantities."""
    measured = costs.measure(case, STRUCTURES[name].method, replicates)

    def row(kind: str, places: list[int]) -> dict:
        true = measured.true[places]
        z2 = measured.z2[:, places].mean(0)
        return {
            "model": case.name,
            "d": case.num_parameters,
            "kind": kind,
            "number": len(places),
            "structure": name,
            "sampler CPU s": measured.sampler,
            "reduction CPU s": measured.reduction,
            "true gain": float(np.median(true)),
            "least true gain": float(true.min()),
            "reported": float(np.median(measured.reported[places])),
            "z²": float(z2.mean()),
            "worst z²": float(z2.max()),
            "truth": float(np.median(measured.share[places])),
            "status": costs.counted(measured.status[:, places]),
        }

    return [row(kind, places) for kind, places in case.places.items()]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--models nested --structures with --replicates 2")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=list(STRUCTURES))
    parser.add_argument("--replicates", type=int, default=12)
    parser.add_argument(
        "--folder", type=Path, default=costs.FOLDER, help="of replicates and truths"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the other rows of the table as they are"
    )
    args = parser.parse_args()
    title = "Means of hierarchical models, with and without the structure that names tell"
    kept = (
        json.loads((RESULTS / "structure.json").read_text())
        if args.keep and not args.quick
        else {"rows": []}
    )
    table: list[dict] = kept["rows"]
    for model, name in itertools.product(args.models, args.structures):
        table = [row for row in table if (row["model"], row["structure"]) != (model, name)]
        table += rows(case_of(model, STRUCTURES[name], args.folder), name, args.replicates)
        # rows of a kind one below the other, so that structures are compared at a glance
        table.sort(key=place)
        print(f"{model}, {name}: done", file=sys.stderr, flush=True)
        emit("structure", title, table, final=False, replicates=args.replicates)
    emit("structure", title, table, replicates=args.replicates)


def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the place of a row in the table."""
    kinds, structures = [GLOBALS, SCALES, LOCALS], list(STRUCTURES)
    return MODELS.index(row["model"]), kinds.index(row["kind"]), structures.index(row["structure"])


if __name__ == "__main__":
    main()
