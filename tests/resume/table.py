"""Draws the resume matrix, docs/resume-matrix.md.

Usage: python -m resume.table [--ranks N ...] [--write]

It trains on each loader with N ranks, kills the job in the middle of an epoch,
and lets M ranks go on. Without --write it prints the page.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import drawn_pages
import numpy as np

from resume import loaders

PAGE = drawn_pages.TESTS.parent / "docs" / "resume-matrix.md"
BEGIN = "<!-- `make resume-matrix` draws what follows. -->"
RANKS = (1, 2, 4)
STEPS = 9  # of 6 an epoch: the job ends in the middle of the second one
SECONDS = 600


def run(directory: pathlib.Path, num_ranks: int, num_steps: int) -> None:
    """Trains on all loaders in a job; with `num_steps`, it is killed."""
    command = [sys.executable, "-m", "hvd_keras.run", "-np", str(num_ranks)]
    command += ["--", sys.executable, "-m", "resume.rank"]
    command += [str(directory), str(num_steps)]
    job = subprocess.run(
        command,
        env=drawn_pages.environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        start_new_session=True,
        check=False,
    )
    if (job.returncode == 0) != (num_steps == 0):
        raise RuntimeError(f"{num_ranks} ranks: {job.stderr[-3000:]}")


def measure(
    ranks: list[tuple[int, int]],
) -> dict[tuple[str, int, int], list[str]]:
    """Returns what went wrong, by loader, N and M."""
    problems = {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        run(directory / "whole", 1, 0)
        for before in sorted({n for n, _ in ranks}):
            killed = directory / f"{before}"
            run(killed, before, STEPS)
            for after in [m for n, m in ranks if n == before]:
                resumed = directory / f"{before}-{after}"
                shutil.copytree(killed, resumed)
                _drop_lost_steps(resumed)
                run(resumed, after, 0)
                for number, loader in enumerate(loaders.found()):
                    whole = directory / "whole" / str(number)
                    found = _problems(
                        resumed / str(number),
                        None if loader in loaders.OTHER_STEPS else whole,
                        after,
                    )
                    problems[loader, before, after] = found
                print(f"{before} -> {after}", file=sys.stderr)
    return problems


def _drop_lost_steps(directory: pathlib.Path) -> None:
    """Forgets the steps after the last backup."""
    for number in range(len(loaders.found())):
        folder = directory / str(number)
        with np.load(folder / "backup" / "training_state.npz") as file:
            header = json.loads(file["header"].tobytes())
        for path in folder.glob("rows.*"):
            lines = map(json.loads, path.read_text().splitlines())
            kept = [line for line in lines if line[:2] < header["position"]]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            path.write_text(text)


def _problems(
    folder: pathlib.Path, whole: pathlib.Path | None, num_ranks: int
) -> list[str]:
    """Compares a resumed run with what it should be."""
    found = []
    seen = collections.defaultdict(list)
    for path in folder.glob("rows.*"):
        for line in path.read_text().splitlines():
            epoch, _, rows = json.loads(line)
            seen[epoch] += rows
    for epoch in range(loaders.EPOCHS):
        rows = seen[epoch]
        if sorted(rows) != list(range(loaders.NUM_ROWS)):
            found.append(f"epoch {epoch} has rows {sorted(rows)}")
    ends = [
        json.loads((folder / f"end.{rank}").read_text())
        for rank in range(num_ranks)
    ]
    if any(end["weights"] != ends[0]["weights"] for end in ends):
        found.append("the ranks have different weights")
    if whole is not None:
        expected = json.loads((whole / "end.0").read_text())
        found += _differences(ends[0], expected)
    return found


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    differences = []
    for ours, wanted in zip(found["weights"], expected["weights"], strict=True):
        if not np.allclose(ours, wanted, rtol=1e-4, atol=1e-5):
            differences.append(f"weights {ours}, not {wanted}")
    for name, values in found["history"].items():
        wanted = expected["history"][name][-len(values) :]
        if not np.allclose(values, wanted, rtol=1e-4):
            differences.append(f"{name} {values}, not {wanted}")
    return differences


def page_of(problems: dict[tuple[str, int, int], list[str]]) -> str:
    """Returns the table."""
    columns = sorted({key[1:] for key in problems})
    lines = ["| | " + " | ".join(f"{n} → {m}" for n, m in columns) + " |"]
    lines += ["|---|" + "---|" * len(columns)]
    for loader in loaders.found():
        cells = [
            "yes" if not problems[(loader, *pair)] else "no" for pair in columns
        ]
        lines += [f"| {loader} | {' | '.join(cells)} |"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    ranks = arguments.ranks
    problems = measure([(n, m) for n in ranks for m in ranks])
    for key, found in problems.items():
        if found:
            print(key, *found, sep="\n  ", file=sys.stderr)
    drawn_pages.show(page_of(problems), PAGE, BEGIN, write=arguments.write)


if __name__ == "__main__":
    main()
