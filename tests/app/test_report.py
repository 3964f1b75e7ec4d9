"""The report and its plots: what is drawn, what is written, and that the HTML is sound, closed and
escaped."""

import re

import numpy as np
import pytest
import xarray as xr
from html_cases import Reading
from ladder_cases import short_ladder

import mcmcpost as mp
from mcmcpost.app import canvas
from mcmcpost.app.contents import convergence_note
from mcmcpost.app.page import check_destination, draw
from mcmcpost.stein import SquaredExponential

MARKUP = "<script>alert(1)</script>&\"'"
DOLLARS = r"$\frac{$"
KINDS = ("rhat", "ess_bulk", "ess_tail")


def autoregressive(rng, size, rho=0.6, chains=4, d=2):
    x = rng.normal(size=(chains, size, d))
    for i in range(1, size):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * x[:, i]
    return x


@pytest.fixture(scope="module")
def draws():
    return autoregressive(np.random.default_rng(23), 300)


@pytest.fixture(scope="module")
def tree(draws):
    return mp.from_arrays(draws, -draws, names=("a", DOLLARS))


@pytest.fixture(scope="module")
def values(draws):
    x = draws[..., 0]
    bad = np.where(x > 2, np.nan, x)
    return {
        "linear": x,
        "cubic": x**3,
        MARKUP: np.sin(draws[..., 1]),
        "lost": bad,
        "constant": np.ones_like(x),
    }


@pytest.fixture(scope="module")
def estimate(tree, values):
    return mp.expectation(tree, values, method="zv2")


@pytest.fixture(autouse=True)
def no_window():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def rows_of(points, bars):
    """Return centres and half widths of the intervals, drawn as one line with gaps."""
    low, high, _ = bars.get_xdata().reshape(-1, 3).T
    return abscissae(points), (high - low) / 2


def abscissae(points):
    return np.ma.filled(points.get_offsets()[:, 0], np.nan)


@pytest.mark.slow
def test_the_forest_shows_both_estimates_with_two_errors(estimate):
    axes = mp.plot_controlled_forest(estimate)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(estimate.names)
    plain, controlled = zip(axes.collections, axes.lines[1:], strict=True)
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)
    centre, half = rows_of(*plain)
    np.testing.assert_allclose(centre, (estimate.mean_plain - estimate.mean) / unit)
    known = np.isfinite(estimate.mcse)
    np.testing.assert_allclose(half[known], (2 * estimate.mcse_plain / unit)[known], atol=1e-12)
    centre, half = rows_of(*controlled)
    assert set(centre[known]) == {0.0}
    assert np.isnan(centre[~known]).all()
    np.testing.assert_allclose(half[known], (2 * estimate.mcse / unit)[known], atol=1e-12)
    assert axes.yaxis_inverted()


