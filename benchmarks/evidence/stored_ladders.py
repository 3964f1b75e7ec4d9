"""Stored ladders with mistakes in them: what is detected, with and without the model, and what is
still computed.

    python -m benchmarks.evidence.stored_ladders

van der Pol, 31 rungs of 200 independent draws in four chains; log evidence 10.35590262. The
mistakes: the constant −(n/2) log 2π left out of the log likelihood, thirty per cent of the states
repeated as by a sampler that rejects, scores ten per cent too large.
"""

import warnings
from typing import Any

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.evidence._van_der_pol import LOG_EVIDENCE, exact_ladder
from models import van_der_pol

LADDER = mp.power_ladder(31, 5)
CHAINS, DRAWS = 4, 50


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    Command(__doc__, quick="").parse_args()
    rows = [
        row(mistake, stored, known)
        for mistake, stored in ladders().items()
        for known in ("nothing else", "the model")
    ]
    emit(
        "stored_ladders",
        "what mistakes in a stored ladder do",
        rows,
        log_evidence=LOG_EVIDENCE,
        draws=CHAINS * DRAWS,
    )


def ladders() -> dict[str, tuple[np.ndarray, ...]]:
    """Return draws, log likelihood and both gradients, (chain, draw, rung, ...), under each
    mistake."""
    rng = generator("stored ladders", 0)
    draws, likelihood, slope, prior = (
        np.asarray(array).reshape(CHAINS, DRAWS, len(LADDER), *np.asarray(array).shape[3:])
        for array in exact_ladder(rng, CHAINS * DRAWS, LADDER)
    )
    constant = 0.5 * len(van_der_pol.OBSERVED) * np.log(2 * np.pi)
    moved = np.maximum.accumulate(np.where(rng.random(DRAWS) < 0.3, 0, np.arange(DRAWS)))
    return {
        "none": (draws, likelihood, slope, prior),
        "constant left out": (draws, likelihood + constant, slope, prior),
        "30 % repeats": tuple(array[:, moved] for array in (draws, likelihood, slope, prior)),
        "scores × 1.1": (draws, likelihood, 1.1 * slope, 1.1 * prior),
    }


def row(mistake: str, stored: tuple[np.ndarray, ...], known: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "mistake": mistake,
        "known": known,
        "log evidence": np.nan,
        "error": np.nan,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tree = mp.ladder_from_arrays(LADDER, *stored, names=("log_theta",))
            if known == "the model":
                tree = mp.ladder_from_traces(tree, van_der_pol.model, kwargs=van_der_pol.data())
            evidence = mp.log_evidence(tree)
            found["log evidence"], found["error"] = f"{evidence.value:.6f}", float(evidence.error)
            found["method"] = evidence.method
        except (ValueError, mp.ScoreError) as error:
            found["method"] = "refused: " + str(error)[:160]
    found["said"] = " | ".join(str(item.message)[:160] for item in caught)
    return found


if __name__ == "__main__":
    main()
