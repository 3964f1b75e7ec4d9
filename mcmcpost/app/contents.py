"""The contents of a report: estimates, evidence and joint estimates, and their tables as text."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost.control import Estimate
from mcmcpost.core.arrays import columns_of, in_blocks
from mcmcpost.core.errors import REPRODUCED, WITHOUT_GAIN, Status
from mcmcpost.core.mcse import rank_rhat
from mcmcpost.core.runtime import digits_of, number_of_draws, number_of_quantities, significant
from mcmcpost.evidence import Evidence
from mcmcpost.scores import ScoreCheck
from mcmcpost.tasks import JointEstimate

TAIL = (0.05, 0.95)
"""Quantiles of the effective sample size of the tail, as in ``az.summary``."""


MANY_ROWS, FOLDED_ROWS = 30, 8
"""Rows of a table above which it is grouped by variable, and rows of a variable above which they
are folded."""


class PosteriorSection(NamedTuple):
    """One trace: its estimate, the integrands (c, n, p) behind it, and what the score gate found.

    values : at all draws; of a trace that stayed in its file at evenly spaced ones. size : the
        chains and their draws.
    parameters : d labels of the unconstrained coordinates. divergences : transitions after warm-up,
    None where they are not recorded. quantiles, intervals : of the integrands, where they are asked
    for.
    """

    estimate: Estimate
    values: Float[np.ndarray, "c n p"]
    size: tuple[int, int]
    check: ScoreCheck
    parameters: tuple[str, ...]
    divergences: int | None
    quantiles: Estimate | None = None
    intervals: Estimate | None = None

    def listed(self) -> "PosteriorSection":
        """Return the part without constants and doubles, which a report names in a line; all where
        none is left."""
        # A correlation matrix has ones on its diagonal and every other element twice.
        places = self.estimate.listed
        if not len(places) or len(places) == len(self.estimate.names):
            return self
        return self._replace(
            estimate=self.estimate.select(places), values=columns_of(self.values, places)
        )


class EvidenceSection(NamedTuple):
    """A log evidence with its tables: one row per method, one per rung (data frames)."""

    evidence: Evidence
    methods: Any
    rungs: Any


class Contents(NamedTuple):
    """Everything in a report; a part that is None has no section.

    title : heading. notices : warnings, shown first. asked, provenance : from label to text.
    """

    title: str
    notices: tuple[str, ...]
    asked: dict[str, str]
    provenance: dict[str, str]
    posterior: PosteriorSection | None
    evidence: EvidenceSection | None
    joint: JointEstimate | None


def estimate_rows(estimate: Estimate) -> list[dict[str, str]]:
    """Return one row of text per quantity, every mean to the digits that its error supports."""
    return [
        {
            "name": name,
            # A digit beyond the error is noise, and invites comparing it.
            "mean": digits_of(estimate.mean_plain[j], estimate.mcse_plain[j]),
            "sd": significant(estimate.sd[j], 3),
            "mcse": significant(estimate.mcse_plain[j], 2),
            "mean_cv": digits_of(estimate.mean[j], estimate.mcse[j]),
            "mcse_cv": significant(estimate.mcse[j], 2),
            "gain": gain_text(estimate, j),
            "method": estimate.method[j],
            "status": str(estimate.status[j]),
        }
        for j, name in enumerate(estimate.names)
    ]


def listed_rows(estimate: Estimate) -> list[dict[str, str]]:
    """Return the rows without those of constants and doubles."""
    rows = estimate_rows(estimate)
    return [rows[j] for j in estimate.listed]


def recorded_text(name: str, value: object) -> str:
    """Return an attribute that a sampler has recorded as text, a time with its unit."""
    # Texts of other programs are kept as they are.
    if name == "sampling_time" and isinstance(value, int | float | np.number):
        return f"{significant(float(value), 3)} s"
    return str(value)


class Group(NamedTuple):
    """Rows of a table that are shown together; folded under `label` where that is not empty, with
    `note` beside it."""

    label: str
    note: str
    rows: list[dict[str, str]]


def groups_of(
    rows: list[dict[str, str]], note: Callable[[list[dict[str, str]]], str]
) -> list[Group]:
    """Return rows as one group where they are few; otherwise large variables are folded, after all
    other rows.

    note : what to say of the rows of a folded variable.
    """
    # Folding a table that fits on a screen would hide it.
    if len(rows) <= MANY_ROWS:
        return [Group("", "", rows)]
    by_variable: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_variable.setdefault(variable_of(row["name"]), []).append(row)
    large = {
        name: elements for name, elements in by_variable.items() if len(elements) > FOLDED_ROWS
    }
    # Scalars first: scales and hyper-parameters are what is read, elements are looked up.
    others = [
        row for name, elements in by_variable.items() if name not in large for row in elements
    ]
    folded = [
        Group(f"{name}: {number_of_quantities(len(elements))}", note(elements), elements)
        for name, elements in large.items()
    ]
    return [*([Group("", "", others)] if others else []), *folded]


def variable_of(name: str) -> str:
    """Return the name without the index of an element."""
    return name.partition("[")[0].rstrip()  # of a quantile, "x [0.1]"


def estimates_note(rows: list[dict[str, str]]) -> str:
    """Return how many rows have each status, and their gains."""
    counts = Counter(row["status"] for row in rows)
    # The texts of the rows themselves, so that a note and its rows never differ in the last digit.
    gains = sorted((row["gain"] for row in rows if row["status"] not in WITHOUT_GAIN), key=float)
    listed = ", ".join(f"{count} {status}" for status, count in counts.items())
    span = " to ".join(dict.fromkeys([gains[0], gains[-1]])) if gains else ""
    return f"{listed}; gain {span}" if gains else listed


def convergence_note(rows: list[dict[str, str]]) -> str:
    """Return the largest R-hat and the smallest effective sample sizes of those rows that have
    them: one chain has no R-hat."""
    # As text, like the rows; a NaN compares false with everything and would hide the worst.
    known = {
        kind: [row[kind] for row in rows if row[kind] != "nan"]
        for kind in ("rhat", "ess_bulk", "ess_tail")
    }
    if not (known["ess_bulk"] and known["ess_tail"]):
        return "R-hat and ESS unknown"
    rhat = f"R-hat up to {max(known['rhat'], key=float)}" if known["rhat"] else "R-hat unknown"
    bulk, tail = (min(known[kind], key=float) for kind in ("ess_bulk", "ess_tail"))
    return f"{rhat}, ESS from {bulk} (bulk) and {tail} (tail)"


def request(contents: Contents) -> str:
    """Return in one sentence what was asked."""
    wanted = [] if contents.evidence is None else ["the log evidence"]
    if contents.posterior is not None:
        (chains, draws), p = contents.posterior.size, contents.posterior.values.shape[-1]
        means = "the posterior mean" if p == 1 else "the posterior means"
        kinds = [means]
        kinds += ["the quantiles"] if contents.posterior.quantiles is not None else []
        kinds += ["the intervals"] if contents.posterior.intervals is not None else []
        # A sentence as one would write it: "a, b and c".
        listed = " and ".join([", ".join(kinds[:-1]), kinds[-1]] if kinds[1:] else kinds)
        wanted.append(
            f"{listed} of {number_of_quantities(p)}, from {number_of_draws(chains, draws)}"
        )
    if contents.joint is not None:
        wanted.append(f"the expectations of {len(contents.joint)} related tasks")
    text = " and ".join(wanted)
    return f"{text[0].upper()}{text[1:]}."


def answers(contents: Contents) -> list[str]:
    """Return the log evidence, and what became of the quantities, each in a few words."""
    sentences = []
    if contents.evidence is not None:
        evidence = contents.evidence.evidence
        value = digits_of(evidence.value, evidence.error)
        how = f"{evidence.method}, {evidence.status}"
        sentences.append(
            f"The log evidence is {value} ± {significant(evidence.error, 2)} nats ({how})."
        )
    if contents.posterior is not None:
        sentences.append(
            headline(contents.posterior.estimate.status, contents.posterior.estimate.gain)
        )
    if contents.joint is not None:
        status = tuple(entry for estimate in contents.joint.values() for entry in estimate.status)
        gain = np.concatenate([estimate.gain for estimate in contents.joint.values()])
        sentences.append(f"Related tasks, {headline(status, gain)}")
    return sentences


def listing(names: Sequence[str]) -> str:
    """Return the names, and of more than a table shows unfolded each variable with its number of
    elements."""
    if len(names) <= MANY_ROWS:
        return ", ".join(names)
    sizes = Counter(map(variable_of, names))
    return ", ".join(
        name if size == 1 else f"{name} ({size} elements)" for name, size in sizes.items()
    )


WITHOUT_GAIN_BECAUSE = {
    Status.PLAIN: "no control variate had a smaller error",
    Status.UNSEEN: "no draw contradicts the event, or fewer than three lie beyond the quantile",
    Status.TOO_FEW_DRAWS: "there are too few draws",
    Status.HEAVY_TAIL: "a few draws decide the mean, and no error of it can be trusted",
    Status.UNDEFINED: "the integrand is not finite at some draw",
    Status.BAD_SCORES: "the scores, or the convergence of the chains, are in doubt",
}


def known_lines(estimate: Estimate) -> list[str]:
    """Return lines that name the constants, by value, and the quantities that are the same as
    another."""
    # One line for each value: the zeros of a Cholesky factor are one fact and not a hundred.
    by_value: dict[str, list[str]] = {}
    for name, value in estimate.constants.items():
        by_value.setdefault(f"{value:.6g}", []).append(name)
    lines = [f"constant: {_abridged(names)} = {value}" for value, names in by_value.items()]
    pairs = [f"{name} = {first}" for name, first in estimate.duplicates.items()]
    return [*lines, *([f"the same: {_abridged(pairs)}"] if pairs else [])]


NAMED = 8
"""Quantities that are named in a sentence."""


def _abridged(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def shortfalls(estimate: Estimate) -> list[str]:
    """Return a sentence for each reason for which quantities did not gain."""
    sentences = []
    for status, reason in WITHOUT_GAIN_BECAUSE.items():
        names = [
            name
            for name, entry in zip(estimate.names, estimate.status, strict=True)
            if entry is status
        ]
        if names:
            sentences.append(f"Without a gain, because {reason}: {_abridged(names)}.")
    return sentences


def gain_text(estimate: Estimate, j: int) -> str:
    """Return the gain; of an exact quantity it is rounding and not a number to print."""
    return "–" if estimate.status[j] in REPRODUCED else significant(estimate.gain[j], 3)


def convergence_rows(
    names: tuple[str, ...], values: Float[np.ndarray, "c n p"]
) -> list[dict[str, str]]:
    """Return R-hat, bulk and tail effective sample size of every quantity (Vehtari et al. 2021), as
    text."""
    from arviz_stats.base import array_stats

    rhat, bulk, tail = np.empty((3, len(names)))
    for block in in_blocks(len(names), values.shape[0] * values.shape[1]):  # ranks are copies
        series = values[..., block]
        with np.errstate(all="ignore"):
            rhat[block] = rank_rhat(series)
            bulk[block] = array_stats.ess(series, chain_axis=0, draw_axis=1, method="bulk")
            tail[block] = array_stats.ess(
                series, chain_axis=0, draw_axis=1, method="tail", prob=TAIL
            )
    return [
        {
            "name": name,
            "rhat": significant(float(rhat[j]), 4),
            "ess_bulk": significant(float(bulk[j]), 4),
            "ess_tail": significant(float(tail[j]), 4),
        }
        for j, name in enumerate(names)
    ]


def evidence_rows(section: EvidenceSection) -> list[dict[str, str]]:
    """Return one row of text per method."""
    return [
        {
            "method": str(row.Index),
            "value": digits_of(
                row.log_evidence, np.hypot(row.mcse, np.nan_to_num(row.discretisation_error))
            ),
            "mcse": significant(row.mcse, 2),
            "discretisation": "–"
            if np.isnan(row.discretisation_error)
            else significant(row.discretisation_error, 2),
            "status": row.status,
        }
        for row in section.methods.itertuples()
    ]


def diagnostics_text(evidence: Evidence) -> str:
    """Return in one sentence where a ladder starts, its barrier and what its rungs exchange, and
    the halves' values."""
    info, parts = evidence.info, []
    # A ladder has a barrier and a trace an overlap: what is there says which of them it is.
    if "barrier" in info:
        parts.append(f"{info['num_rungs']} rungs from the {info['reference']}")
        parts.append(
            f"barrier {significant(info['barrier'], 2)}, for which {info['advised_rungs']} "
            "rungs are advised"
        )
        parts += [f"{info['round_trips']} round trips"] if "round_trips" in info else []
    if "participants" in info:
        parts.append(f"{info['participants']:.0f} effective draws overlap with the fitted density")
    parts += [info["modes"]] if "modes" in info else []
    if "halves" in info:
        pairs = zip(info["halves"], info["halves_mcse"], strict=True)
        parts.append(
            "halves " + " and ".join(f"{digits_of(v, e)} ± {significant(e, 2)}" for v, e in pairs)
        )
    return "; ".join(parts)


