"""An iteration over an epoch, or over the rest of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_keras.data._deal import Deal

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class OfEpoch:
    """Another order in each epoch, which depends on its number alone.

    Args:
        order: Makes it of the number of rows and that of the epoch, as Keras
            counts: what it builds a model by is an epoch, too. A worker process
            imports it by name.
    """

    order: Callable[[int, int], Array]


# Whether rows come in another order in each epoch; or what draws an order of so
# many rows, equal on all ranks, as a pass begins. Its second argument: how many
# passes a job has had that goes on, and has drawn nothing for yet.
Shuffle = bool | OfEpoch | Callable[[int, int], Array]


@dataclasses.dataclass(frozen=True)
class Pass:
    """The rows that an iteration has, dealt among the ranks.

    Args:
        epoch: The number of the epoch; decides on the order of its rows.
        first: Rows of the epoch that were used before.
        deal: Assigns the rows to the ranks.
        num_all: Rows of the epoch; None if unknown.
        first_rows: A checksum of the first rows of the epoch, or "".
    """

    epoch: int
    first: int
    deal: Deal
    num_all: int | None
    first_rows: str = ""

    @property
    def num_rows(self) -> int | None:
        """Rows of this iteration; None if unknown."""
        if self.num_all is None:
            return None
        return max(self.num_all - self.first, 0)

    @property
    def num_global_steps(self) -> int | None:
        """Steps in which a rank has rows; None if unknown."""
        num_rows = self.num_rows
        return (
            None if num_rows is None else self.deal.num_global_steps(num_rows)
        )

    @property
    def num_steps(self) -> int | None:
        """Steps in which this rank has rows; None if unknown."""
        num_rows = self.num_rows
        return None if num_rows is None else self.deal.num_steps(num_rows)

    def bounds(self, step: int) -> tuple[int, int]:
        """Where the global batch of a step begins and ends in the epoch."""
        full = self.deal.global_size
        begin, end = step * full, (step + 1) * full
        num_rows = self.num_rows or 0
        if step == self.deal.num_global_steps(num_rows) - 1:
            end = end if self.deal.policy == "drop" else num_rows
        return self.first + begin, self.first + end


def order_of(
    num_rows: int, epoch: int, *, shuffle: bool | OfEpoch, seed: int
) -> Array | None:
    """Returns the order of the rows in an epoch; None if it is theirs.

    It depends on nothing but the arguments.
    """
    if isinstance(shuffle, OfEpoch):
        return shuffle.order(num_rows, epoch)
    if not shuffle:
        return None
    # NumPy's: TensorFlow mixes its global seed, which may differ by rank, into
    # its generators.
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def own_rows(rows: Array, part: Pass) -> tuple[Array, Array, Array]:
    """Returns this rank's rows in each step of a pass.

    Args:
        rows: The rows of the epoch, in their order.
        part: The pass.

    Returns:
        The indices of the rows, an array of [steps, places]. Its lines may be
        longer than needed. For each step: the number of places, and how many
        of them hold rows that do not only fill the batch.
    """
    deal, steps = part.deal, part.num_steps or 0
    full = deal.global_size
    of_full, weights = deal.own_rows(full)
    size = len(of_full)
    begin, end = part.bounds(steps - 1) if steps else (0, 0)
    num_full = steps if end - begin == full else max(steps - 1, 0)
    own = rows[part.first : part.first + num_full * full]
    own = own.reshape(num_full, full)[:, of_full]
    places = np.full(steps, size, np.int64)
    real = np.full(steps, np.count_nonzero(weights > 0), np.int64)
    if num_full == steps:
        return own.astype(np.int64, copy=False), places, real
    last, weights = deal.own_rows(end - begin)
    places[-1], real[-1] = len(last), np.count_nonzero(weights > 0)
    table = np.zeros([steps, max(size, len(last))], np.int64)
    table[:-1, :size] = own
    table[-1, : len(last)] = rows[begin:end][last]
    return table, places, real
