"""Write the pages of results: for each subject the questions, the tables that answer them, and what
these mean.

    python -m benchmarks.collect

A table comes from the JSON of the run that printed it. Its question and its meaning are written by
hand, in ``results/notes.json`` under the name of that file; what was asked for is in
``results/targets.json``. The pages are ``docs/results/*.md``; ``RESULTS.md`` is an index of them.
Figures in these texts, in README.md and in the other pages of ``docs`` are taken from the tables,
too; see ``benchmarks/_figures.py``.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._figures import fill, renew
from benchmarks._table import RESULTS, aligned, settings_line
from benchmarks._targets import MET, MISSED, NEARLY, target_rows

ROOT = RESULTS.parents[1]
PAGES_FOLDER = ROOT / "docs" / "results"


class Page(NamedTuple):
    """One subject: its title, what it asks, and the names of its tables in order."""

    title: str
    about: str
    tables: tuple[str, ...]


PAGES = {
    "real_models": Page(
        "What one thousand draws give",
        "Twelve models of published data, and one thousand draws of each: how large are the errors "
        "of what a summary says, plain and with mcmcpost, and what would sampling the same cost?",
        ("real_models",),
    ),
    "expectations": Page(
        "Expectations",
        "How much smaller are the errors of posterior means with control variates, on which "
        "targets?",
        (
            "hare_lynx",
            "hare_lynx_keys",
            "hare_lynx_stan",
            "posteriordb",
            "hierarchical",
            "costs",
            "structure",
            "marginals",
            "dimension_scaling",
            "south2022",
            "auto_vs_plain",
            "weighted_draws",
        ),
    ),
    "calibration": Page(
        "Calibration of the reported errors",
        "Are the reported errors as large as the true ones? `z` is (estimate − truth)/mcse. "
        "Over R replications its variance `var z` should not exceed the upper end of its χ² "
        "band at level 1e-5; a value below the lower end means that errors are wider than "
        "they need to be.",
        (
            "errors",
            "errors_cells",
            "rare_states",
            "coverage",
            "calibration_ar1__5",
            "calibration_ar1__9",
            "calibration_eight_schools",
            "out_of_rkhs",
            "high_degree",
            "stopping",
            "stopping_models",
        ),
    ),
    "vector_valued": Page(
        "Vector-valued control variates",
        "What do related tasks gain from a joint fit? `alone` is the same method on the first "
        "task by itself.",
        (
            "vector_valued_borehole",
            "vector_valued_borehole_150",
            "vector_valued_unbalanced",
            "vector_valued_paper",
            "vector_valued_step",
            "vector_valued_south",
            "vector_valued_south_quadratic",
            "vector_valued_speed",
            "vector_valued_large",
            "lotka_volterra_tasks",
        ),
    ),
    "evidence": Page(
        "Model evidence",
        "How accurate is the log evidence, and are its errors right? `MAE` is the mean "
        "absolute error of log p(y).",
        (
            "van_der_pol",
            "van_der_pol_mcmc",
            "van_der_pol_rules",
            "evidence_radiata",
            "evidence_blr",
            "evidence_eight_schools",
            "evidence_hare_lynx",
            "stored_ladders",
            "bridge_errors",
            "evidence_peers",
            "evidence_peers_large",
            "evidence_peers_more",
            "evidence_peers_hare_lynx",
            "evidence_peers_ladder",
            "reference_ladder",
            "reference_ladder_hare_lynx",
            "ladder_sampling",
        ),
    ),
    "kernels_and_solvers": Page(
        "Kernel products and solvers",
        "How fast are products with kernel matrices, and how many of them do linear solves "
        "need? An epoch is every entry of the matrix once. `cold / this` compares with solves "
        "that start at zero.",
        (
            "kernel_product",
            "kernel_product_stein",
            "kernel_product_devices",
            "device_products",
            "exact_likelihood",
            "exact_likelihood_threads",
            "exact_likelihood_fit",
            "iterative_gp_ranks_elevators",
            "iterative_gp_epochs",
            "iterative_gp_epochs_pol_sgd",
            "iterative_gp_epochs_elevators",
            "iterative_gp_epochs_bike",
            "iterative_gp_epochs_pol_whole",
            "iterative_gp_epochs_elevators_whole",
            "iterative_gp_epochs_bike_whole",
            "iterative_gp_epochs_pol_whole_ap",
            "iterative_gp_epochs_elevators_whole_ap",
            "iterative_gp_epochs_bike_whole_ap",
        ),
    ),
    "gaussian_processes": Page(
        "Gaussian-process regression",
        "How accurate are iterative and computation-aware processes, and what do they cost?",
        (
            "iterative_gp_pol_standard",
            "iterative_gp_pol_pathwise",
            "iterative_gp_elevators_standard",
            "iterative_gp_elevators_pathwise",
            "iterative_gp_bike_standard",
            "iterative_gp_bike_pathwise",
            "iterative_gp_exact_elevators",
            "iterative_gp_exact_pol_bike",
            "iterative_gp_small_exact",
            "iterative_gp_small_ap",
            "iterative_gp_small_sgd",
            "computation_aware",
            "computation_aware_large",
            "computation_aware_actions",
            "computation_aware_synthetic",
        ),
    ),
    "stein_weights": Page(
        "Kernels on many draws",
        "What do control functionals and Stein weights of many draws cost, and what do they gain?",
        ("large_kernel", "stein_weights", "stein_weights_seeds"),
    ),
    "gradient_gp": Page(
        "Gradient Gaussian processes and GP optimisers",
        "What do solves with the Gram matrix of gradients cost, and how good are optimisers "
        "made of them?",
        ("gradient_gram", "gradient_gram_matrix_free", "gp_optimizers"),
    ),
    "surrogate_hmc": Page(
        "Surrogate HMC",
        "How many effective draws does a true gradient buy, warm-up counted? Except in the "
        "last table, effective draws are the lesser of the bulk and tail effective sample "
        "sizes, the least over coordinates.",
        (
            "surrogate_hmc",
            "surrogate_hmc_models",
            "surrogate_hmc_rotations",
            "surrogate_hmc_nuts",
            "surrogate_hmc_dense",
            "surrogate_hmc_peers",
            "surrogate_hmc_peers_lotka_volterra",
            "surrogate_hmc_peers_epidemics",
            "surrogate_hmc_peers_logistic",
            "surrogate_product_models",
        ),
    ),
    "large_traces": Page(
        "Traces on the command line, small and large",
        "How much time and memory do reductions need, of small traces and of large ones?",
        (
            "first_reduce",
            "sums_cost",
            "lazy_traces",
            "lazy_traces_8",
            "lazy_traces_40",
            "lazy_traces_auto",
            "lazy_traces_functions",
            "large_trace",
            "large_trace_auto",
            "large_trace_half_gb",
            "large_trace_2gb",
        ),
    ),
    "scale": Page(
        "Several processes, short chains, large problems",
        "Do several processes of `jax.distributed` give the numbers of one, what do they "
        "save, what do many short chains cost, what would larger problems than any that is "
        "run here, and what does a GPU give?",
        ("scale_processes", "short_chains", "projections", "gpu"),
    ),
}
ABOUT = """Every measured table has a page: what was asked, the table, its meaning and its command.