def test_the_gain_bars_end_at_the_gain(estimate):
    axes = mp.plot_gain(estimate)
    ends = {
        round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width()
        for bar in axes.patches
    }
    j = estimate.names.index("cubic")
    assert 10 ** ends[j] == pytest.approx(estimate.gain[j])
    longest = max(
        g for g, s in zip(estimate.gain, estimate.status, strict=True) if s is mp.Status.CONTROLLED
    )
    assert 10 ** ends[estimate.names.index("linear")] == pytest.approx(10 * longest)
    assert estimate.names.index("lost") not in ends
    words = [text.get_text() for text in axes.texts]
    assert words[0] == "on_trust"
    assert words[estimate.names.index("lost")] == "undefined"
    assert {"1", "10", "100"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert 10 ** axes.get_xlim()[1] > 10 * longest


def test_a_gain_below_one_stays_on_the_axis(estimate):
    worse = estimate._replace(
        gain=np.full(len(estimate.names), 0.25), status=(mp.Status.PLAIN,) * len(estimate.names)
    )
    axes = mp.plot_gain(worse)
    assert axes.get_xlim()[0] < np.log10(0.25)
    assert axes.patches[0].get_width() == pytest.approx(np.log10(0.25))


def test_the_residual_autocorrelation_is_that_of_the_residuals(rng):
    x = autoregressive(rng, 4000, rho=0.8)
    tree = mp.from_arrays(x, -x)
    values = np.stack([x[..., 0] + 0.3 * rng.normal(size=x.shape[:2]), x[..., 1]], -1)
    estimate = mp.expectation(tree, values, method="zv1")
    axes = mp.plot_residual_autocorrelation(estimate, values, max_lag=5)
    integrand, residual = (line.get_ydata() for line in axes.lines[1:])
    assert all(lag == round(lag) for lag in axes.get_xticks())
    np.testing.assert_allclose(
        integrand, 0.8 ** np.arange(6) / np.where(np.arange(6), 1.09, 1), atol=0.06
    )
    np.testing.assert_allclose(residual[1:], 0.0, atol=0.06)
    assert residual[0] == pytest.approx(1.0)


def test_the_score_check_shows_every_test_and_its_limit(tree):
    check = mp.check_tree(tree)
    axes = mp.plot_score_check(check, ("a", DOLLARS))
    mean, own, other = map(abscissae, axes.collections)
    np.testing.assert_allclose(mean, np.abs(check.z_mean))
    np.testing.assert_allclose(own, np.abs(np.diagonal(check.z_product)))
    np.testing.assert_allclose(other, np.abs([check.z_product[1, 0], check.z_product[0, 1]]))
    assert axes.lines[0].get_xdata()[0] == check.threshold
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", DOLLARS]
    axes.figure.canvas.draw()
    (first,) = abscissae(mp.plot_score_check(check, rows=1).collections[2])
    assert first == np.abs(check.z_product[1, 0])  # of a parameter that has no row


def test_names_fit_beside_their_rows(estimate):
    odd = estimate._replace(names=("a\0b\nc", "x" * 200, *estimate.names[2:]))
    labels = [label.get_text() for label in mp.plot_gain(odd).get_yticklabels()]
    assert labels[0] == "a b c"
    assert labels[1] == "x" * 39 + "…"
    draw("odd", "T", "D", (7.0, 3.0), lambda axes: mp.plot_gain(odd, axes))
    assert canvas.row_name("x" * 50 + "[12, 3]") == "x" * 32 + "…[12, 3]"


def test_a_gross_failure_and_one_parameter_can_be_drawn(rng):
    x = rng.normal(size=(4, 200, 1))
    tree = mp.from_arrays(x, x, allow_bad_scores=True)
    axes = mp.plot_score_check(mp.check_tree(tree, allow_bad_scores=True))
    assert axes.get_xticklabels()[1].get_text() in ("2", "10")  # round numbers, far apart
    assert np.isnan(abscissae(axes.collections[2])).all()
    nonfinite = mp.check_tree(
        mp.from_arrays(x, np.where(x > 0, -x, np.nan), allow_bad_scores=True), allow_bad_scores=True
    )
    assert np.isnan(abscissae(mp.plot_score_check(nonfinite).collections[0])).all()


@pytest.fixture
def joint(rng):
    tasks = {}
    for size, name in ((40, MARKUP), (24, "high")):
        x = rng.normal(size=(2, size, 2))
        tasks[name] = (mp.from_arrays(x, -x), np.sin(x[..., 0]))
    related = np.array([[1.0, 0.7], [0.7, 1.2]])
    return mp.joint_expectation(
        tasks, mp.VectorValued(SquaredExponential(2.0), related, 1e-2, guard=False)
    )


@pytest.mark.slow
def test_the_correlation_of_tasks_is_drawn_and_reported(joint, tmp_path):
    axes = mp.plot_task_correlation(joint)
    np.testing.assert_array_equal(axes.images[0].get_array(), joint.task_correlation)
    assert [label.get_text() for label in axes.get_xticklabels()] == [MARKUP, "high"]
    assert sorted(text.get_text() for text in axes.texts) == sorted(
        f"{v:.2f}" for v in joint.task_correlation.ravel()
    )
    reading = Reading(mp.html_report(None, tmp_path / "joint.html", joint=joint))
    assert reading.problems == []
    assert "Related tasks, estimated jointly" in reading.texts("h2")
    assert any("Related tasks, 2 quantities: " in text for text in reading.texts("p"))
    assert MARKUP in reading.texts("th")
    none = mp.tasks.JointEstimate({}, np.zeros((0, 0)), (), np.zeros((0, 0)))
    with pytest.raises(ValueError, match="fitted tasks"):
        mp.plot_task_correlation(none)


def test_plots_draw_on_the_axes_given(estimate, values, tree):
    from matplotlib.figure import Figure

    axes = Figure().subplots(2, 2)
    assert mp.plot_controlled_forest(estimate, axes[0, 0]) is axes[0, 0]
    assert mp.plot_gain(estimate, axes[0, 1]) is axes[0, 1]
    stacked = np.stack(list(values.values()), -1)
    assert mp.plot_residual_autocorrelation(estimate, stacked, axes[1, 0]) is axes[1, 0]
    assert mp.plot_score_check(mp.check_tree(tree), ax=axes[1, 1]) is axes[1, 1]


@pytest.fixture(scope="module")
def report(tree, values):
    return mp.html_report(
        tree, None, values, "zv2", title=f"On {MARKUP}", command=f"mcmcpost {MARKUP}"
    )


def test_the_html_is_sound_closed_and_accessible(report):
    reading = Reading(report)
    assert reading.problems == []
    html = dict(reading.tags)
    assert html["html"]["lang"] == "en"
    assert any(attrs.get("name") == "viewport" for tag, attrs in reading.tags if tag == "meta")
    assert [tag for tag, _ in reading.tags].count("svg") == 4
    first_link = next(attrs for tag, attrs in reading.tags if tag == "a")
    assert first_link["href"] == "#main"
    scrolling = [attrs for _, attrs in reading.tags if attrs.get("class") == "scroll"]
    assert all(
        attrs["tabindex"] == "0" and attrs["role"] in ("region", "group") for attrs in scrolling
    )
    assert "@media print" in report
    assert "default-src 'none'" in report


def test_names_are_escaped_everywhere(report):
    assert "<script" not in report
    reading = Reading(report)
    assert MARKUP in reading.texts("th")
    assert f"On {MARKUP}" in reading.texts("h1")
    assert f"mcmcpost {MARKUP}" in reading.texts("dd")
    assert sum(MARKUP in text for text in reading.texts("text")) == 2  # forest and gain
    assert DOLLARS in reading.texts("text")


def test_the_table_says_what_the_estimate_says(report, estimate):
    reading = Reading(report)
    cells = reading.texts("td")
    for j, name in enumerate(estimate.names):
        assert name in reading.texts("th")
        assert str(estimate.status[j]) in cells
    assert f"{estimate.gain[1]:.2f}" in cells
    assert f"{estimate.mcse[1]:.2g}" in cells
    assert "nan" in cells
    text = " ".join(reading.texts("dd"))
    assert f"mcmcpost {mp.__version__}" in text
    assert "not recorded" in text
    assert "4 chains of 300 draws, 2 unconstrained parameters" in text


@pytest.mark.slow
def test_equal_input_gives_equal_bytes(report, tree, values):
    again = mp.html_report(
        tree, None, values, "zv2", title=f"On {MARKUP}", command=f"mcmcpost {MARKUP}"
    )
    assert again == report


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_can_be_read(report):
    """Contrast of WCAG 2.1: 4.5 for text, on each background that it stands on."""
    style = report[report.index("<style>") : report.index("</style>")]
    named = dict(re.findall(r"--(\w+): (#\w{6})", style))
    # the last is the shadow at the edge of what can be scrolled
    grounds = ("paper", "band", "line")
    pairs = [(named[ink], named[paper]) for ink in ("ink", "soft", "link") for paper in grounds]
    for rule in re.findall(r"\{([^{}]*)\}", style):
        found = dict(re.findall(r"(?<![-\w])(color|background): (#\w{6})", rule))
        if "color" in found:
            own = (
                [found["background"]]
                if "background" in found
                else [named[paper] for paper in grounds]
            )
            pairs += [(found["color"], ground) for ground in own]
    assert len(pairs) >= 9
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


def test_the_checker_finds_what_is_wrong():
    head, foot = (
        "<html><body><header></header><nav></nav><main><h1>x</h1>",
        "</main><footer></footer>",
    )
    page = head + "{}" + foot + "</body></html>"
    assert Reading(page.format("")).problems == []
    for wrong in (
        "<p><b></p></b>",
        "<div>",
        "<img src='data:,'>",
        "<svg></svg>",
        "<table><th>x</th></table>",
        "<h1>y</h1>",
        "<img alt='' src='https://x.org/a.png'>",
        "<p id='a'></p><p id='a'></p>",
        "<a href='#no'>x</a>",
        "<p aria-labelledby='no'></p>",
        "<script></script>",
        "<p onclick='x'></p>",
        "<i style='background:url(//x)'></i>",
        "<section aria-label='a'></section><section aria-label='a'></section>",
        "<h2 id='b'>b</h2><section aria-labelledby='b'></section><div role='region' "
        "aria-label='b'></div>",
    ):
        assert Reading(page.format(wrong)).problems, wrong


def test_the_checker_allows_the_script_that_the_policy_names():
    digest = "sha256-oQKEp95wo97QHCn3Ud+OWXuG9JjfN0LYMKf4fYTDZVw="  # of "x;"
    meta = "<meta http-equiv='Content-Security-Policy' content=\"script-src '{}'\">"
    page = (
        meta.format(digest)
        + "<header></header><nav></nav><main><h1>x</h1></main><footer></footer>{}"
    )
    assert Reading(page.format("<script>x;</script>")).problems == []
    for wrong in (
        "<script>y;</script>",
        "<script>x;</script><script></script> <script>x;</script>",
        "<script src='#a' id='a'>x;</script>",
    ):
        assert Reading(page.format(wrong)).problems, wrong


def test_letters_without_a_glyph_are_left_to_the_browser():
    drawing = draw("a", "title", "text", (2.0, 1.0), lambda ax: ax.set_title("変数 🎉"))
    assert "変数 🎉" in drawing.svg


def test_drawings_of_one_document_share_no_identifier():
    def plot(axes):
        axes.plot([0, 1], [0, 1], clip_on=True, marker="o")

    one, two = (draw(key, "T", "D", (3.0, 2.0), plot).svg for key in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"#(one-[\w-]+)", one)) <= ids[0]
    assert "clip-path" in one
    assert "<metadata" not in one


