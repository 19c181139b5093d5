"""Assigns the rows of a global batch to the ranks."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

POLICIES = ("split", "pad", "drop", "join")
# The weight of a row that only fills a batch. It computes like 0, which is the
# weight of a row that counts as one.
FILLING = -0.0


@dataclasses.dataclass(frozen=True)
class Deal:
    """How global batches are cut into those of the ranks.

    A step may have too few rows for all ranks, and "pad" wants full batches.
    Rows that come twice fill the gaps; their weight is `FILLING`.

    Args:
        rank: This rank, in [0, size).
        size: The number of ranks.
        batch_size: Rows of this rank's batch.
        policy: One of `POLICIES`: decides about the last rows, fewer than
            `global_size`.
        has_weights: Whether a batch can tell which rows fill it.
        is_elastic: Whether the batches have a form that suits all numbers of
            ranks, which may change.
        num_merged: Ranks whose batches each rank has as one; usually 1.
        num_global: Rows of a global batch, if the ranks cannot share it
            evenly; else 0.
        is_uneven: Whether a rank has the rows of its own files, however many
            of a global batch these are.
        keeps_batches: Whether what is counted are batches of any size, each
            of them a global one, and not rows. `num_global` is 1 then.
    """

    rank: int
    size: int
    batch_size: int
    policy: str
    has_weights: bool = True
    is_elastic: bool = False
    num_merged: int = 1
    num_global: int = 0
    is_uneven: bool = False
    keeps_batches: bool = False

    @classmethod
    def of_global(
        cls,
        global_batch_size: int,
        *,
        rank: int,
        size: int,
        can_be_few: bool = False,
        **more: Any,
    ) -> Deal:
        """Returns a deal of global batches, of so many rows each.

        Args:
            global_batch_size: The number of rows.
            rank: See the class.
            size: See the class.
            can_be_few: Whether the batch of a rank may hold nothing but
                filling in each step.
            more: See the class.

        Raises:
            ValueError: There are fewer rows than ranks.
        """
        begin, end = (global_batch_size * r // size for r in (rank, rank + 1))
        is_even = global_batch_size % size == 0
        deal = cls(
            rank,
            size,
            max(end - begin, 1),
            num_global=0 if is_even else global_batch_size,
            **more,
        )
        if not deal.is_few:
            return deal
        if deal.policy != "split" or not deal.has_weights or not can_be_few:
            raise ValueError(
                "A global batch must have a row for each rank. Received: "
                f"{global_batch_size} rows for {size} ranks."
            )
        return deal

    @property
    def is_few(self) -> bool:
        """Whether a full batch has fewer rows than ranks."""
        return not self.keeps_batches and self.global_size < self.size

    @property
    def fewest_rows(self) -> int:
        """Rows of a step with one for each rank, merged ones as well."""
        return self.size * self.num_merged

    @property
    def global_size(self) -> int:
        """Rows of a global batch."""
        return self.num_global or self.size * self.batch_size

    @property
    def joins_rest(self) -> bool:
        """Whether fewer rows than ranks go to the step before."""
        return self.policy == "split" and not self.has_weights

    def num_joined(self, num_rows: int | None) -> int:
        """How many rows go to the step before; 0 if that is not known."""
        rest = (num_rows or 0) % self.global_size
        return rest if self.joins_rest and rest < self.fewest_rows else 0

    def num_global_steps(self, num_rows: int) -> int:
        """The number of global batches that `num_rows` rows make."""
        full, rest = divmod(num_rows, self.global_size)
        if rest == 0 or self.policy == "drop":
            return full
        return full + (self.num_joined(num_rows) == 0)

    def num_steps(self, num_rows: int) -> int:
        """The number of global batches in which this rank has rows."""
        steps = self.num_global_steps(num_rows)
        rest = num_rows % self.global_size
        if self.policy == "join" and rest and not self._num_own(rest):
            steps -= 1
        return steps

    def may_fill(self, num_rows: int | None) -> bool:
        """Whether batches may hold filling; None: the number is unknown."""
        if not self.has_weights:
            return False
        if self.is_uneven:
            return self.size > 1 or self.is_elastic
        if self.keeps_batches or self.is_few:
            return self.size > 1
        rest = None if num_rows is None else num_rows % self.global_size
        if self.is_elastic:
            return self.policy in ("split", "pad")
        if self.policy == "pad":
            return rest != 0
        if self.policy != "split" or self.size == 1:
            return False
        return rest is None or 0 < rest < self.size

    def is_static(self, num_rows: int | None) -> bool:
        """Whether all batches have `batch_size` rows."""
        if self.is_uneven:
            return False
        if self.policy in ("pad", "drop"):
            return True
        if self.is_elastic or self.keeps_batches:
            return False
        return num_rows is not None and num_rows % self.global_size == 0

    def own_rows(self, num_rows: int) -> tuple[Array, Array]:
        """Returns the indices of this rank's rows in a global batch.

        Args:
            num_rows: Rows of the global batch.

        Returns:
            A vector of indices, and one of weights: 1, or `FILLING`.
        """
        begin, end = self.bounds(num_rows)
        places = np.arange(begin, begin + self._num_places(end - begin))
        weights = np.where(places < end, 1.0, FILLING).astype(np.float32)
        return places % max(num_rows, 1), weights

    def bounds(self, num_rows: Any) -> tuple[Any, Any]:
        """Where this rank's rows begin and end, of an integer or tensor."""
        begin = num_rows * self.rank // self.size
        return begin, num_rows * (self.rank + 1) // self.size

    def counts(self, num_rows: int) -> list[tuple[int, int]]:
        """Returns how many rows each rank has of a global batch, and copies."""
        edges = [num_rows * rank // self.size for rank in range(self.size + 1)]
        own = [end - begin for begin, end in itertools.pairwise(edges)]
        return [(num, self._num_places(num) - num) for num in own]

    def rest_of(self, num_rows: int | None) -> int | None:
        """Returns how many rows the last step has that is not full.

        0 if all are full; None if the number of rows is not known.
        """
        if self.is_uneven:
            return None
        if self.policy == "drop":
            return 0
        if self.is_elastic or self.policy == "join":
            return None
        if num_rows is None or self.num_joined(num_rows):
            return None
        return num_rows % self.global_size

    def _num_places(self, num_own: int) -> int:
        if self.policy == "pad":
            return max(num_own, self.batch_size)
        if self.policy == "split" and self.has_weights:
            return max(num_own, 1)
        return num_own

    def _num_own(self, num_rows: int) -> int:
        begin, end = self.bounds(num_rows)
        return int(end - begin)
