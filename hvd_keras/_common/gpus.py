"""Which GPUs the ranks of a host see, and how they share them out.

It looks at the environment and at NVML alone: nothing here starts CUDA.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(environ: Mapping[str, str], nvml: str | None = None) -> list[str]:
    """Returns an entry of `CUDA_VISIBLE_DEVICES` for each GPU.

    Without that variable CUDA sees all GPUs of the host, by number.

    Args:
        environ: Environment variables, usually `os.environ`.
        nvml: HVD_NVML_LIBRARY, if it is set.
    """
    text = environ.get(VARIABLE)
    if text is None:
        count = _count(nvml or "libnvidia-ml.so.1")
        return [str(number) for number in range(count)]
    entries = []
    for entry in map(str.strip, text.split(",")):
        if not (entry.isdigit() or entry.startswith(("GPU-", "MIG-"))):
            break  # CUDA ignores what comes after it, too
        entries.append(entry)
    return entries


def share_of(
    entries: Sequence[str],
    index: int,
    num_ranks: int,
    per_rank: int,
    *,
    may_share: bool,
) -> list[str]:
    """Returns the GPUs of one rank; all of them if they are too few.

    Args:
        entries: The GPUs, see `visible`.
        index: The rank, among those of its host.
        num_ranks: The ranks of the host.
        per_rank: How many GPUs each rank gets; 0: all.
        may_share: Whether ranks may use one GPU if there are too few.
    """
    if per_rank == 0:
        return list(entries)
    if len(entries) >= num_ranks * per_rank:
        return list(entries[index * per_rank : (index + 1) * per_rank])
    if not may_share or len(entries) < per_rank:
        return list(entries)
    first = index * per_rank % (len(entries) - per_rank + 1)
    return list(entries[first : first + per_rank])


@functools.cache
def _count(library: str) -> int:
    """The GPUs of this host, as its driver sees them; 0 without a driver."""
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return 0
        number = ctypes.c_uint()
        result = nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return 0
    return int(number.value) if result == 0 else 0
