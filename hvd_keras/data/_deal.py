"""Assigns the rows of a global batch to the ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

POLICIES = ("split", "pad", "drop", "join")


@dataclasses.dataclass(frozen=True)
class Deal:
    """How global batches are cut into those of the ranks.

    Args:
        rank: This rank, in [0, size).
        size: The number of ranks.
        batch_size: Rows of a rank's batch.
        policy: One of `POLICIES`: decides about the last rows, fewer than
            `global_size`.
    """

    rank: int
    size: int
    batch_size: int
    policy: str

    @property
    def global_size(self) -> int:
        """Rows of a global batch."""
        return self.size * self.batch_size

    def num_global_steps(self, num_rows: int) -> int:
        """The number of global batches that `num_rows` rows make."""
        full, rest = divmod(num_rows, self.global_size)
        if rest == 0 or self.policy == "drop":
            return full
        # If too few for their own step, they join the step before.
        return full if self.policy == "split" and rest < self.size else full + 1

    def num_steps(self, num_rows: int) -> int:
        """The number of global batches in which this rank has rows."""
        steps = self.num_global_steps(num_rows)
        rest = num_rows % self.global_size
        if self.policy == "join" and rest and not self._num_own(rest):
            steps -= 1
        return steps

    def may_pad(self, num_rows: int | None) -> bool:
        """Whether batches may hold padding; None: the number is unknown."""
        return self.policy == "pad" and (
            num_rows is None or num_rows % self.global_size != 0
        )

    def is_static(self, num_rows: int | None) -> bool:
        """Whether all batches have `batch_size` rows."""
        if self.policy in ("pad", "drop"):
            return True
        return num_rows is not None and num_rows % self.global_size == 0

    def own_rows(self, num_rows: int) -> tuple[Array, Array]:
        """Returns the indices of this rank's rows in a global batch.

        Args:
            num_rows: Rows of the global batch.

        Returns:
            A vector of indices, and one of weights. With the policy "pad", a
            weight is 0 for padding, and for other rows the ratio of a full
            batch to this one. So the mean of the ranks' mean losses is the mean
            loss of the rows. With other policies all weights are 1.
        """
        if self.policy == "pad":
            first = self.rank * self.batch_size
            places = np.arange(first, first + self.batch_size)
            weights = np.where(
                places < num_rows, self.global_size / num_rows, 0.0
            )
            return places % num_rows, weights.astype(np.float32)
        indices = np.arange(*self.bounds(num_rows))
        return indices, np.ones(len(indices), np.float32)

    def bounds(self, num_rows: Any) -> tuple[Any, Any]:
        """Where this rank's rows begin and end, of an integer or tensor."""
        begin = num_rows * self.rank // self.size
        return begin, num_rows * (self.rank + 1) // self.size

    def _num_own(self, num_rows: int) -> int:
        begin, end = self.bounds(num_rows)
        return int(end - begin)
