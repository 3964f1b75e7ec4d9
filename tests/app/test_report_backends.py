"""The plots in every backend: what is drawn is what the estimate says, wherever it is drawn."""

import html
from types import SimpleNamespace
from typing import NamedTuple

import arviz_base
import numpy as np
import pytest
from scipy.stats import norm

import mcmcpost as mp
from mcmcpost.app import canvas
from mcmcpost.app.canvas import asinh_scaled, asinh_ticks, decade_ticks, even_ticks, whole_ticks
from mcmcpost.app.page import evidence_drawings
from mcmcpost.control import Estimate
from mcmcpost.evidence import (
    Barrier,
    BridgeOverlap,
    Evidence,
    PathDiagnostics,
    PooledPath,
    RungMeans,
)
from mcmcpost.scores import ScoreCheck
from mcmcpost.tasks import JointEstimate

BACKENDS = ("matplotlib", "bokeh", "plotly", "none")
PLAIN, CONTROLLED, THIRD = "#666666", "#1f77b4", "#d62728"
MARKUP = ("<b>bold</b> & <a href='x'>a</a>", r"$\frac{$ and $$x$$", r"\(x\) &lt;")
NAMES = ("plain", "big", "worse", "sure", "lost", MARKUP[0])
STATUS = (
    mp.Status.PLAIN,
    mp.Status.CONTROLLED,
    mp.Status.PLAIN,
    mp.Status.EXACT,
    mp.Status.UNDEFINED,
)


class Drawn(NamedTuple):
    """What a target holds, in the words of no backend.

    points : name in the legend to x and y. lines : colour, x, y. bars : row to end and whether it
    is filled. words : text to places. rows, columns : ticks to text as a reader sees it. across,
    down : limits.
    """

    points: dict
    lines: list
    bars: dict
    words: list
    rows: dict
    columns: dict
    legend: list
    across: tuple | None
    down: tuple | None
    labels: tuple
    squares: np.ndarray | None

    def line(self, color):
        """Return the lines of a colour in the order of drawing."""
        return [np.array([x, y], dtype=float) for c, x, y in self.lines if c == color]


def of_matplotlib(axes):
    from matplotlib.colors import to_hex

    def ticks(axis):
        texts = axis.get_ticklabels()
        assert not any(text.get_parse_math() for text in texts if "$" in text.get_text())
        return {
            float(place): text.get_text()
            for place, text in zip(axis.get_ticklocs(), texts, strict=True)
        }

    axes.figure.canvas.draw()
    legend = axes.get_legend()
    return Drawn(
        {c.get_label(): np.ma.filled(c.get_offsets(), np.nan).T for c in axes.collections},
        [(to_hex(line.get_color()), line.get_xdata(), line.get_ydata()) for line in axes.lines],
        {
            round(p.get_y() + p.get_height() / 2): (
                p.get_x() + p.get_width(),
                p.get_facecolor()[3] > 0,
            )
            for p in axes.patches
        },
        [(text.get_text(), *text.get_position()) for text in axes.texts],
        ticks(axes.yaxis),
        ticks(axes.xaxis),
        [] if legend is None else [text.get_text() for text in legend.get_texts()],
        axes.get_xlim(),
        axes.get_ylim(),
        (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()),
        np.asarray(axes.images[0].get_array()) if axes.images else None,
    )


def of_bokeh(figure):
    from bokeh.embed import json_item
    from bokeh.models import PlainText

    def column(renderer, name):
        value = getattr(renderer.glyph, name)
        return renderer.data_source.data[getattr(value, "field", value)]

    def ticks(axis):
        labels = axis[0].major_label_overrides
        assert all(
            isinstance(label, PlainText) or not set(label) & set("$\\") for label in labels.values()
        )
        return {float(place): getattr(label, "text", label) for place, label in labels.items()}

    def limits(extent):
        return (extent.start, extent.end) if type(extent).__name__ == "Range1d" else None

    def squares(renderer):
        x, y, value = (np.array(renderer.data_source.data[name]) for name in ("x", "y", "value"))
        colors = renderer.glyph.fill_color.transform
        assert (colors.low, colors.high) == (-1.0, 1.0)
        assert blueness(colors.palette[0]) > 0 > blueness(colors.palette[-1])
        found = np.full((max(y) + 1, max(x) + 1), np.nan)
        found[y, x] = value
        return found

    assert json_item(figure)
    kinds = {}
    for renderer in figure.renderers:
        kinds.setdefault(type(renderer.glyph).__name__, []).append(renderer)
    entries = {
        item.label.value: item.renderers
        for item in (figure.legend[0].items if figure.legend else ())
    }
    label_of = {
        id(renderer): label for label, renderers in entries.items() for renderer in renderers
    }
    return Drawn(
        {
            label_of.get(id(r)): np.array([column(r, "x"), column(r, "y")])
            for r in kinds.get("Scatter", ())
        },
        [(r.glyph.line_color, column(r, "x"), column(r, "y")) for r in kinds.get("Line", ())],
        {
            row: (end, r.glyph.fill_color is not None)
            for r in kinds.get("HBar", ())
            for row, end in zip(column(r, "y"), column(r, "right"), strict=True)
        },
        [
            entry
            for r in kinds.get("Text", ())
            for entry in zip(column(r, "text"), column(r, "x"), column(r, "y"), strict=True)
        ],
        ticks(figure.yaxis),
        ticks(figure.xaxis),
        list(entries),
        limits(figure.x_range),
        limits(figure.y_range),
        (
            getattr(figure.xaxis[0].axis_label, "text", figure.xaxis[0].axis_label) or "",
            figure.yaxis[0].axis_label or "",
            figure.title.text or "",
        ),
        squares(kinds["Rect"][0]) if "Rect" in kinds else None,
    )


