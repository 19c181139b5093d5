"""One rank of `scaling.py`: times reductions, and steps that reduce.

    hvdrun ... python benchmarks/_scaling_rank.py PLAN

PLAN is a JSON file: `sizes`, how many `calls` of each, and `steps`, a list of
objects with `name`, `compute`, `buckets` (bytes, share) and `number`. Computing
is waiting, as that of a GPU is for the processor. Rank 0 prints a JSON line
with the seconds of each, of the slowest rank.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

import _common
import numpy as np

import hvd_keras as hvd

SUM = 1  # hvd.Sum, which would import TensorFlow
AT_ONCE, MOST_BYTES = 8, 1 << 28


def begin(name: str, array: np.ndarray) -> Any:
    from hvd_keras import _core

    return _core.submit("allreduce", name, [array], op=SUM, in_place=True)


def time_reductions(size: int, calls: int) -> list[float]:
    """Returns the seconds of one of several that begin together."""
    at_once = min(AT_ONCE, MOST_BYTES // size)
    arrays = [np.zeros(size // 4, np.float32) for _ in range(at_once)]
    times = []
    for _ in range(2 + calls):
        _common.wait_for_all()
        start = time.perf_counter()
        pending = [begin(f"s{size}/{i}", a) for i, a in enumerate(arrays)]
        for call in pending:
            call.wait()
        times.append((time.perf_counter() - start) / at_once)
    return times[2:]


def time_steps(
    name: str, compute: float, buckets: list[tuple[int, float]], number: int
) -> list[float]:
    """Returns the seconds of so many steps."""
    arrays = [np.zeros(size // 4, np.float32) for size, _ in buckets]
    times = []
    for _ in range(1 + number):
        _common.wait_for_all()
        start = time.perf_counter()
        pending = []
        for i, (array, (_, ready)) in enumerate(
            zip(arrays, buckets, strict=True)
        ):
            left = start + ready * compute - time.perf_counter()
            if left > 0:
                time.sleep(left)
            pending.append(begin(f"{name}/{i}", array))
        for call in pending:
            call.wait()
        left = start + compute - time.perf_counter()
        if left > 0:
            time.sleep(left)
        times.append(time.perf_counter() - start)
    return times[1:]


def main(path: str) -> None:
    plan = json.loads(pathlib.Path(path).read_text())
    hvd.init()
    costs = [time_reductions(size, plan["calls"]) for size in plan["sizes"]]
    steps = [time_steps(**step) for step in plan["steps"]]
    lists = costs + steps
    slowest = [_common.gather_over_ranks(of).max(axis=0) for of in lists]
    if hvd.rank() == 0:
        seconds = [of.tolist() for of in slowest]
        line = {
            "costs": seconds[: len(costs)],
            "steps": seconds[len(costs) :],
        }
        print(json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
