"""Draws the equality table, docs/equality.md.

Usage: python -m equality.table [--ranks N ...] [--backends B ...] [--write]

It trains each case on N ranks and in one process, by this package and by what
the backend offers itself. Without --write it prints the page.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import drawn_pages

PAGE = drawn_pages.TESTS.parent / "docs" / "equality.md"
BEGIN = "<!-- `make equality-table` draws what follows. -->"
RANKS = (1, 2, 3, 4)
OTHERS = {
    "jax": ("by_keras", "Keras `DataParallel`"),
    "torch": ("by_ddp", "torch DDP"),
}
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
TOLERANCE = 1e-5
SECONDS = 900

Entry = dict[str, Any]


def measure(
    backend: str, num_ranks: int, side: str = "ours", *names: str
) -> list[Entry]:
    """Runs the cases of a backend in a job; returns an entry for each."""
    if not names:
        names = tuple(_names(backend, side))
    environment = drawn_pages.environment(
        KERAS_BACKEND=backend, HVD_STALL_SHUTDOWN_TIME_SECONDS="240"
    )
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "entries"
        command = [sys.executable, "-m"]
        if side == "by_keras":
            environment["XLA_FLAGS"] = (
                f"--xla_force_host_platform_device_count={num_ranks}"
            )
        else:
            command += ["hvd_keras.run", "-np", str(num_ranks), "--"]
            command += [sys.executable, "-m"]
            environment["DDP_MEETS_AT"] = f"file://{directory}/meeting"
        command += ["equality.rank", side, str(path), *names]
        job = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if not path.exists():
            raise RuntimeError(f"{backend}, {side}: {job.stderr[-3000:]}")
        entries = [json.loads(line) for line in path.read_text().splitlines()]
    missing = set(names) - {entry["case"] for entry in entries}
    if missing:
        raise RuntimeError(
            f"{backend}, {num_ranks} ranks, {side}: no result for "
            f"{sorted(missing)}: {job.stderr[-3000:]}"
        )
    return entries


def _names(backend: str, side: str) -> list[str]:
    from equality import cases

    return [
        name
        for name in cases.of_backend(backend)
        if cases.trainer(cases.ALL[name], side)
    ]


def cell(entry: Entry | None) -> str:
    """Returns what the table says of a case: `=`, the difference, or why."""
    if entry is None:
        return ""
    if "error" in entry:
        return "error"
    if entry["difference"] <= TOLERANCE:
        return "="
    one_digit = float(f"{entry['difference']:.1g}")
    return f"{one_digit:g}"


def page_of(entries: list[Entry]) -> str:
    """Returns the tables, one for each backend."""
    from equality import cases

    found = {
        (e["backend"], e["case"], e["ranks"], e["side"]): e for e in entries
    }
    lines = []
    for backend, title in NAMES.items():
        columns = [(n, "ours", str(n)) for n in RANKS]
        side, peer = OTHERS.get(backend, ("", ""))
        columns += [(n, side, f"{peer}, {n}") for n in (2, 4) if peer]
        lines += [f"## {title}", ""]
        lines += ["| | " + " | ".join(c[-1] for c in columns) + " |"]
        lines += ["|---|" + "---|" * len(columns)]
        for group, members in cases.GROUPS.items():
            lines += [f"| **{group}** |" + " |" * len(columns)]
            for name in members:
                row = [
                    cell(found.get((backend, name, n, s)))
                    for n, s, _ in columns
                ]
                if any(row):
                    cells = " | ".join(row)
                    lines += [f"| {cases.TITLES[name]} | {cells} |"]
        lines += [""]
    for name, case in cases.ALL.items():
        reason = getattr(case, "why_not_equal", "")
        if reason:
            title = cases.TITLES[name]
            lines += [f"{title} ends elsewhere: {reason}. The ranks are equal."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--backends", nargs="*", default=list(NAMES))
    parser.add_argument("--entries", help="a file for all results, as JSON")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    entries: list[Entry] = []
    for backend in arguments.backends:
        for num_ranks in arguments.ranks:
            entries += measure(backend, num_ranks)
            if backend in OTHERS and num_ranks in (2, 4):
                entries += measure(backend, num_ranks, OTHERS[backend][0])
            print(f"{backend}, {num_ranks} ranks", file=sys.stderr)
    if arguments.entries:
        lines = [json.dumps(entry) for entry in entries]
        pathlib.Path(arguments.entries).write_text("\n".join(lines) + "\n")
    drawn_pages.show(page_of(entries), PAGE, BEGIN, write=arguments.write)


if __name__ == "__main__":
    main()
