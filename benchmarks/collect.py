"""Assemble RESULTS.md from the JSON of the benchmarks: tables as printed, commands, versions, and the notes.

    python -m benchmarks.collect

Notes are paragraphs in ``results/notes.json``, by the name of the JSON file they comment on; they are written by hand.
"""

import json

from benchmarks._table import RESULTS, aligned, settings_line

ORDER = (
    "hare_lynx",
    "posteriordb",
    "calibration",
    "south2022",
    "large_kernel",
    "auto_vs_plain",
    "out_of_rkhs",
    "high_degree",
    "vector_valued",
    "lotka_volterra",
    "van_der_pol",
    "evidence",
    "stored_ladders",
    "bridge",
    "ladder_sampling",
    "kernel_product",
    "kernel_product_devices",
    "kernel_product_stein",
    "iterative_gp",
    "computation_aware",
    "stein_weights",
    "gradient_gram",
    "gp_optimizers",
    "surrogate_hmc",
    "surrogate_product",
)
HEAD = """# Results

Every table is one that the command above it printed, copied from the JSON of the same run in `results/`, with the
versions, processor and cores of that run below it. Replications use keys fixed beforehand: the first R of one stream,
none excluded. Seconds are from two cores shared with other jobs, so indicative only; sizes, ratios and z are not.
Assembled by `python -m benchmarks.collect`.
"""


def main() -> None:
    files = sorted(RESULTS.glob("*.json"), key=lambda path: (_rank(path.stem), path.stem))
    notes = json.loads((RESULTS / "notes.json").read_text()) if (RESULTS / "notes.json").exists() else {}
    parts = [HEAD]
    for path in files:
        if path.stem == "notes":
            continue
        record = json.loads(path.read_text())
        on = "  ".join(f"{key} {value}" for key, value in record["environment"].items())
        parts.append(
            f"## {path.stem}: {record['title']}\n\n`{record['command']}`\n\n```text\n"
            f"{settings_line(record['settings'])}\n{aligned(record['rows'])}\n{on}\n```\n"
        )
        parts += [f"{notes[path.stem]}\n"] if path.stem in notes else []
    target = RESULTS.parent / "RESULTS.md"
    target.write_text("\n".join(parts))
    print(f"{target}: {len(files)} tables")


def _rank(stem: str) -> int:
    return next((i for i, name in enumerate(ORDER) if stem.startswith(name)), len(ORDER))


if __name__ == "__main__":
    main()