@pytest.mark.slow
def test_a_ladder_is_reported_with_its_evidence(rng, tmp_path):
    drawn, path = short_ladder(rng)
    tree = mp.ladder_from_arrays(*drawn[:5])
    before = tree.copy(deep=True)
    text = mp.html_report(tree, tmp_path / "ladder.html", method="zv2")
    reading = Reading(text)
    assert reading.problems == []
    assert {"Model evidence", "Estimates"} <= set(reading.texts("h2"))
    truth = float(path.log_evidence(np.ones(1))[0])
    assert any(cell.startswith(f"{truth:.4f}") for cell in reading.texts("td"))
    mean = path.moments(np.ones(1))[0][0, 0]
    assert any(cell.startswith(f"{mean:.5f}") for cell in reading.texts("td"))
    assert [tag for tag, _ in reading.tags].count("svg") == 6  # with the barrier of the ladder
    assert any(p.startswith("1 quantity: 1 on_trust.") for p in reading.texts("p"))
    assert tree.identical(before)


@pytest.mark.slow
def test_an_evidence_needs_no_trace(rng):
    ladder = mp.ladder_from_arrays(*short_ladder(rng)[0][:5])
    reading = Reading(mp.html_report(None, evidence=mp.log_evidence(ladder, "zv2")))
    assert reading.problems == []
    assert "Estimates" not in reading.texts("h2")
    with pytest.raises(ValueError, match="a trace, an evidence or a joint estimate"):
        mp.html_report(None)


