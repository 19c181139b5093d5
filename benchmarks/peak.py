"""Compares the core's allreduces with the speed of the memory.

    make bench-core
    python benchmarks/peak.py --np=2

It runs `core_benchmark`, in which collectives and the plain loops that bound
them take turns. For each case it prints the median in ms, the rate at which all
ranks together move its bytes, and the ratio to the bound's median. An increment
or an allreduce in place moves each byte twice. A copy or an allreduce into
other tensors moves it three times: the processor reads a line before it writes
it. Cases that fit into the caches have no bound.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence

import _results
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks.", 1)
flags.DEFINE_integer("rounds", 20, "Rounds through all cases.", 1)

SHAPES_FILE = pathlib.Path(__file__).with_name("resnet50_shapes.json")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    program = _results.BINARIES / "core_benchmark"
    if not program.exists():
        raise app.UsageError(f"Run `make bench-core` to build {program}.")
    state = _results.machine_state()
    run = subprocess.run(
        [program, str(FLAGS.np), str(FLAGS.rounds), str(SHAPES_FILE)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    print(f"Machine: {state} before, {_results.machine_state()} after")
    print("| case | ms | GB/s | / bound |")
    print("|---|---|---|---|")
    for line in lines:
        line["machine"] = state
        median = line["median_ms"]
        rate = ratio = ""
        if "to_bound" in line:
            ratio = f"{line['to_bound']:.2f}"
        if ratio or line["case"].startswith(("increment", "copy")):
            reads_first = not line["case"].startswith("increment")
            times = 3 if reads_first and "in place" not in line["case"] else 2
            moved = times * line["bytes"] * FLAGS.np
            rate = f"{moved / median / 1e6:.3g}"
        print(f"| {line['case']} | {median:.3g} | {rate} | {ratio} |")
    _results.write("core", FLAGS.np, lines)


if __name__ == "__main__":
    app.run(main)