def of_plotly(target):
    from plotly.graph_objects import Bar, Heatmap

    figure = target.figure
    axes = figure.layout.xaxis, figure.layout.yaxis
    assert figure.to_json()
    hover = [text for trace in figure.data for text in (getattr(trace, "hovertext", None) or ())]
    assert not set(
        "".join([*hover, *(text for axis in axes for text in axis.ticktext or ())])
    ) & set("<$")

    def ticks(axis):
        return {
            float(place): html.unescape(text)
            for place, text in zip(axis.tickvals or (), axis.ticktext or (), strict=True)
        }

    def of_mode(mode):
        return [trace for trace in figure.data if getattr(trace, "mode", None) == mode]

    maps = [trace for trace in figure.data if isinstance(trace, Heatmap)]
    for trace in maps:
        assert (trace.zmin, trace.zmax) == (-1.0, 1.0)
        assert trace.colorscale[0][1] == "rgb(5,48,97)"
    return Drawn(
        {trace.name: np.array([trace.x, trace.y]) for trace in of_mode("markers")},
        [(trace.line.color, trace.x, trace.y) for trace in of_mode("lines")],
        {
            row: (end, not trace.marker.color.startswith("rgba"))
            for trace in figure.data
            if isinstance(trace, Bar)
            for row, end in zip(trace.y, trace.x, strict=True)
        },
        [
            entry
            for trace in of_mode("text")
            for entry in zip(trace.text, trace.x, trace.y, strict=True)
        ],
        ticks(axes[1]),
        ticks(axes[0]),
        [trace.name for trace in figure.data if trace.showlegend],
        axes[0].range,
        axes[1].range,
        (
            axes[0].title.text or "",
            axes[1].title.text or "",
            "".join(note.text for note in figure.layout.annotations).strip(),
        ),
        np.array(maps[0].z) if maps else None,
    )


def of_none(calls):
    def every(function):
        return [call for call in calls if call["function"] == function]

    def last(function, field, default):
        return next((call[field] for call in reversed(every(function))), default)

    def ticks(function):
        return {
            float(p): t
            for call in every(function)
            for p, t in zip(call["ticks"], call["labels"], strict=True)
        }

    return Drawn(
        {call["label"]: np.array([call["x"], call["y"]]) for call in every("scatter")},
        [(call["color"], call["x"], call["y"]) for call in every("line")],
        {
            row: (end, call["filled"])
            for call in every("bars")
            for row, end in zip(call["rows"], call["ends"], strict=True)
        },
        [
            entry
            for call in every("text")
            for entry in zip(call["string"], call["x"], call["y"], strict=True)
        ],
        ticks("yticks"),
        ticks("xticks"),
        [call["label"] for call in calls if call.get("entry")] if every("legend") else [],
        last("xlim", "lims", None),
        last("ylim", "lims", None),
        tuple(last(function, "string", "") for function in ("xlabel", "ylabel", "title")),
        last("matrix", "values", None),
    )


READERS = {"matplotlib": of_matplotlib, "bokeh": of_bokeh, "plotly": of_plotly, "none": of_none}


def blueness(color):
    return int(color[5:7], 16) - int(color[1:3], 16)


def halves(line):
    """Return the ends of intervals drawn as one line with gaps: (2, k) of both coordinates."""
    x, y = line.reshape(2, -1, 3)[..., :2]
    return x.T, y.T


@pytest.fixture(autouse=True)
def no_window():
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def read(backend):
    return READERS[backend]


