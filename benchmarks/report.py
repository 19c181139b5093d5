r"""Makes Markdown tables and plots of the figures of the benchmarks.

    python benchmarks/report.py build/bench.jsonl --plot=build/bench.png

Each benchmark, number of ranks and state of the machine gets a table. It has a
row a case and a column a way, with the medians in ms and their ratio to the
first way. The plot has a panel for each table and needs matplotlib.

    python benchmarks/report.py benchmarks/RESULTS.jsonl \
        --chart=docs/images/packages.svg

draws the runs of `compare.py` that RESULTS.jsonl has (`make chart`).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import _chart
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("plot", None, "PNG file for the plot.")
flags.DEFINE_string("chart", None, "SVG file for packages side by side.")

# Case and way -> ms. If a line was written twice, the last one counts.
Table = dict[tuple[str, str], float]


def read_tables(paths: Sequence[str]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for path in paths:
        for text in pathlib.Path(path).read_text().splitlines():
            line: dict[str, Any] = json.loads(text)
            title = f"{line['benchmark']}, {line['ranks']} ranks"
            if "machine" in line:
                title += f", machine: {line['machine']}"
            table = tables.setdefault(title, {})
            table[line["case"], line["way"]] = line["median_ms"]
    return tables


def cases_and_ways(table: Table) -> tuple[list[str], list[str]]:
    cases = dict.fromkeys(case for case, _ in table)
    ways = dict.fromkeys(way for _, way in table)
    return list(cases), list(ways)


def print_table(title: str, table: Table) -> None:
    cases, ways = cases_and_ways(table)
    print(f"\n### {title}\n")
    print("| ms |" + "".join(f" {way} |" for way in ways))
    print("|---|" + "---|" * len(ways))
    for case in cases:
        row = f"| {case} |"
        first = table.get((case, ways[0]))
        for way in ways:
            if (case, way) not in table:
                row += " |"
                continue
            value = table[case, way]
            row += f" {value:.3g}"
            if first is not None and way != ways[0]:
                row += f" ({value / first:.2f} x)"
            row += " |"
        print(row)


def plot(tables: dict[str, Table], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        len(tables), figsize=(10, 4 * len(tables)), squeeze=False
    )
    for panel, (title, table) in zip(panels[:, 0], tables.items(), strict=True):
        cases, ways = cases_and_ways(table)
        width = 0.8 / len(ways)
        for i, way in enumerate(ways):
            found = [n for n, case in enumerate(cases) if (case, way) in table]
            panel.bar(
                [n + (i - (len(ways) - 1) / 2) * width for n in found],
                [table[cases[n], way] for n in found],
                width,
                label=way,
            )
        panel.set_xticks(range(len(cases)), cases, rotation=20, ha="right")
        panel.set_yscale("log")
        panel.set_ylabel("median, ms")
        panel.set_title(title)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def chart(paths: Sequence[str]) -> str:
    """Returns the SVG of the packages that took turns in a run."""
    lines = [
        json.loads(text)
        for path in paths
        for text in pathlib.Path(path).read_text().splitlines()
    ]
    return _chart.draw(
        _chart.rows_of(lines),
        "Allreduce on 2 ranks of one machine: a dot a run, left is faster",
        "Medians of calls in turns, logarithmic axis. CPU, float32; see "
        "benchmarks/RESULTS.md.",
    )


def main(argv: Sequence[str]) -> None:
    if len(argv) < 2:
        raise app.UsageError("Pass the files that `--json` has written.")
    if FLAGS.chart:
        pathlib.Path(FLAGS.chart).write_text(chart(argv[1:]))
        return
    tables = read_tables(argv[1:])
    for title, table in tables.items():
        print_table(title, table)
    if FLAGS.plot:
        plot(tables, FLAGS.plot)


if __name__ == "__main__":
    app.run(main)
