"""Seeds of random numbers: of each rank, and given to a script."""

from __future__ import annotations

# The distance between the seeds of neighbouring ranks. It is likely larger than
# the distances between the seeds of one model's layers.
_STRIDE = 1_000_003
_MODULUS = 1 << 31


class GivenSeed(int):
    """A seed that the script has not set itself."""


def seed_of_rank(seed: int, rank: int) -> int:
    """Returns the seed of one rank, given `seed`, which all ranks share."""
    return (seed + rank * _STRIDE) % _MODULUS
