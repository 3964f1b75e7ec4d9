"""Figures in prose are those of the tables, and a figure that cannot be had is named."""

import json
import re

import pytest

from benchmarks import _figures, _table, _targets

ROWS = {
    "speeds": [
        {"method": "auto", "d": 2, "s": 1.5, "cold / this": 350.4, "z": "nan", "met": True},
        {
            "method": "zv2, all",
            "d": 2,
            "s": 3e-6,
            "cold / this": 12345.6,
            "z": "-0.25",
            "met": False,
        },
        {"method": "zv2, all", "d": 10, "s": 0.03, "cold / this": 7.0, "z": "1", "met": ""},
    ],
    "other": [{"memory": 2930.0}],
}


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("s; method = auto", "1.5"),
        ("s; method = zv2, all; d = 10 as .3f", "0.030"),
        ("s; method != auto; d = 2", "3.0e-6"),
        ("s; met = yes", "1.5"),
        ("cold / this; method = auto", "350"),
        ("cold / this; method = auto as .0e", "4e2"),
        ("cold / this; d = 2; method = zv2, all as ,.0f", "12,346"),
        ("z; met = no as .2f", "−0.25"),
        ("max(s)", "1.5"),
        ("min(s; d = 2)", "3.0e-6"),
        ("median(s)", "0.030"),
        ("rms(cold / this; method = auto or zv2, all; d = 10 or 2; met != no) as .2f", "247.82"),
        ("max(s; d = 2 or 10; method != auto)", "0.030"),
        ("s; method = auto over method = zv2, all; d = 10 as .0f", "50"),
        ("cold / this; d = 10 over s as .0f", "233"),
        ("max(s) over min(s) as .1g", "500,000"),
        ("other: memory over 1000", "2.9"),
        ("s; method = auto over 2930", "0.00051"),
    ],
)
def test_a_figure_is_of_the_rows_that_it_names(figure, expected):
    assert _figures.number(figure, "speeds", ROWS, "here") == expected


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("s", "expected one row of `speeds`, got 3"),
        ("s; method = cf", "expected one row of `speeds`, got 0"),
        ("t; method = auto", "no column `t`"),
        ("s; name = auto", "no column `name`"),
        ("tables: s", "no table `tables`"),
        ("z; method = auto", "expected a finite number"),
        ("method; d = 10", "could not convert"),
        ("s over s over s", "at most one `over`"),
        ("s; method = auto as words", "Invalid format"),
    ],
)
def test_a_figure_that_cannot_be_had_is_named(figure, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        _figures.number(figure, "speeds", ROWS, "notes.json, speeds")
    assert str(error.value).startswith(f"notes.json, speeds: `{figure}`: ")


def test_a_note_has_its_figures_in_braces():
    assert (
        _figures.fill("It is {max(s)} with `chunks={}`.", "speeds", ROWS)
        == "It is 1.5 with `chunks={}`."
    )


PAGE = "In a row {a}<!--=fast--> times, or {b}<!--=slow-->.\n\n<!-- figures\n{names}-->\n"
NAMES = "fast = speeds: s; method = auto\nslow = speeds: s; d = 10 as .0e\n"


def test_a_page_is_renewed_and_then_stays():
    text = PAGE.format(a="19", b="1e-5", names=NAMES)
    new = PAGE.format(a="1.5", b="3e-2", names=NAMES)
    assert _figures.renew("README.md", text, ROWS) == new
    assert _figures.renew("README.md", new, ROWS) == new


@pytest.mark.parametrize(
    ("a", "names", "said"),
    [
        ("1", NAMES.replace("slow", "slaw"), "got ['slaw', 'slow']"),
        ("1", NAMES + NAMES, "4 lines"),
        ("many", NAMES, "figure `fast`: expected a number right before its name"),
        (
            "1",
            NAMES.replace("auto", "cf"),
            "figure `fast`: `speeds: s; method = cf`: expected one row",
        ),
    ],
)
def test_a_page_that_cannot_be_renewed_is_named(a, names, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        _figures.renew("docs/a.md", PAGE.format(a=a, b="2", names=names), ROWS)
    assert str(error.value).startswith("docs/a.md")


def test_the_words_of_the_language_are_in_no_table():
    """A column or a value that has one of them could not be named."""
    for path in sorted(_table.RESULTS.glob("*.json")):
        for row in json.loads(path.read_text()).get("rows", []):
            assert not [
                column for column in row if re.search(r"[;{}]| (over|as|or|!?=) ", column)
            ], path.name
            # a message
            values = [
                value for name, value in row.items() if isinstance(value, str) and name != "said"
            ]
            assert not [value for value in values if re.search(r"[;{}]| (over|as|or) ", value)], (
                path.name
            )


@pytest.mark.parametrize(
    ("target", "reached", "verdict"),
    [
        ({"aim": "≤ 2", "figure": "speeds: s; method = auto"}, "1.50", "met"),
        (
            {"aim": "≥ 2", "figure": "speeds: s; method = auto", "answer": "{other: memory} MB."},
            "1.50",
            "not met",
        ),
        (
            {"aim": "≥ 2", "figure": "speeds: max(s)", "error": "speeds: max(s) over 5"},
            "1.50 ± 0.30",
            "within",
        ),
        ({"aim": "≤ 0.2", "by hand": 0.2}, "0.200", "met"),
        ({"aim": "≤ 0", "by hand": 0}, "0", "met"),
    ],
)
def test_a_target_is_met_within_its_error_or_answered(target, reached, verdict):
    [row] = _targets.target_rows("speed", [{"what": "it"} | target], ROWS)
    assert row["reached"] == reached
    assert row["verdict"].startswith(verdict)
    assert row["table"] == ("" if "by hand" in target else "speeds")
    assert row["answer"] == ("2,900 MB." if "answer" in target else "")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            {"aim": "≥ 2", "figure": "speeds: s; method = auto"},
            "expected an answer, since 1.50 is not ≥ 2.",
        ),
        ({"aim": "fast", "by hand": 1}, "expected an aim like \"≤ 0.06\", got 'fast'."),
    ],
)
def test_a_target_that_is_missed_is_answered(target, said):
    with pytest.raises(ValueError, match=re.escape(f"targets.json, speed: it: {said}")):
        _targets.target_rows("speed", [{"what": "it"} | target], ROWS)