def estimate_of(rng, names=NAMES, c=2, n=60):
    p = len(names)
    mcse_plain = np.array([0.1, 0.2, 0.1, 0.3, np.nan, 0.05])[:p]
    gain = np.array([1.0, 50.0, 0.25, 1e28, np.nan, 4.0])[:p]
    mean = np.array([1.0, -2.0, 3.0, 0.5, np.nan, 10.0])[:p]
    return Estimate(
        names=names,
        mean=mean,
        mcse=mcse_plain / np.sqrt(gain),
        gain=gain,
        variance_ratio=gain,
        status=(*STATUS, mp.Status.CONTROLLED)[:p],
        method=("zv2",) * p,
        sd=np.array([1.0, 2.0, 0.5, 0.0, np.nan, 4.0])[:p],
        mean_plain=mean + np.array([0.1, 0.3, -0.2, 0, 0, 1.0])[:p],
        mcse_plain=mcse_plain,
        mean_crossfit=mean,
        residuals=rng.normal(size=(c, n, p)),
        covariance=np.eye(p),
        info={},
    )


@pytest.fixture
def estimate(rng):
    return estimate_of(rng)


def check_of(z_mean, z_product, threshold=4.0):
    return ScoreCheck("pass", None, "", np.array(z_mean), np.array(z_product), threshold)


@pytest.mark.slow
def test_the_forest_has_its_intervals_where_the_estimate_says(estimate, backend, read):
    drawn = read(mp.plot_controlled_forest(estimate, backend=backend))
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)
    rows = np.arange(len(NAMES))
    assert drawn.rows == dict(enumerate(NAMES))
    assert drawn.legend == ["plain mean", "control variate"]
    for label, color, shift, mean, mcse in (
        ("plain mean", PLAIN, -0.16, estimate.mean_plain, estimate.mcse_plain),
        ("control variate", CONTROLLED, 0.16, estimate.mean, estimate.mcse),
    ):
        x, y = drawn.points[label]
        centre = (mean - estimate.mean) / unit
        np.testing.assert_allclose(x, centre)
        known = np.isfinite(centre)
        np.testing.assert_allclose(y[known], (rows + shift)[known])
        (low, high), (left, right) = halves(drawn.line(color)[0])
        np.testing.assert_allclose((low + high) / 2, centre, atol=1e-12)
        np.testing.assert_allclose((high - low) / 2, 2 * mcse / unit)
        np.testing.assert_allclose([left, right], [rows + shift] * 2)
        assert drawn.across[0] < np.nanmin(low)
        assert drawn.across[1] > np.nanmax(high)
    assert drawn.down == (5.6, -0.6)
    assert "± 2 mcse" in drawn.labels[0]


@pytest.mark.slow
def test_the_bars_end_at_the_gains_that_their_ticks_say(estimate, backend, read):
    drawn = read(mp.plot_gain(estimate, backend=backend))
    ends = {row: end for row, (end, _) in drawn.bars.items()}
    assert ends == pytest.approx(
        {0: 0.0, 1: np.log10(50), 2: np.log10(0.25), 3: np.log10(500), 5: np.log10(4)}
    )
    assert [row for row, (_, filled) in drawn.bars.items() if not filled] == [3]
    assert [word for word, *_ in drawn.words] == [
        "1.00× plain",
        "50.0× controlled",
        "0.250× plain",
        "exact",
        "undefined",
        "4.00× controlled",
    ]
    gap = np.array([x for _, x, _ in drawn.words]) - np.maximum(
        [ends.get(row, 0.0) for row in range(6)], 0.0
    )
    assert np.ptp(gap) < 1e-12
    assert 0 < gap[0] < 0.05
    assert [y for *_, y in drawn.words] == list(range(6))
    assert drawn.rows == dict(enumerate(NAMES))
    assert len(drawn.columns) >= 3
    for place, text in drawn.columns.items():
        assert float(text) == pytest.approx(10**place)
        assert drawn.across[0] <= place <= drawn.across[1]
    assert drawn.across[0] < np.log10(0.25)
    assert drawn.across[1] > 1.3 * np.log10(500)


