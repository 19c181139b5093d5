"""Seeds of random numbers that ranks must not share."""

from __future__ import annotations

# Between the seeds of neighbouring ranks; larger than the differences between
# the seeds of one model's layers are likely to be.
_STRIDE = 1_000_003
_MODULUS = 1 << 31


def seed_of_rank(seed: int, rank: int) -> int:
    """Returns what `seed`, equal on all ranks, becomes on one of them."""
    return (seed + rank * _STRIDE) % _MODULUS
