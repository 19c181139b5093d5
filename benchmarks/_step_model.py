"""A model of a training step that reduces its gradients over several hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from _networks import Gradient

from hvd_keras._values.buckets import bucket_indices

# Of a step without a network; the backward pass does twice the forward's work.
FORWARD = 1 / 3


class Bucket(NamedTuple):
    """Gradients that are reduced together."""

    num_bytes: int
    ready: float  # share of the step's computing at which the last one is there


class Costs(NamedTuple):
    """Seconds that reductions take, one after the other, by their bytes."""

    num_bytes: Sequence[float]
    seconds: Sequence[float]

    def of(self, num_bytes: float) -> float:
        """Returns the seconds of one; between those measured on a line."""
        last = self.num_bytes[-1]
        if num_bytes <= last:
            return float(np.interp(num_bytes, self.num_bytes, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (
            last - self.num_bytes[-2]
        )
        return self.seconds[-1] + slope * (num_bytes - last)


def buckets_of(
    gradients: Sequence[Gradient], bucket_bytes: int
) -> list[Bucket]:
    """Returns the buckets in the order in which they are ready.

    The backward pass gives the gradients in reverse order of creation. Each
    takes its share of the operations.
    """
    operations = [gradient.operations for gradient in gradients]
    before = np.cumsum([0.0, *operations[:-1]])  # what is still to compute
    total = sum(operations)
    sizes = [gradient.num_bytes for gradient in gradients]
    return [
        Bucket(
            sum(sizes[i] for i in indices),
            FORWARD
            + (1 - FORWARD) * (1 - min(before[i] for i in indices) / total),
        )
        for indices in bucket_indices(sizes, bucket_bytes)
    ]


def step_seconds(
    buckets: Sequence[Bucket],
    compute: float,
    costs: Costs,
    *,
    latency: float = 0.0,
    fuse_within: float = 0.0,
) -> float:
    """Returns the seconds of a step.

    Reductions run one after the other, in the order in which buckets are ready.

    Args:
        buckets: Of one step.
        compute: Seconds of the step without a network.
        costs: Of the reductions.
        latency: Seconds from the last reduction to the end of the step.
        fuse_within: Buckets that are ready within so many seconds are reduced
            as one.
    """
    end = 0.0
    index = 0
    while index < len(buckets):
        first = buckets[index].ready * compute
        num_bytes = 0
        ready = first
        while index < len(buckets):
            at = buckets[index].ready * compute
            if num_bytes and at > max(first, end) + fuse_within:
                break
            num_bytes += buckets[index].num_bytes
            ready = at
            index += 1
            if not fuse_within:
                break
        end = max(end, ready) + costs.of(num_bytes)
    return max(compute, end + latency)


def bytes_of_a_host(num_bytes: float, num_hosts: int) -> float:
    """Returns the bytes that a host sends for a reduction of `num_bytes`."""
    return 2 * num_bytes * (num_hosts - 1) / num_hosts


def rounds_of_tree(num_hosts: int) -> int:
    """Returns the steps of a message that reaches all hosts by doubling."""
    return math.ceil(math.log2(num_hosts)) if num_hosts > 1 else 0