def test_the_forest_has_the_intervals_of_the_posterior(estimate, backend, read):
    names = tuple(f"{name} [hdi50_{end}]" for name in NAMES for end in ("lb", "ub"))
    of = np.repeat(np.arange(len(NAMES)), 2)
    twice = estimate.select(of)
    mean = twice.mean + np.tile([-1.0, 2.0], len(NAMES))
    intervals = twice._replace(names=names, mean=mean, mcse=np.full(len(names), 0.1))
    drawn = read(mp.plot_controlled_forest(estimate, intervals=intervals, backend=backend))
    assert drawn.legend == ["hdi50", "plain mean", "control variate"]
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)[of]
    x, y = drawn.points["hdi50"]
    np.testing.assert_allclose(x, (mean - estimate.mean[of]) / unit)
    np.testing.assert_allclose(y[np.isfinite(x)], of[np.isfinite(x)])
    (low, high), _ = halves(drawn.line(THIRD)[0])
    np.testing.assert_allclose([low, high], [x - 0.2 / unit, x + 0.2 / unit])
    assert drawn.across[0] < np.nanmin(low)
    assert drawn.across[1] > np.nanmax(high)
    with pytest.raises(
        ValueError, match="`intervals` of the quantities of the estimate, got plain"
    ):
        mp.plot_controlled_forest(
            estimate.select(np.arange(2)), intervals=intervals, backend=backend
        )


@pytest.fixture(scope="module")
def dist():
    """The distributions of two normal coordinates, which are known exactly, and of a constant."""
    x = np.random.default_rng(7).normal(size=(4, 60, 2))
    values = np.concatenate([x, np.ones((4, 60, 1))], axis=-1)
    names = ("a[0]", MARKUP[1], "one")
    return mp.distribution(mp.from_arrays(x, -x, values, value_names=names), method="zv1")


@pytest.mark.slow
def test_the_density_and_the_interval_are_those_of_the_distribution(dist, backend, read):
    targets = mp.plot_distribution(dist, ci_prob=0.5, kde=True, backend=backend)
    assert len(targets) == 3
    drawn = [read(target) for target in targets] if backend != "plotly" else []
    for k, one in enumerate(drawn[:2]):
        assert one.labels[0] == dist.names[k]
        draws = dist.sample.values[..., k]
        at, density = one.line(CONTROLLED)[0]
        ends = np.quantile(draws, (0.005, 0.995), method="inverted_cdf")
        np.testing.assert_allclose(at, np.linspace(*ends, 101))
        # Beyond the last point lies one draw, without which nothing is known of the density there.
        assert (draws > at[-1]).sum() == 1
        np.testing.assert_allclose(density[:-1], norm.pdf(at[:-1]), atol=1e-6)
        np.testing.assert_allclose(one.line("#cccccc")[0][0], norm.interval(0.5), atol=1e-6)
        from_kernel, height = one.line(PLAIN)[0]
        np.testing.assert_array_equal(from_kernel, at)
        assert 0.01 < np.abs(height - density).max() < 0.2
    for one in drawn[:1]:
        np.testing.assert_allclose(one.points["50 % ETI"][0], norm.interval(0.5), atol=1e-6)
        assert sorted(one.legend) == ["50 % ETI", "KDE of the draws", "density"]
    for one in drawn[2:]:
        assert [word for word, *_ in one.words] == ["constant"]
        assert one.line(CONTROLLED) == []
    if backend == "plotly":  # one figure holds all plots
        assert [
            text for trace in targets[0].figure.data if trace.showlegend and (text := trace.name)
        ] == [
            "density",
            "50 % ETI",
            "KDE of the draws",
        ]


@pytest.mark.slow
def test_the_band_has_two_errors(rng):
    x = rng.gamma(3.0, size=(4, 60, 1))
    tree = mp.from_arrays(np.log(x), 3.0 - x, x, value_names=("x",))
    made = mp.distribution(tree, method="zv1")
    (calls,) = mp.plot_distribution(made, ci_kind="hdi", backend="none")
    (band,) = (call for call in calls if call["function"] == "fill_between_y")
    curve = made.pdf(band["x"])
    np.testing.assert_array_equal(band["y_top"], (curve.mean + 2 * curve.mcse)[0])
    np.testing.assert_array_equal(band["y_bottom"], np.maximum(curve.mean - 2 * curve.mcse, 0.0)[0])
    bounds = made.interval(0.89, "hdi")
    point = next(call for call in calls if call["function"] == "scatter")
    assert (point["label"], *point["x"]) == ("89 % HDI", *bounds.mean)


