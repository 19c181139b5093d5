"""The environment variables that hvdrun gives a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvd_keras.run import cgroups

# Who reads them: TensorFlow the first two, for its pools within and between
# ops; OpenMP, oneDNN's other builds and torch the third; JAX on the CPU the
# fourth. Threads that find no work spin on a core that another rank needs.
# Each number is the least that works: with one thread, a JAX callback that
# reads its argument waits for ever for its own thread.
_THREAD_VARIABLES = {
    "TF_NUM_INTRAOP_THREADS": 1,
    "TF_NUM_INTEROP_THREADS": 1,
    "OMP_NUM_THREADS": 1,
    "PJRT_NPROC": 2,
}


def num_cores() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, cgroups.cpu_limit())))


def defaults(environ: Mapping[str, str], num_ranks: int) -> dict[str, str]:
    """Settings for each rank's libraries that the user has not made."""
    num_threads = max(1, num_cores() // num_ranks)
    numbers = {
        name: max(num_threads, least)
        for name, least in _THREAD_VARIABLES.items()
    }
    # Makes TensorFlow keep the memory of its tensors on the CPU. Otherwise
    # glibc gives pieces above 32 MB back, and the kernel clears new pages for
    # each. TensorFlow would stop at 64 GB; the machine's memory is no limit.
    numbers["TF_CPU_ALLOCATOR_USE_BFC"] = 1
    numbers["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    )
    return {
        name: str(number)
        for name, number in numbers.items()
        if not environ.get(name)
    }


def of_rank(
    environ: Mapping[str, str],
    rank: int,
    size: int,
    rendezvous: str,
    secret: bytes,
) -> dict[str, str]:
    """The whole environment of one rank."""
    return {
        **environ,
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),
        "HVD_RANK": str(rank),
        "HVD_SIZE": str(size),
        "HVD_LOCAL_RANK": str(rank),
        "HVD_LOCAL_SIZE": str(size),
        "HVD_CROSS_RANK": "0",
        "HVD_CROSS_SIZE": "1",
        "HVD_RENDEZVOUS": rendezvous,
        "HVD_SECRET": secret.hex(),
    }
