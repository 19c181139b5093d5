"""Cuts a list of gradients into buckets, each reduced as one."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_keras._job import state

# Large buckets cost least, but nothing travels before the first one is full.
_BYTES_ON_ONE_HOST = 8 << 20
BYTES_ON_SEVERAL_HOSTS = 2 << 20


def bucket_bytes() -> int:
    """The limit of a bucket in this job."""
    chosen = state.config().bucket_bytes
    if chosen is not None:
        return chosen
    job = state.job()
    if job is not None and job.topology.size > job.topology.local_size:
        return BYTES_ON_SEVERAL_HOSTS
    return _BYTES_ON_ONE_HOST


def bucket_indices(
    num_bytes: Sequence[int], bucket_bytes: int
) -> list[list[int]]:
    """Cuts gradients into buckets, each reduced as one.

    Buckets go in reverse order of creation, because backpropagation computes
    the gradients of the last layers first. So a bucket is complete, and on its
    way, while the gradients of earlier layers are still being computed.

    Args:
        num_bytes: Size of each gradient, in order of creation.
        bucket_bytes: Limit of a bucket. A gradient that is larger gets a bucket
            of its own.

    Returns:
        The indices of each bucket; every index is in exactly one.
    """
    buckets: list[list[int]] = []
    room = 0
    for index in reversed(range(len(num_bytes))):
        if not buckets or num_bytes[index] > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(index)
        room -= num_bytes[index]
    return buckets
