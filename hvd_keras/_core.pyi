"""Types of the extension module in tf_ops/python/module.cc."""

from collections.abc import Sequence
from typing import Any

import numpy as np

def create_segment(size: int) -> tuple[int, bytes]: ...
def init(
    *,
    rank: int,
    size: int,
    pids: Sequence[int],
    segment: tuple[int, int, bytes] | None,
    fusion_threshold_bytes: int,
    cache_capacity: int,
    cycle_time_ms: float,
    stall_warning_seconds: float,
    stall_timeout_seconds: float,
) -> None: ...
def shutdown(reason: str) -> None: ...
def note_exit_reason(text: str) -> None: ...
def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def stats() -> dict[str, int]: ...
def transports() -> list[str]: ...
def allreduce(
    name: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[np.ndarray[Any, Any]]: ...
def allgather(
    name: str, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]: ...
def broadcast(
    name: str, arrays: Sequence[np.ndarray[Any, Any]], root_rank: int
) -> list[np.ndarray[Any, Any]]: ...