@pytest.mark.slow
def test_a_distribution_is_drawn_of_what_is_named(dist, rng):
    given = mp.plot_distribution(dist, backend="none")
    drawn = mp.plot_distribution(dist, ["one", "a"], backend="none")
    names = [
        next(call["string"] for call in calls if call["function"] == "xlabel") for calls in drawn
    ]
    assert names == ["one", "a[0]"]
    # not of a constant
    assert ["legend" in {call["function"] for call in calls} for calls in drawn] == [False, True]
    whole, point = (
        next(c["x"] for c in calls if c["function"] == "scatter") for calls in (drawn[1], given[0])
    )
    np.testing.assert_allclose(whole, point, rtol=1e-9)
    assert mp.plot_distribution(dist, "one", target := [], backend="none")[0] is target
    with pytest.raises(
        ValueError, match=r"`var_names` of the distribution, got b. .*There are a, "
    ):
        mp.plot_distribution(dist, "b", backend="none")
    with pytest.raises(ValueError, match="`ax` to be 3 targets, got a list"):
        mp.plot_distribution(dist, ax=[[], []], backend="none")
    with (
        arviz_base.rc_context({"plot.max_subplots": 2}),
        pytest.raises(ValueError, match="at most 2 quantities, got 3"),
    ):
        mp.plot_distribution(dist, backend="none")
    x = rng.normal(size=(4, 50, 1))
    rare = (np.arange(200).reshape(4, 50, 1) == 7).astype(float)
    (calls,) = mp.plot_distribution(
        mp.distribution(mp.from_arrays(x, -x, rare), method="zv1"), backend="none"
    )
    # An event has a probability and no density.
    assert not any(call.get("label") == "density" for call in calls)
    assert "undefined" in str(calls)
    constant = mp.from_arrays(x, -x, np.ones_like(x))
    assert len(mp.plot_distribution(constant, backend="none")) == 1
    weighted = mp.from_arrays(x, -x, log_weights=np.zeros((4, 50)))
    (calls,) = mp.plot_distribution(
        mp.distribution(weighted, method="zv1"), kde=True, backend="none"
    )
    assert any(call.get("label") == "KDE of the draws" for call in calls)


def lag_by_lag(series, lags):
    """Return the definition: mean over chains of Σ (x_t − x̄)(x_{t+k} − x̄)/Σ (x_t − x̄)²."""
    x = series - series.mean(axis=1, keepdims=True)
    return np.stack(
        [((x[:, k:] * x[:, : x.shape[1] - k]).sum(1) / (x**2).sum(1)).mean(0) for k in range(lags)]
    )


def test_the_autocorrelations_are_those_of_integrands_and_residuals(rng, backend, read):
    estimate = estimate_of(rng)
    values = np.cumsum(rng.normal(size=estimate.residuals.shape), axis=1)
    drawn = read(mp.plot_residual_autocorrelation(estimate, values, max_lag=7, backend=backend))
    shown = [0, 1, 2, 5]
    assert drawn.legend == ["integrand", "residual"]
    for color, series in ((PLAIN, values), (CONTROLLED, estimate.residuals)):
        thin, thick = drawn.line(color)
        expected = lag_by_lag(series[..., shown], 8)
        np.testing.assert_allclose(thick, [np.arange(8), np.median(expected, axis=1)], atol=1e-10)
        lag, height = thin.reshape(2, 4, 9)[..., :8]
        np.testing.assert_allclose(height, expected.T, atol=1e-10)
        np.testing.assert_allclose(lag, [np.arange(8)] * 4)
    assert drawn.columns == {k: str(k) for k in range(8)}
    assert drawn.labels[:2] == ("lag (draws)", "autocorrelation")


def test_no_legend_without_a_residual(rng, backend, read):
    sure = estimate_of(rng, NAMES[:1])._replace(status=(mp.Status.EXACT,))
    drawn = read(mp.plot_residual_autocorrelation(sure, sure.residuals, backend=backend))
    assert drawn.legend == []
    assert drawn.line(CONTROLLED) == []


LEGEND = ["mean of the score", "draw × own score", "draw × other scores", "largest |z| that passes"]
PRODUCT = [[1.0, -3.0, 0.2], [0.5, -2.0, np.nan], [0.7, 0.1, 3.5]]


def test_scores_near_the_threshold_are_at_their_z(backend, read):
    drawn = read(
        mp.plot_score_check(check_of([0.5, -1.5, 2.5], PRODUCT), ("a", "b", "c"), backend=backend)
    )
    for label, expected in zip(
        LEGEND[:3], ([0.5, 1.5, 2.5], [1.0, 2.0, 3.5], [0.7, 3.0, 0.2]), strict=True
    ):
        np.testing.assert_allclose(drawn.points[label], [expected, range(3)])
    np.testing.assert_allclose(drawn.line("#000000"), [[[4.0, 4.0], [-0.6, 2.6]]])
    assert sorted(drawn.legend) == sorted(LEGEND)
    assert drawn.rows == dict(enumerate("abc"))
    assert drawn.across[0] == 0.0
    assert drawn.across[1] > 4.0
    first = read(mp.plot_score_check(check_of([0.5, -1.5, 2.5], PRODUCT), rows=1, backend=backend))
    assert first.rows == {0: "x[0]"}
    # of a parameter that has no row
    np.testing.assert_allclose(first.points["draw × other scores"], [[0.7], [0]])