@pytest.mark.parametrize("kept", [lambda sums: sums, mp.TraceMoments.to_datatree])
def test_sums_have_no_draws_to_report(rng, kept):
    x = rng.normal(size=(4, 50, 1))
    sums = mp.moments(mp.from_arrays(x, -x), method="plain")
    with pytest.raises(mp.InputError, match="html_report: expected a trace, got sums of one"):
        mp.html_report(kept(sums))


@pytest.mark.slow
def test_more_rows_than_a_figure_has(rng):
    x = rng.normal(size=(2, 50, 70))
    tree = mp.from_arrays(x, -x)
    text = mp.html_report(tree, method="plain")
    reading = Reading(text)
    assert reading.problems == []
    assert sum("x[65]" in cell for cell in reading.texts("th")) == 2
    assert "x[65]" not in reading.texts("text")
    assert "The first 60 of 70 quantities." in text
    assert "The first 60 of 70 parameters." in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Score gate", "ignore::mcmcpost.ConvergenceWarning")
def test_what_is_wrong_comes_first(rng):
    x = rng.normal(size=(4, 200, 1)) + np.array([0.0, 0.0, 0.0, 3.0])[:, None, None]
    tree = mp.from_arrays(x, -x, allow_bad_scores=True)
    tree.attrs["seed"] = 11
    reading = Reading(mp.html_report(tree, method="plain", allow_bad_scores=True))
    text = " ".join(reading.texts("p"))
    assert re.search(r"R-hat 1\.\d+ of x\[0\] is above 1\.12: ", text)
    assert "Score gate: the chains disagree" in text
    assert "11" in reading.texts("dd")


