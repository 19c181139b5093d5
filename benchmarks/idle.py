"""Measures what hvd_keras costs a rank that does not use it.

    python benchmarks/idle.py --np=2

Rank 0 prints, as a JSON line:

- `idle_percent_of_a_core`: the processor time of all threads of a process that
  sleeps for --seconds, after `init` and a hundred allreduces. It is that of the
  rank that took most. Python itself takes none in that time.
- `import_ms`: the time that `import hvd_keras` adds to `import keras`, on the
  slowest rank.
- `init_ms`: the time of `init()` on the last rank to come, which waits for no
  other.
- `extra_mib`: how much the process's resident memory, with the shared region,
  grows by `init` and allreduces of --megabytes; outputs are freed.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

import keras  # noqa: F401

_start = time.perf_counter()
import hvd_keras as hvd  # noqa: E402

IMPORT_SECONDS = time.perf_counter() - _start

import _common  # noqa: E402
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_float("seconds", 10.0, "How long to sleep.", 0.1)
flags.DEFINE_integer("megabytes", 100, "Size of the larger allreduces.", 1)
CORE_SUM = 1  # hvd.Sum, which would import TensorFlow


def resident_bytes() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    large = np.ones(FLAGS.megabytes * 250_000, np.float32)
    before = resident_bytes()
    start = time.perf_counter()
    _common.start(FLAGS.np)
    init_seconds = time.perf_counter() - start

    from hvd_keras import _core

    small = np.ones(1, np.float32)
    for _ in range(100):
        _core.allreduce("small", [small], CORE_SUM)
    for _ in range(5):
        _core.allreduce("large", [large], CORE_SUM)
    extra = resident_bytes() - before
    _common.wait_for_all()
    cpu = time.process_time()
    time.sleep(FLAGS.seconds)
    cpu = time.process_time() - cpu

    by_rank = _common.gather_over_ranks(
        [cpu / FLAGS.seconds, IMPORT_SECONDS, init_seconds, float(extra)]
    )
    found = by_rank.max(axis=0)
    if hvd.rank() == 0:
        figures = {
            "ranks": hvd.size(),
            "idle_percent_of_a_core": round(found[0] * 100, 3),
            "import_ms": round(found[1] * 1e3, 1),
            "init_ms": round(by_rank[:, 2].min() * 1e3, 1),
            "extra_mib": round(found[3] / 2**20, 1),
        }
        print(json.dumps(figures))
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