def test_scores_far_above_the_threshold_are_at_what_the_ticks_say(backend, read):
    check = check_of([0.5, -1500.0, 1e9], PRODUCT)
    drawn = read(mp.plot_score_check(check, backend=backend))
    x, _ = drawn.points["mean of the score"]
    # the last is drawn as far as any
    np.testing.assert_allclose(4.0 * np.sinh(x), [0.5, 1500.0, 1e4])
    np.testing.assert_allclose(4.0 * np.sinh(drawn.line("#000000")[0][0]), 4.0)
    assert [float(text) for text in drawn.columns.values()] == pytest.approx(
        4.0 * np.sinh([*drawn.columns])
    )
    assert list(drawn.columns.values()) == ["0", "10", "100", "1000", "10000"]
    assert drawn.across[1] > x.max()


def test_scores_of_one_parameter_and_scores_that_are_not_finite(backend, read):
    drawn = read(mp.plot_score_check(check_of([0.5], [[1.0]]), backend=backend))
    assert np.isnan(drawn.points["draw × other scores"][0]).all()
    assert drawn.points["mean of the score"][0] == 0.5
    lost = read(mp.plot_score_check(check_of([np.nan], [[np.nan]]), backend=backend))
    assert np.isnan(lost.points["mean of the score"][0]).all()


@pytest.fixture
def evidence():
    t = np.array([0.0, 0.01, 0.2, 0.5, 1.0])
    used = np.array([True, True, False, True, True])
    rungs = RungMeans(**dict.fromkeys(RungMeans._fields))._replace(
        mean=np.array([-9.0, -5.0, -3.0, -2.0]),
        mean_error=np.array([0.1, 0.2, 0.05, 0.01]),
        mean_plain=np.array([-9.5, -5.5, -2.5, -2.2]),
        mean_error_plain=np.array([1.0, 0.8, 0.6, 0.4]),
    )
    fit = SimpleNamespace(mean=np.array([[0.0, -9.1], [0.0, -4.0], [0.0, -2.0]]))
    pooled = PooledPath(**dict.fromkeys(PooledPath._fields))._replace(
        temperatures=np.array([0.0, 0.03, 1.0]), fit=fit, level=1
    )
    return Evidence(**dict.fromkeys(Evidence._fields))._replace(
        value=-3.21,
        mcse=0.03,
        discretisation_error=0.04,
        method="pooled",
        temperatures=t,
        used=used,
        rungs=rungs,
        pooled=pooled,
        info={"reference": "prior"},
    )


@pytest.mark.slow
def test_the_path_of_the_evidence_is_at_its_temperatures(evidence, backend, read):
    drawn = read(mp.plot_evidence_path(evidence, backend=backend))
    s = np.array([0.0, 0.01, 0.5, 1.0]) ** 0.2
    rungs = evidence.rungs
    for label, color, shift, mean, error in (
        ("rungs, plain", PLAIN, -0.004, rungs.mean_plain, rungs.mean_error_plain),
        ("rungs, controlled", CONTROLLED, 0.004, rungs.mean, rungs.mean_error),
    ):
        np.testing.assert_allclose(drawn.points[label], [s + shift, mean])
        (left, right), (low, high) = halves(drawn.line(color)[0])
        np.testing.assert_allclose([low, high], [mean - 2 * error, mean + 2 * error])
        np.testing.assert_allclose([left, right], [s + shift] * 2)
    np.testing.assert_allclose(
        drawn.line(THIRD), [[np.array([0.0, 0.03, 1.0]) ** 0.2, [-9.1, -4.0, -2.0]]]
    )
    assert sorted(drawn.legend) == ["pooled path", "rungs, controlled", "rungs, plain"]
    assert [float(text) for text in drawn.columns.values()] == pytest.approx(
        [p**5 for p in drawn.columns]
    )
    assert drawn.labels[1:] == ("mean log likelihood", "log evidence -3.21 ± 0.05 (pooled)")
    bare = read(mp.plot_evidence_path(evidence._replace(rungs=None, pooled=None), backend=backend))
    assert bare.legend == []
    assert bare.points == {}


