"""One rank of `hosts.py`: times allreduces over hosts.

    hvdrun ... python benchmarks/_hosts_rank.py CALLS COMPRESSION BYTES...

Rank 0 prints a JSON line for each number of bytes: the milliseconds of CALLS
calls on the slowest rank, in place, of float32, and how many bytes its host
sent for one call. The bytes of `resnet50` are those of its 161 gradients.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
import time
from typing import Any

import _common
import numpy as np

import hvd_keras as hvd
from hvd_keras.compression import wire_format_of

SUM = 1  # hvd.Sum, which would import TensorFlow
NUM_WARM = 2
RESNET50 = pathlib.Path(__file__).with_name("resnet50_shapes.json")


def arrays_of(num_bytes: int) -> list[np.ndarray]:
    """Returns arrays of so many bytes in all: ResNet-50's, or one."""
    shapes = json.loads(RESNET50.read_text())["conv_without_bias"]
    if num_bytes != 4 * sum(map(math.prod, shapes)):
        shapes = [[num_bytes // 4]]
    return [np.ones(shape, np.float32) for shape in shapes]


def bytes_sent() -> int:
    """Returns what the network interfaces of this host have sent."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
    names = (line.partition(":") for line in lines)
    return sum(
        int(numbers.split()[8])
        for name, _, numbers in names
        if name.strip() != "lo"
    )


def compression_of(name: str) -> Any:
    """Returns the compression of a name: "int8", or "powersgd4" of rank 4."""
    for prefix, alternate in (("powersgd", False), ("acpsgd", True)):
        if name.startswith(prefix):
            rank = int(name.removeprefix(prefix))
            return hvd.Compression.PowerSGD(rank, alternate=alternate)
    return getattr(hvd.Compression, name)


def main(num_calls: int, compression: str, sizes: list[int]) -> None:
    from hvd_keras import _core

    wire_format = wire_format_of(compression_of(compression))
    start = time.perf_counter()
    hvd.init()
    init_ms = 1e3 * (time.perf_counter() - start)
    for size in sizes:
        arrays = arrays_of(size)
        times = []
        for i in range(NUM_WARM + num_calls):
            _common.wait_for_all()
            if i == NUM_WARM:
                sent = bytes_sent()
            start = time.perf_counter()
            _core.allreduce(
                f"b{size}",
                arrays,
                SUM,
                in_place=True,
                wire_format=wire_format,
            )
            times.append(1e3 * (time.perf_counter() - start))
            for array in arrays:
                array.fill(1)
        sent = bytes_sent() - sent
        slowest = _common.gather_over_ranks(times).max(axis=0)[NUM_WARM:]
        if hvd.rank() == 0:
            line = {
                "bytes": size,
                "ms": slowest.tolist(),
                "sent": sent / num_calls,
                "init_ms": init_ms,
            }
            print(json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], [int(size) for size in sys.argv[3:]])