@pytest.mark.slow
def test_wrong_scores_are_refused(draws):
    tree = mp.from_arrays(draws, draws, allow_bad_scores=True)
    with pytest.raises(mp.ScoreError, match="sign"):
        mp.html_report(tree)
    text = mp.html_report(tree, method="zv1", allow_bad_scores=True)
    reading = Reading(text)
    assert "bad_scores" in reading.texts("td")
    # and no gain, whose errors are not to be trusted
    assert "2 quantities: 2 bad_scores." in reading.texts("p")


def test_a_tree_without_scores_is_refused(tree):
    tree = tree.copy()
    del tree["sample_stats"]
    with pytest.raises(ValueError, match="attach_scores"):
        mp.html_report(tree)


def test_a_destination_is_refused_before_the_work(tmp_path, monkeypatch, tree):
    monkeypatch.setattr("mcmcpost.app.page.read_subject", lambda *_: pytest.fail("worked first"))
    taken = tmp_path / "taken.html"
    taken.write_text("precious")
    with pytest.raises(FileExistsError, match="which exists"):
        mp.html_report(tree, taken)
    with pytest.raises(ValueError, match=r"\.html"):
        mp.html_report(tree, tmp_path / "report.pdf")
    with pytest.raises(FileNotFoundError, match="existing folder"):
        mp.html_report(tree, tmp_path / "nowhere" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(FileExistsError, match="the folder"):
        mp.html_report(tree, tmp_path / "folder.html", overwrite=True)
    with pytest.raises(PermissionError, match="written to"):
        mp.html_report(tree, "/proc/new.html")
    assert taken.read_text() == "precious"


@pytest.mark.slow
def test_a_link_is_written_through_when_asked_for_and_refused_otherwise(tree, tmp_path):
    link, target = tmp_path / "link.html", tmp_path / "target.html"
    link.symlink_to(target)
    with pytest.raises(FileExistsError, match="which exists"):
        mp.html_report(tree, link, method="plain")
    mp.html_report(tree, link, method="plain", overwrite=True)
    assert link.is_symlink()
    assert target.read_text().startswith("<!")


@pytest.mark.slow
def test_overwriting_is_allowed_when_asked_for(tmp_path, tree):
    taken = tmp_path / "taken.html"
    taken.write_text("old")
    text = mp.html_report(tree, taken, method="plain", overwrite=True)
    assert taken.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]
    assert check_destination(taken, overwrite=True) == taken