def rung_rows(section: EvidenceSection) -> list[dict[str, str]]:
    """Return one row of text per rung: R-hat, and where the rungs were controlled mean, gain and
    ESS."""
    rungs = section.rungs
    # Where an end of the ladder is missing no rung was controlled, and only diagnostics are there.
    known = "mean_cv" in rungs
    return [
        {
            "temperature": significant(float(t), 4),
            "mean": digits_of(row["mean_cv"], row["mcse_cv"]) if known else "–",
            "mcse": significant(row["mcse_cv"], 2) if known else "–",
            "gain": significant(row["gain"], 3) if known else "–",
            "ess": significant(row["ess"], 3) if known else "–",
            **{
                key: _with_next(row.get(key, np.nan))
                for key in ("overlap", "rejection", "swap_rate")
            },
            "rhat": significant(row["rhat"], 4),
            "problem": row["problem"] or "none",
        }
        for t, row in rungs.iterrows()
    ]


def _with_next(value: float) -> str:
    return "–" if np.isnan(value) else significant(value, 2)


def joint_rows(joint: JointEstimate) -> list[dict[str, str]]:
    """Return one row of text per integrand of every task."""
    return [
        row | {"name": task if len(estimate.names) == 1 else f"{task}: {row['name']}"}
        for task, estimate in joint.items()
        for row in estimate_rows(estimate)
    ]


def headline(statuses: Sequence[Status], gains: Float[np.ndarray, " p"]) -> str:
    """Return the gains of the quantities in one sentence."""
    usable = [j for j, s in enumerate(statuses) if s not in WITHOUT_GAIN]
    counts = Counter(map(str, statuses))
    listed = ", ".join(f"{count} {status}" for status, count in counts.items())
    gains = gains[usable]
    # An exact quantity has an infinite gain, which would be the largest and say nothing.
    gains = gains[np.isfinite(gains)]
    if not len(gains):
        return f"{number_of_quantities(len(statuses))}: {listed}."
    low, middle, high = (
        significant(float(x), 3) for x in (gains.min(), np.median(gains), gains.max())
    )
    text = f"Gain from {low} to {high}, median {middle}" if len(gains) > 1 else f"Gain {middle}"
    return f"{number_of_quantities(len(statuses))}: {listed}. {text}."