Replications use keys fixed beforehand, the first R of one stream, and none is excluded. Seconds are
from two cores shared with other jobs, so they are indicative only; sizes, ratios and z are not
affected. "By hand" marks a number that no table has. A commit is the code of the run, with a "+" if
files were changed; where no CPU time stands beside it, it is the commit that recorded the table. An
error meets its aim when it is below it after two standard errors are taken off. In a command,
`PYTHON` is an interpreter that has the packages compared with, and `DATA` is a folder with
`data/posteriordb` and `data/uci`; `DIAMONDS` is the `diamonds.csv` of ggplot2, which is also in the
wheel of plotnine.
"""
AGAIN = """`python -m benchmarks` lists the subjects, which are the pages of results:

```bash
python -m benchmarks calibration --quick  # each of its benchmarks at a small size; keeps no table
python -m benchmarks calibration          # every table again, by the commands below
python -m benchmarks calibration --list   # prints the commands and runs none
```

A quick run is the same computation at sizes that end within two minutes of one core. Commands with
`PYTHON` need `--peers`, those with `DATA` need `--shared`, and those with `DIAMONDS` need
`--diamonds`. Where rows of a table are of several runs, its command is that of the last.
"""
TARGETS = """What was asked for before it was measured: by the papers, by the best of other
programs, by prototypes. Of {total} targets {met} are met, {nearly} are missed by less than two
standard errors, and {missed} are not met and have an answer. Figures are taken from the tables when
the pages are written: a table that is made again changes them.
"""
WRITTEN = (
    "The pages are written by `python -m benchmarks.collect` from the JSON of the runs in "
    "`benchmarks/results/`."
)


def pages() -> dict[Path, str]:
    """Return the text of every file that is generated or has figures in it."""
    notes = json.loads((RESULTS / "notes.json").read_text())
    targets = json.loads((RESULTS / "targets.json").read_text())
    tables = [path for path in RESULTS.glob("*.json") if path.stem not in ("notes", "targets")]
    records = {path.stem: json.loads(path.read_text()) for path in tables}
    named = [name for page in PAGES.values() for name in page.tables]
    if sorted(named) != sorted(records) or sorted(notes) != sorted(records):
        raise ValueError(
            "collect: expected every JSON file on one page and with a note, got the "
            f"differences {sorted({*named} ^ {*records} | {*notes} ^ {*records})}. Name it in "
            "PAGES and in results/notes.json."
        )
    rows = {name: record["rows"] for name, record in records.items()}
    notes = {
        name: {key: fill(text, name, rows) for key, text in note.items()}
        for name, note in notes.items()
    }
    found = {
        PAGES_FOLDER / "index.md": _index(notes),
        RESULTS.parent / "RESULTS.md": _short_index(),
    }
    found[PAGES_FOLDER / "runs.md"] = _runs(records)
    found[PAGES_FOLDER / "targets.md"] = _targets(
        {name: target_rows(name, part, rows) for name, part in targets.items()}
    )
    for stem, page in PAGES.items():
        sections = [_section(name, records[name], notes[name]) for name in page.tables]
        found[PAGES_FOLDER / f"{stem}.md"] = "\n".join(
            [f"# {page.title}\n\n{page.about}\n", *sections]
        )
    written = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path: path.read_text() for path in written if path.parent != PAGES_FOLDER}
    with_figures = {
        path: text for path, text in texts.items() if "<!--=" in text or "<!-- figures" in text
    }
    return found | {
        path: renew(str(path.relative_to(ROOT)), text, rows) for path, text in with_figures.items()
    }


def _section(name: str, record: Mapping[str, Any], note: Mapping[str, str]) -> str:
    """Return the question, the table, what it means and how it was made."""
    settings = settings_line(record["settings"])
    table = f"{settings}\n\n{aligned(record['rows'])}" if settings else aligned(record["rows"])
    on = ", ".join(f"{key} {value}" for key, value in record["environment"].items())
    cost = f", {record['cpu_seconds']:,} CPU seconds" if "cpu_seconds" in record else ""
    return (
        f"## {name}: {note['question']}\n\n```text\n{table}\n```\n\n{note['meaning']}\n\n"
        f"Command: `{record['command']}`, with {on}. Commit {record['commit']}, "
        f"{record['date']}{cost}.\n"
    )


def _runs(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line for each table: how, when and where it was made."""
    lines = [
        "| table | command | commit | date | CPU seconds | hardware |",
        "|---|---|---|---|---|---|",
    ]
    for stem, page in PAGES.items():
        for name in page.tables:
            record, on = records[name], records[name]["environment"]
            cost = f"{record['cpu_seconds']:,}" if "cpu_seconds" in record else ""
            hardware = f"{on['cpu']}, cores: {on['cores']}"
            parts = [
                f"[{name}]({stem}.md#{name})",
                f"`{record['command']}`",
                record["commit"],
                record["date"],
            ]
            lines.append("| " + " | ".join([*parts, cost, hardware]) + " |")
    return "\n".join(["# Every run\n", AGAIN, *lines, ""])


