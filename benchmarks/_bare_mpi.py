"""One rank of an MPI job without hvd_keras: times MPI's own allreduce.

    mpiexec -n 2 python benchmarks/_bare_mpi.py CALLS BYTES...

Rank 0 prints a JSON line for each number of bytes: the milliseconds of CALLS
calls on the slowest rank, in place, of float32.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import numpy as np

from hvd_keras._job.hosts.wire_process import default_library

# The values of MPI's standard ABI.
WORLD = ctypes.c_void_p(0x101)
FLOAT = ctypes.c_void_p(0x210)
DOUBLE = ctypes.c_void_p(0x214)
SUM = ctypes.c_void_p(0x21)
MAX = ctypes.c_void_p(0x23)
IN_PLACE = ctypes.c_void_p(1)
NUM_WARM = 2


def main(num_calls: int, sizes: list[int]) -> None:
    mpi = ctypes.CDLL(default_library(), mode=ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))

    def allreduce(data: np.ndarray, dtype: ctypes.c_void_p, op: object) -> None:
        pointer = data.ctypes.data_as(ctypes.c_void_p)
        error = mpi.MPI_Allreduce(
            IN_PLACE, pointer, ctypes.c_int(data.size), dtype, op, WORLD
        )
        assert error == 0, error

    for size in sizes:
        data = np.ones(size // 4, np.float32)
        times = np.zeros(NUM_WARM + num_calls)
        for i in range(len(times)):
            mpi.MPI_Barrier(WORLD)
            start = time.perf_counter()
            allreduce(data, FLOAT, SUM)
            times[i] = time.perf_counter() - start
            data.fill(1)
        allreduce(times, DOUBLE, MAX)
        if rank.value == 0:
            milliseconds = (times[NUM_WARM:] * 1e3).tolist()
            print(json.dumps({"bytes": size, "ms": milliseconds}), flush=True)
    mpi.MPI_Finalize()


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