def test_the_barrier_has_the_rungs_on_it_and_the_source_of_the_error(evidence, backend, read):
    barrier = Barrier(np.linspace(0.0, 1.0, 5) ** 2, np.array([0.0, 0.3, 0.6, 0.9, 1.2]))
    share = np.array([0.5, 0.2, 0.2, 0.1])
    found = PathDiagnostics(barrier, np.full(3, 0.3), np.full(3, np.nan), np.nan, share)
    ladder = evidence._replace(diagnostics=found, pooled=None, info={"reference": "fitted normal"})
    drawn = read(mp.plot_evidence_path(ladder, show="barrier", backend=backend))
    t = np.array([0.0, 0.01, 0.5, 1.0])
    (line,) = drawn.line(CONTROLLED)
    np.testing.assert_allclose(line, [np.linspace(0.0, 1.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]])
    np.testing.assert_allclose(
        drawn.points["rungs"], [np.sqrt(t), np.interp(t, barrier.temperatures, line[1])]
    )
    np.testing.assert_allclose(drawn.points["share of the variance"], [np.sqrt(t), share])
    assert "barrier up to t, of 1.2" in drawn.legend
    with pytest.raises(mp.InputError, match="an evidence without a barrier"):
        mp.plot_evidence_path(evidence, show="barrier", backend=backend)


def test_a_trace_shows_the_overlap_of_its_halves(evidence, backend, read):
    rng = np.random.default_rng(0)
    sets = tuple(rng.normal(0.1, 1.0, 500) for _ in range(4))
    trace = evidence._replace(
        diagnostics=BridgeOverlap(sets[:2], sets[2:]), temperatures=np.zeros(0), info={}
    )
    drawn = read(mp.plot_evidence_path(trace, backend=backend))
    lines = [*drawn.line(CONTROLLED), *drawn.line(PLAIN)]
    assert len(lines) == 4
    for x, density in lines:
        assert np.sum(np.diff(x) * density[:-1]) == pytest.approx(1.0)
    assert len(drawn.legend) == 4
    with pytest.raises(mp.InputError, match="path or an overlap"):
        mp.plot_evidence_path(trace._replace(diagnostics=None), backend=backend)


def joint_of(rng, names):
    part = estimate_of(rng, NAMES[:1])
    root = rng.normal(size=(len(names), 2 * len(names)))
    labels = tuple((name, part.names[0]) for name in names)
    return JointEstimate(dict.fromkeys(names, part), np.eye(len(names)), labels, root @ root.T)


def test_the_squares_are_the_correlations(rng, backend, read):
    names = ("low", "middle", "high")
    joint = joint_of(rng, names)
    drawn = read(mp.plot_task_correlation(joint, backend=backend))
    np.testing.assert_allclose(drawn.squares, joint.task_correlation)
    assert drawn.rows == drawn.columns == dict(enumerate(names))
    assert drawn.down == (2.5, -0.5)
    assert drawn.across == (-0.5, 2.5)
    assert {(x, y): word for word, x, y in drawn.words} == {
        (j, i): f"{joint.task_correlation[i, j]:.2f}" for i in range(3) for j in range(3)
    }
    many = read(
        mp.plot_task_correlation(
            joint_of(rng, tuple(f"task {j}" for j in range(41))), backend=backend
        )
    )
    assert many.words == []
    assert many.rows == many.columns == {j: f"task {j}" for j in range(0, 41, 3)}
    assert many.across == (-0.5, 40.5)


def test_markup_and_mathematics_in_names_are_letters(rng, backend, read):
    """The readers refuse labels that their backend would take for more."""
    estimate = estimate_of(rng, MARKUP)
    names = dict(enumerate(MARKUP))
    assert read(mp.plot_gain(estimate, backend=backend)).rows == names
    assert read(mp.plot_controlled_forest(estimate, backend=backend)).rows == names
    assert (
        read(mp.plot_score_check(check_of([0.5, 1.0, 2.0], PRODUCT), MARKUP, backend=backend)).rows
        == names
    )
    drawn = read(mp.plot_task_correlation(joint_of(rng, MARKUP), backend=backend))
    assert drawn.rows == drawn.columns == names


def test_points_tell_their_numbers_in_plotly(estimate):
    figure = mp.plot_controlled_forest(estimate, backend="plotly").figure
    hover = {trace.name: trace.hovertext for trace in figure.data if trace.mode == "markers"}
    assert hover["control variate"][1] == "big: -2.00 ± 0.028"
    assert hover["plain mean"][5].startswith("&lt;b&gt;bold&lt;/b&gt; &amp; &lt;a")
    assert hover["plain mean"][5].endswith(": 11.00 ± 0.050")
    assert {trace.hoverinfo for trace in figure.data if trace.mode == "lines"} == {"skip"}


