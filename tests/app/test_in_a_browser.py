"""Reports in headless Chromium: what they ask for and say, how they lie on a screen, keyboard,
accessibility, print."""

import re
import shutil
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest
import xarray as xr
from ladder_cases import short_ladder

import mcmcpost as mp

pytestmark = pytest.mark.browser

WIDE, NARROW, PAPER = 1280, 390, 680
"""Pixels across a laptop, a telephone, and A4 within its margins."""

LONG = 1009
"""Pixels down A4 within its margins."""

REPORTS = ("few", "many", "ladder")

MANY = 326

# What lies wrong on the page: one line for each element.
LAYOUT = """(narrow) => {
  const found = [], room = document.documentElement.clientWidth;
  const line = (what, element) => found.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  const whole = document.documentElement;
  if (whole.scrollWidth > room) line("wider than the screen", whole);
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect(), scroll = element.closest(".scroll");
    if (!element.checkVisibility() || element.closest("svg, .skip")) continue;
    if (box.width && !scroll && (box.left < 0 || box.right > room + 0.5)) line("cut off", element);
    const inline = getComputedStyle(element).display === "inline";
    const fits = element.scrollWidth <= element.clientWidth + 1 || inline;
    if (!fits && !(narrow && element === scroll)) line("does not fit", element);
  }
  for (const drawing of document.querySelectorAll("figure svg")) {
    const box = drawing.getBoundingClientRect();
    const frame = drawing.parentElement.getBoundingClientRect();
    const inside = (part, whole) => part.left >= whole.left - 1 && part.right <= whole.right + 1 &&
      part.top >= whole.top - 1 && part.bottom <= whole.bottom + 1;
    if (!box.height || !inside(box, frame)) line("a plot outside its frame", drawing);
    const texts = [...drawing.querySelectorAll("text")];
    const out = texts.filter((text) => !inside(text.getBoundingClientRect(), box));
    for (const text of out) line("a text outside its plot", text);
  }
  for (const cell of document.querySelectorAll(".method")) {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (cell.checkVisibility() && lines.size !== 1) line("a method on several lines", cell);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The files of three reports by name."""
    folder, rng = tmp_path_factory.mktemp("reports"), np.random.default_rng(3)
    x = rng.normal(size=(2, 100, 3))
    tree = mp.from_arrays(x, -x, names=("alpha", "beta", "gamma"))
    few = {
        "alpha": x[..., 0],
        "the cube of beta": x[..., 1] ** 3,
        "P(alpha > 1)": x[..., 0] > 1,
        "sin(3 gamma)": np.sin(3 * x[..., 2]),
        "<b>lost</b>": np.where(x[..., 0] > 2, np.nan, x[..., 0]),
    }
    mp.html_report(tree, folder / "few.html", few, "zv2")
    posterior = {
        "mu": (("chain", "draw"), x[..., 0]),
        "theta": (("chain", "draw", "school"), np.sin(x[..., :1] * np.linspace(0.5, 3.0, 300))),
        "a_long_name_of_a_hierarchical_coefficient": (
            ("chain", "draw", "group"),
            x[..., 1:2] ** 3 + np.arange(20.0),
        ),
        "pair": (("chain", "draw", "side"), x[..., 1:]),
        "sigma": (("chain", "draw", "level"), np.exp(x)),
    }
    many = tree.copy()
    many["posterior"] = xr.DataTree(xr.Dataset(posterior, {"chain": [0, 1], "draw": range(100)}))
    mp.html_report(
        many, folder / "many.html", method="zv2", command="mcmcpost report " + "many/" * 60
    )
    mp.html_report(
        mp.ladder_from_arrays(*short_ladder(rng)[0][:5]), folder / "ladder.html", method="zv2"
    )
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def browser():
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("there is no Chromium on the path")
    driver = pytest.importorskip(
        "playwright.sync_api", reason="the extra `browser` is not installed"
    )
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened(NamedTuple):
    """A page, the lines that it wrote to the console, and the addresses that it asked for."""

    page: object
    said: list
    asked: list

    def layout(self):
        narrow = self.page.viewport_size["width"] == NARROW
        return self.page.evaluate(LAYOUT, narrow)

    def violations(self):
        axe = pytest.importorskip(
            "axe_playwright_python.sync_playwright", reason="the extra `browser` is missing"
        )
        found = axe.Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]

    def focused(self):
        """Return the id of the element that has the focus, or its text."""
        return self.page.evaluate("document.activeElement.id || document.activeElement.textContent")

    def tab_to(self, name, most=60):
        """Press the tab key until the element of that id or text has the focus."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if self.focused() == name:
                return
        pytest.fail(f"{most} presses of the tab key do not reach {name!r}")

    def rows(self):
        """Return the names of the quantities whose rows can be seen, once for each section."""
        return self.page.evaluate(
            "[...document.querySelectorAll('table.quantities tbody th')].filter(x => "
            "x.checkVisibility() && x.getBoundingClientRect().height).map(x => x.textContent)"
        )

    def open_folds(self):
        return self.page.locator("details[open]").count()

    def unfold(self):
        self.page.evaluate("document.querySelectorAll('details').forEach(x => { x.open = true })")


@pytest.fixture
def visit(browser):
    @contextmanager
    def visit(address, width=WIDE, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened = Opened(context.new_page(), [], [])
        opened.page.on("console", lambda message: opened.said.append(message.text))
        opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.goto(address)
        yield opened
        context.close()

    return visit


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_whole_quiet_and_accessible(visit, reports, name, width):
    address = reports[name].as_uri()
    with visit(address, width) as opened:
        for _ in range(2):
            assert opened.layout() == []
            assert opened.violations() == []
            opened.unfold()
        assert opened.said == []
        assert opened.asked == [address]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<p style='width: 2000px'>x</p>", "wider than the screen"),
        (
            "<div style='overflow: hidden; width: 3rem'><p style='width: 9rem'>x</p></div>",
            "does not fit",
        ),
        (
            "<figure><div style='height: 1px'><svg width='9' height='9'></svg></div></figure>",
            "a plot outside its frame",
        ),
        (
            "<figure><div><svg width='9' height='9'><text x='8' "
            "y='8'>long</text></svg></div></figure>",
            "a text outside",
        ),
        (
            "<p class='method' style='width: 3rem'>ZeroVariance (degree=2)</p>",
            "a method on several lines",
        ),
    ],
)
def test_the_check_of_the_layout_finds_what_is_wrong(visit, tmp_path, body, found):
    (tmp_path / "page.html").write_text(f"<!doctype html><title>x</title><body>{body}</body>")
    with visit((tmp_path / "page.html").as_uri()) as opened:
        assert any(line.startswith(found) for line in opened.layout())
        assert any("html-has-lang" in line for line in opened.violations())


def test_a_script_that_the_policy_does_not_name_never_runs(visit, reports, tmp_path):
    text = (
        reports["many"]
        .read_text()
        .replace('"use strict";', '"use strict"; document.title = "run";')
    )
    (tmp_path / "changed.html").write_text(text + "<img src='https://example.org/x.png' alt=''>")
    with visit((tmp_path / "changed.html").as_uri()) as opened:
        assert opened.page.title() != "run"
        assert len([line for line in opened.said if "Content Security Policy" in line]) == 2


@pytest.mark.parametrize(
    ("name", "asked", "answer"),
    [
        (
            "few",
            "The posterior means of 5 quantities, from 2 chains of 100 draws.",
            "5 quantities: ",
        ),
        (
            "many",
            f"The posterior means of {MANY} quantities, from 2 chains of 100 draws.",
            f"{MANY} quantities: ",
        ),
        (
            "ladder",
            "The log evidence and the posterior mean of 1 quantity, from 2 chains of 60 draws.",
            "The log evid",
        ),
    ],
)
def test_a_report_begins_with_the_question_and_the_answer(visit, reports, name, asked, answer):
    with visit(reports[name].as_uri(), NARROW) as opened:
        first, second, *others = opened.page.locator("header p").all_inner_texts()
        assert first == f"Asked. {asked}"
        assert second.startswith(f"Answer. {answer}")
        assert name == "ladder" or others[-1].startswith("Without a gain, because ")
        on_screen = "x => x.getBoundingClientRect().bottom <= innerHeight"
        assert opened.page.locator("header").evaluate(on_screen)
        headings = opened.page.locator("h2").all_inner_texts()
        assert headings[0] == ("Model evidence" if name == "ladder" else "Estimates")


def test_the_keyboard_searches_and_unfolds(visit, reports):
    with visit(reports["many"].as_uri()) as opened:
        page, found = opened.page, opened.page.get_by_role("status")
        unsearched = opened.rows()
        assert len(unsearched) == 2 * 6  # in estimates and in convergence
        page.keyboard.press("Tab")
        assert opened.focused() == "Skip to the results"
        page.keyboard.press("Enter")
        opened.tab_to("find")
        page.keyboard.type("THETA[29")
        assert opened.rows() == [f"theta[{j}]" for j in (29, *range(290, 300))] * 2
        assert found.inner_text() == f"11 of {MANY} quantities found; the others are hidden."
        assert opened.violations() == []
        page.keyboard.type("x")
        assert opened.rows() == []
        assert found.inner_text() == f"0 of {MANY} quantities found; the others are hidden."
        page.keyboard.press("Escape")
        assert found.inner_text() == f"All {MANY} quantities are listed."
        assert opened.rows() == unsearched
        page.keyboard.type("plain coefficient")  # a status and a part of a name
        assert len(opened.rows()) == 2 * 20
        page.keyboard.press("Escape")

        opened.tab_to("unfold")
        page.keyboard.press("Enter")
        assert len(opened.rows()) == 2 * MANY
        assert opened.focused() == "unfold"
        assert page.get_by_role("button", name="Fold all").count() == 1
        page.keyboard.press("Space")
        assert opened.rows() == unsearched
        summary = page.locator("summary").first
        opened.tab_to(summary.text_content())
        for key, count in (("Enter", 1), ("Space", 0), ("Space", 1)):
            page.keyboard.press(key)
            assert opened.open_folds() == count
        assert set(opened.rows()) - set(unsearched) == {f"theta[{j}]" for j in range(300)}
        assert opened.said == []


def test_the_keyboard_sorts_a_table(visit, reports):
    with visit(reports["many"].as_uri()) as opened:
        table = opened.page.locator("table.quantities").first
        column = table.get_by_role("columnheader", name="Gain")
        gains = "td:nth-child(7)"
        assert table.locator(gains).all_inner_texts()[:3] == ["–", "–", "–"]
        before = table.locator(gains).all_inner_texts()
        known = sorted((text for text in before if text != "–"), key=float)
        opened.tab_to("find")
        opened.tab_to("Gain")
        opened.page.keyboard.press("Enter")
        assert opened.violations() == []
        opened.page.keyboard.press("Enter")
        opened.page.keyboard.press("Enter")
        for order, expected in (("ascending", known), ("descending", known[::-1]), (None, None)):
            opened.page.keyboard.press("Space")
            assert column.get_attribute("aria-sort") == order
            assert table.locator(gains).all_inner_texts() == (
                [*expected, "–", "–", "–"] if expected else before
            )
            assert opened.layout() == []
        assert opened.said == []


def test_without_scripts_every_row_can_be_unfolded(visit, reports):
    with visit(reports["many"].as_uri(), java_script_enabled=False) as opened:
        assert not opened.page.locator("#search").is_visible()
        for summary in opened.page.locator("summary").all():
            summary.focus()
            opened.page.keyboard.press("Enter")
        assert len(opened.rows()) == 2 * MANY


@pytest.mark.parametrize("name", REPORTS)
def test_paper_has_every_quantity_and_cuts_nothing(visit, reports, name):
    with visit(reports[name].as_uri(), PAPER) as opened:
        on_screen = len(opened.rows())
        opened.page.emulate_media(media="print")
        assert opened.layout() == []
        assert (
            len(opened.rows())
            == {"few": 2 * 5, "many": 2 * MANY, "ladder": 2 * 1}[name]
            >= on_screen
        )
        assert not opened.page.locator("nav").is_visible()
        heights = (
            "[...document.querySelectorAll('html, figure')].map(x => "
            "x.getBoundingClientRect().height)"
        )
        height, *figures = opened.page.evaluate(heights)
        assert max(figures) < LONG
        pages = len(re.findall(rb"/Type\s*/Page\b", opened.page.pdf(format="A4")))
        assert pages >= height / LONG  # the folded rows are on them