def test_a_missing_package_is_named_with_its_cure(monkeypatch, estimate, tree):
    monkeypatch.setattr(canvas, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(ImportError, match=r"no jinja2.*mcmcpost\[report\]"):
        mp.html_report(tree, method="plain")
    monkeypatch.setattr(canvas, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"no matplotlib.*mcmcpost\[report\]"):
        mp.plot_gain(estimate)


@pytest.mark.slow
def test_hundreds_of_quantities_are_folded_by_variable_and_all_there(rng):
    x = rng.normal(size=(2, 60, 3))
    tree = mp.from_arrays(x, -x, names=("a", "b", "c"))
    posterior = xr.Dataset(
        {
            "mu": (("chain", "draw"), x[..., 0]),
            "theta": (("chain", "draw", "school"), np.exp(x[..., :1]) + np.arange(300.0)),
            "pair": (("chain", "draw", "side"), x[..., 1:]),
        },
        {"chain": [0, 1], "draw": range(60)},
    )
    tree["posterior"] = xr.DataTree(posterior)
    reading = Reading(mp.html_report(tree, method="plain"))
    assert not reading.problems
    assert reading.texts("summary") == ["theta: 300 quantities"] * 2  # estimates, and convergence
    headers = reading.texts("th")
    for name in ("mu", "pair[1]", "theta[0]", "theta[299]"):
        assert headers.count(name) == 2
    text = " ".join(reading.texts("p"))
    assert "Without a gain, because no control variate had a smaller error: mu, theta[0], " in text
    assert " and 295 more." in text
    assert reading.texts("strong")[:2] == ["Asked.", "Answer."]
    assert text.startswith("The posterior means of 303 quantities, from 2 chains of 60 draws.")
    assert "303 quantities: 303 plain." in text
    assert reading.texts("span")[0] == "300 plain; gain 1.00"
    assert reading.texts("span")[1].startswith("R-hat up to ")
    assert "mu, theta (300 elements), pair (2 elements)" in reading.texts("dd")
    assert "toSorted" in reading.script


def test_quantities_that_are_not_finite_say_nothing_of_convergence():
    known, unknown = (
        {"rhat": "1.01", "ess_bulk": "90", "ess_tail": "110"},
        dict.fromkeys(KINDS, "nan"),
    )
    assert (
        convergence_note([unknown, known, unknown])
        == "R-hat up to 1.01, ESS from 90 (bulk) and 110 (tail)"
    )
    assert convergence_note([unknown]) == "R-hat and ESS unknown"
    one_chain = known | {"rhat": "nan"}
    assert convergence_note([one_chain]) == "R-hat unknown, ESS from 90 (bulk) and 110 (tail)"


@pytest.mark.slow
def test_few_quantities_are_not_folded_and_need_no_script(rng):
    x = rng.normal(size=(2, 60, 2))
    reading = Reading(mp.html_report(mp.from_arrays(x, -x), method="plain"))
    assert not reading.texts("summary")
    assert not reading.script


def test_every_status_is_explained(report):
    words = " ".join(Reading(report).texts("dd"))
    assert [status for status in mp.Status if status not in words] == []