@pytest.mark.slow
def test_a_target_given_is_drawn_on_and_returned(rng, estimate, evidence, dist, backend, read):
    from importlib import import_module

    module = import_module(f"arviz_plots.backend.{backend}")
    joint, check = joint_of(rng, ("one", "two")), check_of([0.5, -1.5, 2.5], PRODUCT)
    for plot in (
        lambda **where: mp.plot_gain(estimate, **where),
        lambda **where: mp.plot_controlled_forest(estimate, **where),
        lambda **where: mp.plot_residual_autocorrelation(estimate, estimate.residuals, **where),
        lambda **where: mp.plot_score_check(check, **where),
        lambda **where: mp.plot_evidence_path(evidence, **where),
        lambda **where: mp.plot_task_correlation(joint, **where),
        lambda **where: mp.plot_distribution(dist, "one", **where)[0],
    ):
        for named in ({}, {"backend": backend}):
            target = module.create_plotting_grid(1)[1]
            assert plot(ax=target, **named) is target
            assert read(target).labels[0] or read(target).columns


def test_the_default_backend_is_that_of_arviz(estimate, backend):
    with arviz_base.rc_context({"plot.backend": backend}):
        target = mp.plot_gain(estimate)
    assert type(target) is type(mp.plot_gain(estimate, backend=backend))


def test_a_report_is_drawn_by_matplotlib_whatever_the_default(evidence):
    with arviz_base.rc_context({"plot.backend": "bokeh"}):
        (drawing,) = evidence_drawings(evidence)
        assert [drawing] == evidence_drawings(evidence)
        assert "rungs, controlled" in drawing.svg


def test_a_wrong_backend_or_target_is_refused(estimate):
    with pytest.raises(
        ValueError, match=r"plot_gain: expected `backend` to be one of matplotlib.*got 'gnuplot'"
    ):
        mp.plot_gain(estimate, backend="gnuplot")
    with pytest.raises(
        TypeError, match=r"plot_gain: expected `ax` to be a target of plotly, got a list"
    ):
        mp.plot_gain(estimate, [], backend="plotly")
    with pytest.raises(
        TypeError, match=r"plot_controlled_forest: .*any backend of arviz-plots, got a str"
    ):
        mp.plot_controlled_forest(estimate, "axes")


@pytest.mark.parametrize(
    ("backend", "absent"), [("bokeh", "bokeh"), ("plotly", "plotly"), ("plotly", "webcolors")]
)
def test_a_backend_that_is_not_installed_is_named_with_its_cure(
    monkeypatch, estimate, backend, absent
):
    monkeypatch.setattr(canvas, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(ImportError, match=rf"plot_gain: .*no {absent}.*mcmcpost\[plots\]"):
        mp.plot_gain(estimate, backend=backend)
    assert mp.plot_gain(estimate, backend="none")


@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.05, 1.4), (-0.9, 2.2), (-0.05, 4.1), (-3.0, 40.0), (0.7, 1.9), (-9.0, 2.0)],
)
def test_ticks_of_decades_say_where_they_are(low, high):
    places, texts = decade_ticks(low, high)
    assert 3 <= len(places) <= 9
    assert all(low <= place <= high for place in places)
    superscripts = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    for place, text in zip(places, texts, strict=True):
        power = (
            text[2:].translate(superscripts)
            if text[2:] != text[2:].translate(superscripts)
            else None
        )
        assert place == pytest.approx(np.log10(float(text)) if power is None else float(power))


def test_ticks_of_an_asinh_axis_say_where_they_are():
    places, texts = asinh_ticks(4.5, 30.0)
    assert texts[0] == "0"
    assert len(texts) >= 4
    np.testing.assert_allclose(asinh_scaled(np.array(texts, dtype=float), 4.5), places)


@pytest.mark.parametrize(
    ("low", "high"), [(-0.13, 0.09), (-1.0, 1.0), (3.0, 3.001), (-1e-7, 4e-7), (-2e6, 9e6)]
)
def test_even_ticks_are_few_round_and_inside(low, high):
    places, texts = even_ticks(low, high)
    assert 2 <= len(places) <= 6
    assert low <= min(places) < max(places) <= high
    np.testing.assert_allclose(np.diff(places), places[1] - places[0], rtol=1e-6)
    assert [float(text.replace("−", "-")) for text in texts] == pytest.approx(
        places, abs=1e-3 * (high - low)
    )


@pytest.mark.parametrize("last", [0, 1, 5, 8, 9, 40, 41, 1000])
def test_whole_ticks_are_few_and_even(last):
    ticks = whole_ticks(last)
    assert ticks[0] == 0
    assert len(ticks) <= 9
    assert len(set(np.diff(ticks))) <= 1
    assert ticks[-1] <= last < ticks[-1] + (ticks[1] if len(ticks) > 1 else 1)
