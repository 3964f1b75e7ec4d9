"""The figures: plain against controlled, densities, autocorrelation, scores, path of the evidence,
task covariance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import gaussian_kde

from mcmcpost.app.canvas import (
    CIRCLE,
    CONTROLLED,
    DASHED,
    DIAMOND,
    FAINT,
    INK,
    LOWER_RIGHT,
    MOST_NAMED,
    PLAIN,
    SOLID,
    SQUARE,
    THIRD,
    TRIANGLE,
    UPPER_RIGHT,
    WHITE,
    Canvas,
    Series,
    asinh_scaled,
    asinh_ticks,
    canvas_for,
    canvases_for,
    decade_ticks,
    even_ticks,
    matrix_size,
    rows_height,
    whole_ticks,
)
from mcmcpost.app.contents import variable_of
from mcmcpost.control import Distribution, Estimate
from mcmcpost.core.arguments import (
    as_float64,
    as_labels,
    as_names,
    check_count,
    check_flags,
    check_kind,
)
from mcmcpost.core.errors import REPRODUCED, InputError, Status
from mcmcpost.core.runtime import did_you_mean, digits_of, significant
from mcmcpost.distributions import distribution, resolve_interval
from mcmcpost.evidence import PATH_POWER, REFERENCE_POWER, BridgeOverlap, Evidence, PathDiagnostics
from mcmcpost.scores import ScoreCheck
from mcmcpost.sums import places_named
from mcmcpost.tasks import JointEstimate

if TYPE_CHECKING:
    import xarray

ROOM = 1.4
"""Length of the axis of gains relative to the longest bar; text follows the bars."""


def plot_controlled_forest(
    estimate: Estimate,
    ax: Any = None,
    *,
    intervals: Estimate | None = None,
    backend: str | None = None,
) -> Any:
    """Plot plain and controlled means with ± two standard errors, one row per quantity.

    Values are differences from the controlled mean in posterior standard deviations, so that
    quantities of different units share an axis.

    Parameters
    ----------
    estimate : from `expectation`; a quantity that is not finite has an empty row.
    intervals : from `Distribution.interval`, of the same quantities: intervals of the posterior,
        whose bounds have errors too, are drawn as lines.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.
    """
    where = "plot_controlled_forest"
    check_kind(where, "estimate", estimate, Estimate, "Pass what expectation returned.")
    check_kind(
        where, "intervals", intervals, (Estimate, None), "Pass distribution(trace).interval(0.89)."
    )
    if intervals is not None and [
        name.rpartition(" [")[0] for name in intervals.names[::2]
    ] != list(estimate.names):
        cure = "Pass distribution(trace).interval(0.89) of the same integrands."
        raise InputError(
            where,
            "`intervals` of the quantities of the estimate",
            ", ".join(intervals.names[:4]),
            cure,
        )
    canvas = canvas_for(where, ax, backend, (7.0, rows_height(len(estimate.names))))
    # A constant has no standard deviation, and lies at zero.
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)
    rows = np.arange(len(estimate.names))
    canvas.vertical_line(0.0, FAINT)
    reach = [0.0]
    if intervals is not None:
        ends = (intervals.mean.reshape(-1, 2) - estimate.mean[:, None]) / unit[:, None]
        errors = 2 * intervals.mcse.reshape(-1, 2) / unit[:, None]
        # NaN after each pair breaks the line: one artist, and one entry of the legend, for all
        # rows.
        along = np.append(ends, np.full((len(ends), 1), np.nan), axis=1).ravel()
        title = intervals.names[0].rpartition(" [")[2].partition("_")[0]
        canvas.line(along, np.repeat(rows, 3), FAINT, width=3.0)
        hover = [
            f"{name}: {digits_of(m, e)} ± {significant(e, 2)}"
            for name, m, e in zip(intervals.names, intervals.mean, intervals.mcse, strict=True)
        ]
        canvas.points(
            ends.ravel(),
            np.repeat(rows, 2),
            Series(title, THIRD, DIAMOND),
            hover,
            x_error=errors.ravel(),
        )
        edges = np.concatenate([(ends - errors).ravel(), (ends + errors).ravel()])
        reach += edges[np.isfinite(edges)].tolist()
    # Side by side: where the gain is small the two intervals would hide each other.
    for shift, mean, mcse, series in (
        (-0.16, estimate.mean_plain, estimate.mcse_plain, Series("plain mean", PLAIN, SQUARE)),
        (0.16, estimate.mean, estimate.mcse, Series("control variate", CONTROLLED, CIRCLE)),
    ):
        hover = [
            f"{name}: {digits_of(m, e)} ± {significant(e, 2)}"
            for name, m, e in zip(estimate.names, mean, mcse, strict=True)
        ]
        centre, error = (mean - estimate.mean) / unit, 2 * mcse / unit
        canvas.points(centre, rows + shift, series, hover, x_error=error)
        ends = np.concatenate([centre, centre - error, centre + error])
        reach += ends[np.isfinite(ends)].tolist()
    canvas.rows(estimate.names)
    # With constants alone the axis has no length.
    room = 0.05 * (max(reach) - min(reach)) or 1.0
    limits = (min(reach) - room, max(reach) + room)
    canvas.x_axis(
        "difference from controlled mean (sd), ± 2 mcse", ticks=even_ticks(*limits), limits=limits
    )
    canvas.legend()
    return canvas.target


def plot_gain(estimate: Estimate, ax: Any = None, *, backend: str | None = None) -> Any:
    """Plot the gain (mcse/mcse_cv)², the factor of draws saved, one bar per quantity on a
    logarithmic axis.

    The axis is log₁₀ of the gain, with ticks labelled by the gain. An exact quantity has no finite
    gain: its bar is open and ends at ten times the largest other gain.

    Parameters
    ----------
    estimate : from `expectation`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.
    """
    check_kind("plot_gain", "estimate", estimate, Estimate, "Pass what expectation returned.")
    canvas = canvas_for("plot_gain", ax, backend, (7.0, rows_height(len(estimate.names))))
    constant = np.array([status is Status.CONSTANT for status in estimate.status])
    # The gain of what is reproduced to rounding is rounding: an open bar, longer than all others,
    # says "beyond".
    exact = np.array([status in REPRODUCED for status in estimate.status]) & ~constant
    known = np.isfinite(estimate.gain) & (estimate.gain > 0) & ~exact & ~constant
    lengths = np.where(known, np.log10(estimate.gain, where=known, out=np.zeros(len(exact))), 0.0)
    lengths[exact] = 1.0 + max(lengths.max(initial=0.0), 0.0)
    for shown, filled in ((known, True), (exact, False)):
        canvas.bars(
            np.flatnonzero(shown).tolist(), lengths[shown].tolist(), CONTROLLED, filled=filled
        )
    canvas.vertical_line(0.0, PLAIN)
    # Bars of a gain below one point to the left: the axis begins where they end.
    limits = min(0.0, lengths.min(initial=0.0)) - 0.05, ROOM * max(1.0, lengths.max(initial=0.0))
    texts = [
        f"{significant(gain, 3)}× {status}" if has else str(status)
        for gain, status, has in zip(estimate.gain, estimate.status, known, strict=True)
    ]
    gap = 0.008 * (limits[1] - limits[0])
    canvas.text(np.maximum(lengths, 0.0) + gap, np.arange(len(texts)), texts, align="left")
    canvas.rows(estimate.names)
    canvas.x_axis("gain: factor of draws saved", ticks=decade_ticks(*limits), limits=limits)
    return canvas.target


NUM_POINTS = 101

MOST_PLOTTED = (0.005, 0.995)
"""Quantiles of the draws between which a density is drawn."""

BELOW = 0.06
"""How far below zero the interval is, relative to the largest density."""


def plot_distribution(
    source: "Distribution | xarray.DataTree",
    var_names: str | Sequence[str] | None = None,
    ax: Any = None,
    *,
    ci_prob: float | None = None,
    ci_kind: Literal["eti", "hdi"] | None = None,
    kde: bool = False,
    backend: str | None = None,
) -> list[Any]:
    """Plot the controlled density of each quantity and an interval, both with ± two standard
    errors.

    Parameters
    ----------
    source : from `distribution`; or a trace with scores, of which it is made with the default
        method.
    var_names : quantities, or variables with all of their elements; all by default, of which there
        may be ``arviz_base.rcParams["plot.max_subplots"]``.
    ax : targets to draw on, as in `plot_gain`: one for each quantity, in a list if there are
        several; new ones by default.
    ci_prob, ci_kind : of the interval, ``"eti"`` with equal tails or ``"hdi"``, the shortest; by
        default those of ``arviz_base.rcParams``.
    kde : also draw ArviZ's kernel estimate from the draws, or where they have weights SciPy's.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    list : the targets, one for each quantity. Figures of bokeh are shown together by
        ``bokeh.layouts.gridplot``.

    Raises
    ------
    ValueError : no quantity has such a name, or there are too many; a probability outside (0, 1).
    ScoreError : as in `distribution`.
    """
    from arviz_base import rcParams

    where = "plot_distribution"
    check_flags(where, kde=kde)
    names = (
        None
        if var_names is None
        else as_names(where, "var_names", [var_names] if isinstance(var_names, str) else var_names)
    )
    prob = rcParams["stats.ci_prob"] if ci_prob is None else ci_prob
    interval = resolve_interval(where, prob, ci_kind)
    assert interval is not None  # a probability was given
    # Of a trace only what is drawn is estimated.
    dist = (
        source
        if isinstance(source, Distribution)
        else distribution(source, None if names is None else list(names))
    )
    if names is not None and isinstance(source, Distribution):
        dist = _of_names(where, dist, names)
    most = rcParams["plot.max_subplots"]
    if most is not None and len(dist.names) > most:
        cure = 'Name some in `var_names`, or set arviz_base.rcParams["plot.max_subplots"].'
        raise InputError(where, f"at most {most} quantities", len(dist.names), cure)
    canvases = canvases_for(where, ax, backend, (7.0, 4.0), len(dist.names))
    drawn = [_finite_draws(dist, j) for j in dist.place.tolist()]
    # All quantities at once: the functions of one quantity share their columns but one, so that 101
    # points cost little more than one (docs/mathematics.md section 2, splines and steps).
    points = np.stack([np.linspace(*_reach(*draws), NUM_POINTS) for draws in drawn])
    curve, bounds = dist.pdf(points), dist.interval(*interval)
    ends, errors = bounds.mean.reshape(-1, 2), bounds.mcse.reshape(-1, 2)
    # neither a constant nor one with values that are not finite
    known = np.isfinite(curve.mean).any(axis=1)
    labels = ("density", f"{100 * interval[0]:g} % {interval[1].upper()}", "KDE of the draws")
    for k, (canvas, name) in enumerate(zip(canvases, dist.names, strict=True)):
        # One legend, in the first plot: backends that have one for the whole figure would repeat
        # its entries.
        first = k == np.argmax(known)
        density, within, kernel = labels if first else (None, None, None)
        mean, error = curve.mean[k], 2 * curve.mcse[k]
        if not known[k]:
            canvas.name_x_axis(name, ([], []))
            canvas.text([0.0], [0.0], [str(curve.status[k, 0])])
            continue
        # A density is not negative, though its estimate less two errors may be.
        canvas.band(points[k], np.maximum(mean - error, 0.0), mean + error, CONTROLLED)
        canvas.line(points[k], mean, CONTROLLED, label=density, width=1.5)
        below = np.full(2, -BELOW * np.nanmax(mean))
        canvas.line(ends[k], below, FAINT, width=3.0)
        hover = [
            f"{end}: {digits_of(m, e)} ± {significant(e, 2)}"
            for end, m, e in zip(("lower", "upper"), ends[k], errors[k], strict=True)
        ]
        canvas.points(ends[k], below, Series(within, THIRD, CIRCLE), hover, x_error=2 * errors[k])
        if kde:
            canvas.line(
                points[k], _kernel_estimate(*drawn[k], points[k]), PLAIN, label=kernel, style=DASHED
            )
        canvas.name_x_axis(name, even_ticks(points[k, 0], points[k, -1]))
        canvas.y_axis("density, ± 2 mcse" if first else "")
        if first:
            canvas.legend()
    return [canvas.target for canvas in canvases]


def _of_names(where: str, dist: Distribution, names: Sequence[str]) -> Distribution:
    """Return the distributions of quantities, or of all elements of variables, in the order of the
    names."""
    known = [*dist.names, *dict.fromkeys(map(variable_of, dist.names))]
    for name in names:
        if name not in known:
            cure = (
                f"{did_you_mean(name, known)}There are "
                f"{', '.join(dict.fromkeys(map(variable_of, dist.names)))}."
            )
            raise InputError(where, "`var_names` of the distribution", name, cure)
    places = list(dict.fromkeys(j for name in names for j in places_named(dist.names, name)))
    kept, place = np.unique(dist.place[places], return_inverse=True)
    # Quantiles are found of all quantities of the sample at once: only those that are drawn stay in
    # it.
    return dist.select(kept)._replace(names=tuple(dist.names[j] for j in places), place=place)


def _finite_draws(
    dist: Distribution, j: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"] | None]:
    """Return the finite draws of a quantity and their weights, None without weights."""
    values, weights = dist.sample.values[..., j].reshape(-1), dist.sample.trace.weights
    finite = np.isfinite(values)
    return values[finite], None if weights is None else weights.values.reshape(-1)[finite]


def _reach(
    values: Float[np.ndarray, " m"], weights: Float[np.ndarray, " m"] | None
) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    # NumPy's inverse is the only one of its quantiles that knows weights.
    low, high = np.quantile(values, np.array(MOST_PLOTTED), method="inverted_cdf", weights=weights)
    if low == high:  # nearly all draws have one value
        low, high = values.min(), values.max()
    return float(low), float(high)


def _kernel_estimate(
    values: Float[np.ndarray, " m"],
    weights: Float[np.ndarray, " m"] | None,
    at: Float[np.ndarray, " t"],
) -> Float[np.ndarray, " t"]:
    if weights is not None:
        return gaussian_kde(values, weights=weights)(at)
    from arviz_stats.base import array_stats

    # ArviZ's, so that the picture compares with those of its own; it knows no weights.
    grid, density, _ = array_stats.kde(values)
    return np.interp(at, grid, density)


MAX_LAG = 40


def autocorrelations(
    series: Float[np.ndarray, "c n p"], columns: Sequence[int], max_lag: int = MAX_LAG
) -> Float[np.ndarray, "k q"]:
    """Return the autocorrelation of q columns at lags 0, 1, …, averaged over chains; NaN for a
    constant series."""
    from arviz_stats.base import array_stats

    lags = min(max_lag + 1, series.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [array_stats.autocorr(series[..., j], axis=-1)[:, :lags].mean(0) for j in columns]
    return np.stack(parts, axis=-1)


def plot_residual_autocorrelation(
    estimate: Estimate,
    values: Float[np.ndarray, "c n p"],
    ax: Any = None,
    *,
    max_lag: int = MAX_LAG,
    backend: str | None = None,
) -> Any:
    """Plot the autocorrelation of the integrands f and of the cross-fitted residuals f − g: thin
    lines, thick median.

    The mcse depends on the autocorrelation of the residuals: a gain is smaller where they are more
    autocorrelated.

    Parameters
    ----------
    estimate : of p quantities. Those whose residual is at rounding, or not finite, are left out.
    values : (c, n, p) the integrands at the draws.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.
    max_lag : last lag.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.
    """
    where = "plot_residual_autocorrelation"
    check_kind(where, "estimate", estimate, Estimate, "Pass what expectation returned.")
    check_count(where, "max_lag", max_lag, f"Use {MAX_LAG}.")
    values, shape = (
        as_float64(where, "values", values, "chain, draw, p", copy=False),
        estimate.residuals.shape,
    )
    if values.shape != shape:
        raise InputError(
            where,
            f"`values` of shape {shape}",
            values.shape,
            "Pass the integrands of the estimate.",
        )
    canvas = canvas_for("plot_residual_autocorrelation", ax, backend, (7.0, 3.2))
    # A residual at rounding has the autocorrelation of rounding.
    shown = [
        j
        for j, status in enumerate(estimate.status)
        if status not in (*REPRODUCED, Status.UNDEFINED)
    ]
    canvas.horizontal_line(0.0, FAINT)
    lags = np.arange(min(max_lag + 1, values.shape[1]), dtype=float)
    for series, color, style, label in (
        (values, PLAIN, DASHED, "integrand"),
        (estimate.residuals, CONTROLLED, SOLID, "residual"),
    ):
        if shown:
            lines = autocorrelations(series, shown, max_lag)
            if len(shown) > 1:
                # One artist, broken by NaN: sixty quantities would otherwise be a hundred and
                # twenty.
                broken = np.append(lines, np.full((1, len(shown)), np.nan), axis=0).ravel("F")
                along = np.tile(np.append(lags, np.nan), len(shown))
                canvas.line(along, broken, color, style=style, width=0.6, alpha=0.5)
            canvas.line(lags, np.median(lines, axis=1), color, label=label, style=style, width=2.0)
    places = whole_ticks(len(lags) - 1)
    canvas.x_axis("lag (draws)", ticks=(places, list(map(str, places))))
    canvas.y_axis("autocorrelation")
    if shown:
        canvas.legend(UPPER_RIGHT)
    return canvas.target


FAR = 1e4
"""Every larger |z| is drawn at this value."""


def plot_score_check(
    check: ScoreCheck,
    names: Sequence[str] | None = None,
    ax: Any = None,
    *,
    rows: int | None = None,
    backend: str | None = None,
) -> Any:
    """Plot the tests of Stein's identity, one row per unconstrained parameter, against the
    threshold that passes.

    z of E[s_j] = 0, z of E[(x_j − x̄_j) s_j] = −1, and the largest |z| of E[(x_i − x̄_i) s_j] = 0
    over i ≠ j. Where one is far above the threshold the axis is asinh(|z|/threshold), with ticks
    labelled by |z|.

    Parameters
    ----------
    check : from `check_tree`.
    names : d labels; ``x[j]`` by default.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.
    rows : number of parameters that are drawn, the first ones; all by default.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.
    """
    check_kind("plot_score_check", "check", check, ScoreCheck, "Pass what check_tree returned.")
    d = len(check.z_mean)
    known = as_labels("plot_score_check", names, d)
    check_count("plot_score_check", "rows", rows, "Leave it out for all.", optional=True)
    shown = d if rows is None else min(rows, d)
    canvas = canvas_for("plot_score_check", ax, backend, (7.0, rows_height(shown)))
    labels = list(known[:shown])
    product = np.abs(check.z_product)
    # −∞ takes no part in a maximum: the diagonal is a test of its own, and NaN is a test that was
    # not made.
    off = np.where(np.eye(d, dtype=bool) | np.isnan(product), -np.inf, product).max(axis=0)
    tests = (
        (np.abs(check.z_mean), Series("mean of the score", CONTROLLED, CIRCLE)),
        (np.diagonal(product), Series("draw × own score", THIRD, DIAMOND)),
        (
            np.where(np.isfinite(off) | (off > 0), off, np.nan),
            Series("draw × other scores", PLAIN, TRIANGLE),
        ),
    )
    # Scores of the wrong sign have |z| of thousands, beside which the threshold would be on the
    # axis itself.
    largest = min(FAR, max(np.nanmax(z[:shown], initial=check.threshold) for z, _ in tests))
    far = largest > 3 * check.threshold
    for z, series in tests:
        hover = [
            f"{name}: |z| = {significant(value, 3)}"
            for name, value in zip(labels, z[:shown], strict=True)
        ]
        near = np.minimum(z, FAR)[:shown]
        canvas.points(
            asinh_scaled(near, check.threshold) if far else near, np.arange(shown), series, hover
        )
    # On the scale of the axis, which is asinh where something is far.
    ends = np.array([check.threshold, largest])
    limit, most = (asinh_scaled(ends, check.threshold) if far else ends).tolist()
    canvas.line(
        [limit, limit], [-0.6, shown - 0.4], INK, label="largest |z| that passes", style=DASHED
    )
    canvas.rows(labels)
    ticks = asinh_ticks(check.threshold, largest) if far else None
    canvas.x_axis("|z|", ticks=ticks, limits=(0.0, 1.04 * most))
    canvas.legend()
    return canvas.target


SHOWN = ("mean", "barrier")


def plot_evidence_path(
    evidence: Evidence, ax: Any = None, *, show: str = "mean", backend: str | None = None
) -> Any:
    """Plot the path that the log evidence is integrated along; of a posterior trace, its overlap
    with what was fitted.

    A ladder from the prior has the axis t^(1/5), on which its path is smooth, and one from a
    reference √t; the area under the curve is not the log evidence. For a trace, histograms of log p
    − log q, p the posterior and q the density fitted to the other half of its draws, at the draws
    of each half and at draws of q: a bridge needs that they overlap.

    Parameters
    ----------
    evidence : from `log_evidence` or `bridge_evidence`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    show : ``"mean"``, the mean log likelihood: rungs with ± two errors, and the pooled path; or
        ``"barrier"``, the share of the barrier up to each temperature with the rungs on it, whose
        best places are equally far apart in height, and the share of the variance of the value that
        is due to each rung.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.

    Raises
    ------
    ValueError : the barrier is asked for of a trace, or of a ladder without two usable rungs; a
        trace had too few draws for a fit.
    """
    where = "plot_evidence_path"
    check_kind(
        where, "evidence", evidence, Evidence, "Pass what log_evidence or bridge_evidence returned."
    )
    if not isinstance(show, str) or show not in SHOWN:
        raise InputError(
            where, f"`show` to be one of {', '.join(SHOWN)}", repr(show), 'Use "mean".'
        )
    drawn = evidence.diagnostics
    if show == "barrier" and not isinstance(drawn, PathDiagnostics):
        raise InputError(
            where,
            "a ladder with two usable rungs",
            "an evidence without a barrier",
            "Use log_evidence.",
        )
    if not len(evidence.temperatures) and not isinstance(drawn, BridgeOverlap):
        raise InputError(
            where, "an evidence with a path or an overlap", evidence.status, "Draw more."
        )
    canvas = canvas_for(where, ax, backend, (7.0, 4.0))
    if isinstance(drawn, BridgeOverlap):
        _draw_overlap(canvas, drawn)
    elif show == "barrier" and isinstance(drawn, PathDiagnostics):
        _draw_barrier(canvas, evidence, drawn)
    else:
        _draw_means(canvas, evidence)
    return canvas.target


def _temperature_axis(canvas: Canvas, evidence: Evidence) -> float:
    """Label the axis of temperatures and return the power of t that it is in."""
    if evidence.info["reference"] == "prior":
        power, ticks, text = PATH_POWER, [0.0, 1e-3, 1e-2, 0.1, 0.3, 1.0], "t^(1/5)"
    else:
        power, ticks, text = REFERENCE_POWER, [0.0, 0.01, 0.1, 0.3, 0.6, 1.0], "√t"
    # The power in which quadrature and rungs are spaced (docs/mathematics.md section 3): the path
    # is smooth in it.
    places = [t ** (1 / power) for t in ticks], [f"{t:g}" for t in ticks]
    canvas.x_axis(f"inverse temperature t (spaced as {text})", ticks=places)
    return 1 / power


def _draw_means(canvas: Canvas, evidence: Evidence) -> None:
    power = _temperature_axis(canvas, evidence)
    if evidence.rungs is not None:
        rungs, t = evidence.rungs, evidence.temperatures[evidence.used]
        for shift, mean, error, series in (
            (
                -0.004,
                rungs.mean_plain,
                rungs.mean_error_plain,
                Series("rungs, plain", PLAIN, SQUARE),
            ),
            (0.004, rungs.mean, rungs.mean_error, Series("rungs, controlled", CONTROLLED, CIRCLE)),
        ):
            hover = [
                f"t = {significant(temperature, 3)}: {digits_of(m, e)} ± {significant(e, 2)}"
                for temperature, m, e in zip(t, mean, error, strict=True)
            ]
            canvas.points(t**power + shift, mean, series, hover, y_error=2 * error)
    # The level that was chosen: the fit holds those of all families.
    if evidence.pooled is not None:
        path = evidence.pooled.fit.mean[:, evidence.pooled.level]
        t = evidence.pooled.temperatures
        hover = [
            f"t = {significant(temperature, 3)}: {m:.6g}"
            for temperature, m in zip(t, path, strict=True)
        ]
        canvas.line(t**power, path, THIRD, label="pooled path", width=1.5, hover=hover)
    canvas.y_axis(
        "mean log likelihood" if evidence.info["reference"] == "prior" else "mean log p − log q"
    )
    value = digits_of(evidence.value, evidence.error)
    canvas.title(f"log evidence {value} ± {evidence.error:.2g} ({evidence.method})")
    if evidence.rungs is not None or evidence.pooled is not None:
        canvas.legend(LOWER_RIGHT)


def _draw_barrier(canvas: Canvas, evidence: Evidence, diagnostics: PathDiagnostics) -> None:
    power = _temperature_axis(canvas, evidence)
    barrier, t = diagnostics.barrier, evidence.temperatures[evidence.used]
    # Zero where both ends are one distribution.
    total = barrier.total or 1.0
    label = f"barrier up to t, of {significant(barrier.total, 2)}"
    canvas.line(
        barrier.temperatures**power, barrier.cumulative / total, CONTROLLED, label=label, width=1.5
    )
    overlap = np.full(len(t) - 1, np.nan) if evidence.pooled is None else evidence.pooled.overlap
    rates = zip(overlap, diagnostics.rejection, strict=True)
    facts = [
        f", with the next: overlap {significant(o, 2)}, rejection {significant(r, 2)}"
        for o, r in rates
    ]
    height = np.interp(t, barrier.temperatures, barrier.cumulative) / total
    hover = [f"t = {significant(x, 3)}{fact}" for x, fact in zip(t, [*facts, ""], strict=True)]
    canvas.points(t**power, height, Series("rungs", CONTROLLED, CIRCLE), hover)
    hover = [
        f"t = {significant(x, 3)}: {share:.0%} of the variance"
        for x, share in zip(t, diagnostics.error_share, strict=True)
    ]
    canvas.points(
        t**power, diagnostics.error_share, Series("share of the variance", PLAIN, SQUARE), hover
    )
    canvas.y_axis("share")
    canvas.legend()


NUM_BINS = 60

TAILS = (0.001, 0.999)
"""Quantiles between which the overlap is drawn; a far tail would leave no room for the rest."""


def _draw_overlap(canvas: Canvas, overlap: BridgeOverlap) -> None:
    """Draw the outlines of four histograms; far tails are added to the last bins."""
    every = np.concatenate([*overlap.at_draws, *overlap.at_proposals])
    # −∞ at proposals outside the support.
    low, high = np.quantile(every[np.isfinite(every)], TAILS)
    # An exact fit has one value at every draw, and bins without a width have no density.
    edges = np.linspace(low, max(high, low + 1e-9), NUM_BINS + 1)
    for sets, color, label in (
        (overlap.at_draws, CONTROLLED, "draws of the posterior"),
        (overlap.at_proposals, PLAIN, "draws of the fitted density"),
    ):
        for half, (values, style) in enumerate(zip(sets, (SOLID, DASHED), strict=True)):
            density = np.histogram(np.clip(values, low, high), edges)[0] / (
                len(values) * np.diff(edges)
            )
            name = f"{label}, {('later', 'earlier')[half]} half"
            canvas.line(
                np.repeat(edges, 2),
                np.pad(np.repeat(density, 2), 1),
                color,
                label=name,
                style=style,
            )
    canvas.x_axis("log posterior density − log fitted density")
    canvas.y_axis("density")
    canvas.legend()


MOST_WRITTEN = 12


def task_names(joint: JointEstimate) -> list[str]:
    """Return the fitted tasks' names, with the integrand's where a task has several."""
    return [
        task if len(joint[task].names) == 1 else f"{task}: {name}"
        for task, name in joint.task_labels
    ]


def plot_task_correlation(
    joint: JointEstimate, ax: Any = None, *, backend: str | None = None
) -> Any:
    """Plot the learnt task covariance B as a correlation matrix; values are written in up to twelve
    rows, and of more than twenty rows every so many are named.

    Parameters
    ----------
    joint : from `joint_expectation`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by
        default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list
    of calls.

    Raises
    ------
    ValueError : no task was fitted.
    """
    check_kind(
        "plot_task_correlation",
        "joint",
        joint,
        JointEstimate,
        "Pass what joint_expectation returned.",
    )
    names = task_names(joint)
    if not names:
        raise InputError(
            "plot_task_correlation",
            "a joint estimate with fitted tasks",
            "none",
            "See the statuses.",
        )
    canvas = canvas_for("plot_task_correlation", ax, backend, matrix_size(len(names)))
    correlation = joint.task_correlation
    canvas.matrix(correlation, "correlation")
    every = -(-len(names) // MOST_NAMED)
    canvas.rows(names, margin=0.5, every=every)
    canvas.columns(names, every)
    if len(names) <= MOST_WRITTEN:
        # The ends of the colour map are too dark for black letters.
        dark = np.abs(correlation) > 0.7
        for where, color in ((dark, WHITE), (~dark, INK)):
            i, j = np.nonzero(where)
            canvas.text(j, i, [f"{value:.2f}" for value in correlation[where]], color=color)
    return canvas.target
