"""The figures of a benchmark as JSON lines, which `report.py` reads.

A line is one way to do one case: `benchmark`, `case`, `way`, `ranks`,
`median_ms`, `min_ms`, `calls`, and `machine`, the state of the machine if the
benchmark has measured it.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("json", None, "File to append the figures to.")

BINARIES = pathlib.Path(__file__).parents[1] / "build/bench-core"
# One way: two cores of one L3 cache take 50 to 120 ns, others 260 to 390.
MOST_NS_OF_SHARED_CACHE = 200


def figure(case: str, way: str, seconds: Iterable[float]) -> dict[str, Any]:
    """Returns the line for the times of several calls."""
    times = np.array(list(seconds)) * 1e3
    return {
        "case": case,
        "way": way,
        "median_ms": float(np.median(times)),
        "min_ms": float(times.min()),
        "calls": len(times),
    }


def write(
    benchmark: str, ranks: int, figures: Iterable[dict[str, Any]]
) -> None:
    """Appends lines to the file that --json names, if any."""
    if FLAGS.json is None:
        return
    path = pathlib.Path(FLAGS.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for line in figures:
            line = {"benchmark": benchmark, "ranks": ranks, **line}
            print(json.dumps(line), file=file)


def machine_state() -> str:
    """Returns whether two cores share an L3 cache now, or "unknown".

    The cores of a virtual machine move. A collective within a host takes two or
    three times as long if they share no L3 cache.
    """
    program = BINARIES / "ping_pong"
    if not program.exists():
        return "unknown"  # `make bench-core` builds it
    run = subprocess.run([program], capture_output=True, text=True, check=True)
    shares = float(run.stdout) <= MOST_NS_OF_SHARED_CACHE
    return "shared L3" if shares else "split L3"
