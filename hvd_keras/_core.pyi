"""Types of the extension module in tf_ops/python/."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, Any]

def create_segment(size: int) -> tuple[int, bytes]: ...
def init(
    *,
    rank: int,
    size: int,
    epoch: int,
    pids: Sequence[int],
    segment: tuple[int, int, bytes] | None,
    fusion_threshold_bytes: int,
    cache_capacity: int,
    cycle_time_ms: float,
    stall_warning_seconds: float,
    stall_timeout_seconds: float,
    gpu_fusion_buffer_bytes: int,
    gpu_direct_bytes: int,
    gpu_done_in_stream_order: bool,
) -> None: ...
def set_local_topology(rank: int, size: int) -> None: ...
def shutdown(reason: str) -> None: ...
def note_exit_reason(text: str) -> None: ...
def note_failure(text: str) -> None: ...
def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def stats() -> dict[str, int]: ...
def transports() -> list[str]: ...
def add_process_set(
    process_set_id: int,
    ranks: Sequence[int],
    segment: tuple[int, int, bytes] | None = None,
) -> None: ...
def remove_process_set(process_set_id: int) -> None: ...
def process_set_ids() -> list[int]: ...
def process_set_ranks(process_set_id: int) -> list[int]: ...
def allreduce(
    name: str,
    arrays: Sequence[_Array],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    *,
    in_place: bool = False,
) -> list[_Array]: ...
def reducescatter(
    name: str,
    arrays: Sequence[_Array],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
) -> list[_Array]: ...
def allgather(
    name: str, arrays: Sequence[_Array], process_set_id: int = 0
) -> list[_Array]: ...
def broadcast(
    name: str,
    arrays: Sequence[_Array],
    root_rank: int,
    process_set_id: int = 0,
) -> list[_Array]: ...
def alltoall(
    name: str,
    array: _Array,
    splits: Sequence[int] | None = None,
    process_set_id: int = 0,
) -> tuple[_Array, list[int]]: ...
def barrier(name: str, process_set_id: int = 0) -> None: ...
def join(process_set_id: int = 0, average_over_active: bool = False) -> int: ...

class GpuCall:
    @property
    def is_done(self) -> bool: ...
    @property
    def received(self) -> list[int]: ...
    def wait(self) -> None: ...

def gpu_submit(
    kind: str,
    name: str,
    tensors: Sequence[tuple[int, int, str, Sequence[int]]],
    ordinal: int,
    stream: int,
    **options: Any,
) -> GpuCall: ...
def gpu_split(process_set_id: int, name: str, ordinal: int) -> None: ...
def gpu_set_libraries(
    *,
    cuda_runtime: str,
    nccl: str,
    cuda_runtime_wheels: Sequence[str],
    nccl_wheels: Sequence[str],
) -> None: ...
def gpu_count() -> int: ...
def gpu_cuda_version() -> str: ...
def gpu_nccl_version() -> str: ...
