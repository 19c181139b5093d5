"""Notes in docs/versions.md which cases are equal with this Keras, on 2 ranks.

Usage: python -m equality.versions [--column TITLE] [--backends B ...] [--write]

It trains each case on 2 ranks and in one process, with each backend. The table
there has a column for each version of Keras; `tools/try_keras_source.sh` adds
the one of Keras's main branch. Without --write it prints the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import subprocess
import sys

import drawn_pages

from equality import table

PAGE = drawn_pages.TESTS.parent / "docs" / "versions.md"
BEGIN = "<!-- `tools/try_keras_source.sh` draws what follows. -->"
END = "<!-- End of what it draws. -->"
NUM_RANKS = 2
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "jax": ("jax",),
    "torch": ("torch",),
}

Table = dict[str, dict[str, str]]  # cells by row and column


def result(backend: str) -> str:
    """Says how many of the cases of a backend are equal, and which are not."""
    table.SECONDS = 3600  # beside other work
    try:
        entries = table.measure(backend, NUM_RANKS)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return "no end"
    return summary(entries)


def summary(entries: list[table.Entry]) -> str:
    """Says how many entries of the table are equal, and which are not."""
    from equality import cases

    entries = [
        entry
        for entry in entries
        if not getattr(cases.ALL[entry["case"]], "why_not_equal", "")
    ]
    others = []
    for entry in entries:
        if (found := table.cell(entry)) != "=":
            print(entry, file=sys.stderr)
            others.append(f"{cases.TITLES[entry['case']]}: {found}")
    num_equal = len(entries) - len(others)
    return "; ".join([f"{num_equal} of {len(entries)}", *others])


def version_of(backend: str) -> str:
    """Returns the name of a backend with its version."""
    for distribution in _DISTRIBUTIONS[backend]:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        public = version.partition("+")[0]  # without "+cpu"
        return f"{table.NAMES[backend]} {public}"
    return table.NAMES[backend]


def read(text: str) -> Table:
    """Returns the table that a text has."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    if not rows:
        return {}
    head, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def draw(cells: Table) -> str:
    """Returns the lines of a table."""
    columns = list(dict.fromkeys(c for row in cells.values() for c in row))
    lines = [
        [title, *(row.get(column, "") for column in columns)]
        for title, row in sorted(cells.items())
    ]
    drawn = [f"| {' | '.join(line)} |" for line in [["With", *columns], *lines]]
    return "\n".join([drawn[0], "|---" * (1 + len(columns)) + "|", *drawn[1:]])


def with_column(text: str, title: str, results: dict[str, str]) -> str:
    """Returns a page with results in a column of its table.

    A column of the same kind, "Keras's main branch" or a release's, is
    replaced.

    Args:
        text: The page.
        title: The head of the column: a kind, then perhaps details in brackets.
        results: The cells, by row.
    """
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    kind = title.partition(" (")[0]
    cells = {
        row: {
            column: cell
            for column, cell in found.items()
            if column == title or column.partition(" (")[0] != kind
        }
        for row, found in read(old).items()
    }
    for row, found in results.items():
        cells.setdefault(row, {})[title] = found
    return f"{before}{BEGIN}\n\n{draw(cells)}\n\n{END}{after}"


def main() -> None:
    import keras

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--column", default=f"Keras {keras.__version__}")
    parser.add_argument(
        "--backends",
        nargs="*",
        default=[b for b in table.NAMES if importlib.util.find_spec(b)],
    )
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for backend in arguments.backends:
        results[version_of(backend)] = result(backend)
        print(version_of(backend), results[version_of(backend)], flush=True)
    page = with_column(PAGE.read_text(), arguments.column, results)
    if arguments.write:
        PAGE.write_text(page)
    else:
        print(page.split(BEGIN)[1].split(END)[0])


if __name__ == "__main__":
    main()
