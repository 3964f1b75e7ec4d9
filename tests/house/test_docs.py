"""The checker of the built documentation finds what is broken, and pages of methods and results are
complete."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _table, collect

DOCS = Path(__file__).parents[2] / "docs"

PAGE = "<html><head>{head}</head><body><h1 id='top'>x</h1>{body}</body></html>"


def check(site):
    """Return exit code and lines of docs/check_site.py."""
    done = subprocess.run(
        [sys.executable, DOCS / "check_site.py", site], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def write(site, head="", body=""):
    (site / "a.html").write_text(PAGE.format(head=head, body=body))
    (site / "style.css").write_text("p { color: red }")


def test_a_sound_site_passes(tmp_path):
    links = "<a href='#top'></a><a href='a.html#top'></a><a href='https://example.org'></a>"
    write(tmp_path, "<link rel='stylesheet' href='style.css'>", links)
    assert check(tmp_path) == (0, ["1 pages, 0 problems"])


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("", "<a href='b.html'></a>", "no target b.html"),
        ("", "<a href='#bottom'></a>", "no fragment #bottom"),
        (
            "<script src='https://cdn.example.org/x.js'></script>",
            "",
            "loads https://cdn.example.org/x.js",
        ),
        (
            "<link rel='stylesheet' href='//fonts.example.org/f.css'>",
            "",
            "loads //fonts.example.org/f.css",
        ),
        ("", "<img src='missing.png'>", "no target missing.png"),
    ],
)
def test_what_is_broken_is_found(tmp_path, head, body, said):
    write(tmp_path, head, body)
    code, lines = check(tmp_path)
    assert code == 1
    assert lines[0] == f"a.html: {said}"


def test_a_style_sheet_that_loads_is_found(tmp_path):
    write(tmp_path)
    (tmp_path / "style.css").write_text("@import url('https://example.org/x.css');")
    assert check(tmp_path)[1][0] == "style.css: loads from the network"


def test_every_method_page_answers_the_same_questions():
    index = (DOCS / "methods" / "index.md").read_text()
    pages = sorted(path for path in (DOCS / "methods").glob("[a-z]*.md") if path.stem != "index")
    assert {path.stem for path in pages} == set(
        re.findall(r"^([a-z]+(?:_[a-z]+)*)$", index, re.MULTILINE)
    )
    for path in pages:
        text = path.read_text()
        for asked in (
            "**When it helps.**",
            "**When it cannot help.**",
            "**What its error means.**",
            "## Formula",
        ):
            assert asked in text, (path.name, asked)
        assert "```{doctest}" in text, path.name
        assert "{src}`" in text, path.name


def test_results_pages_are_those_of_the_recorded_runs():
    """``python -m benchmarks.collect`` writes them, and the figures of README.md and of the other
    pages of ``docs``."""
    expected = collect.pages()
    for path, text in expected.items():
        assert path.read_text() == text, path.name
    assert {*collect.PAGES_FOLDER.iterdir()} == {
        path for path in expected if path.parent == collect.PAGES_FOLDER
    }


def test_no_recorded_command_has_a_path_of_a_machine():
    for path in sorted(_table.RESULTS.glob("*.json")):
        command = json.loads(path.read_text()).get("command", "")
        words = [part for word in command.split() for part in word.split("=")]
        assert not [word for word in words if word.strip("'").startswith(("/", "~"))], path.name


def test_a_path_in_a_command_is_recorded_as_a_placeholder(monkeypatch):
    words = [
        "--peers",
        "/opt/python",
        "--shared=/data/sets",
        "/x/y.nc",
        "--names",
        "a b",
        "../relative",
    ]
    monkeypatch.setattr(sys, "argv", [str(DOCS.parent / "benchmarks/gp/gradient_gram.py"), *words])
    expected = (
        "python -m benchmarks.gp.gradient_gram --peers PYTHON --shared=DATA PATH --names 'a b' "
        "../relative"
    )
    assert _table.command() == expected