def _targets(subjects: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """Return one table for each subject: every target, met or answered."""
    page_of = {name: stem for stem, page in PAGES.items() for name in page.tables}
    verdicts = Counter(row["verdict"] for rows in subjects.values() for row in rows)
    numbers = {
        "total": verdicts.total(),
        "met": verdicts[MET],
        "nearly": verdicts[NEARLY],
        "missed": verdicts[MISSED],
    }
    parts = ["# Targets\n", TARGETS.format(**numbers)]
    for subject, rows in subjects.items():
        parts += [
            f"## {subject}\n",
            "| target | aim | reached | | table |",
            "|---|---|---|---|---|",
        ]
        for row in rows:
            name = row["table"]
            table = f"[{name}]({page_of[name]}.md#{name})" if name else "by hand"
            verdict = row["verdict"] + (f". {row['answer']}" if row["answer"] else "")
            cells = [row["what"], row["aim"], row["reached"], verdict]
            parts.append(
                "| " + " | ".join([*(cell.replace("|", "\\|") for cell in cells), table]) + " |"
            )
        parts.append("")
    return "\n".join(parts)


def _index(notes: Mapping[str, Mapping[str, str]]) -> str:
    parts = ["# Results\n", ABOUT]
    parts.append(
        WRITTEN
        + " [Every run](runs.md) has its command, and [every target](targets.md) its figure.\n"
    )
    for stem, page in PAGES.items():
        questions = "\n".join(
            f"- [{notes[name]['question']}]({stem}.md#{name})" for name in page.tables
        )
        parts.append(f"## [{page.title}]({stem}.md)\n\n{questions}\n")
    return "\n".join(
        [*parts, "```{toctree}\n:hidden:\n\n" + "\n".join([*PAGES, "targets", "runs"]) + "\n```\n"]
    )


def _short_index() -> str:
    lines = [
        f"- [{page.title}](../docs/results/{stem}.md): {page.about}" for stem, page in PAGES.items()
    ]
    lines.append(
        "- [Targets](../docs/results/targets.md): what was asked for, what was reached, and "
        "what was not."
    )
    lines.append(
        "- [Every run](../docs/results/runs.md): commands, commits and hardware, and how to "
        "run them again."
    )
    return "\n".join(["# Results\n", WRITTEN + "\n", *lines, ""])


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
