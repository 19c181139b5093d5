"""What is known of the rows of each step before the step."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

_ATTRIBUTE = "_hvd_counts"


@dataclasses.dataclass(frozen=True)
class Counts:
    """The numbers of rows in the steps of sharded data.

    Args:
        num_ranks: The ranks that share the data.
        batch_size: Rows of each rank in a full step.
        rest: Rows of all ranks in the last step; 0 if that is full too, None
            if unknown.
        may_fill: Whether batches may hold rows that only fill them.
        adds_weights: Whether the weights of the batches say that alone.
        ends_together: Whether all ranks take the same number of steps.
        fills_in_part: Whether such rows may stand beside others.
        joined: Rows of the last step that one process takes in a step more.
        is_uneven: Whether ranks have other numbers of rows in full steps.
        deals_rows: Whether each rank has other rows of the data.
    """

    num_ranks: int
    batch_size: int
    rest: int | None
    may_fill: bool = False
    adds_weights: bool = False
    fills_in_part: bool = False
    ends_together: bool = True
    joined: int = 0
    is_uneven: bool = False
    deals_rows: bool = False

    def are_known(self) -> bool:
        """Whether a rank can tell the step's rows from its own rows."""
        if self.is_uneven:
            return False
        if not self.rest:
            return self.rest == 0
        largest = -(-self.rest // self.num_ranks)
        return largest < self.batch_size

    def are_equal(self) -> bool:
        """Whether all ranks surely have equally many rows in each step."""
        return (
            self.are_known()
            and self.ends_together
            and self.rest is not None
            and self.rest % self.num_ranks == 0
        )


def mark(data: Any, counts: Counts) -> Any:
    """Returns `data`, which is a rank's share, after noting its counts."""
    setattr(data, _ATTRIBUTE, counts)
    return data


def counts_of(data: Any) -> Counts | None:
    """Returns the counts of data from `shard`; None if they are unknown.

    What was made of such data, by `map` for example, may have other rows.
    """
    counts: Counts | None = getattr(data, _ATTRIBUTE, None)
    return counts


def has_fixed_rows(data: Any) -> bool:
    """Whether all rows have the same shape, as far as `data` says."""
    spec = getattr(data, "element_spec", None)  # of a tf.data.Dataset
    if spec is None:
        return bool(getattr(data, "has_fixed_rows", False))
    shapes = [getattr(each, "shape", None) for each in keras.tree.flatten(spec)]
    return all(
        shape is not None and shape.rank is not None and None not in shape[1:]
        for shape in shapes
    )


def source_of(data: Any) -> Counts | None:
    """Returns the counts of `data`, or of what tf.data made them of."""
    counts = counts_of(data)
    inputs = getattr(data, "_inputs", None)
    if counts is None and callable(inputs):
        for each in inputs():
            counts = counts or source_of(each)
    return counts
