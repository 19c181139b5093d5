"""Sets of times, as intervals that do not overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Intervals:
    """The union of intervals of time, in ns.

    Args:
        begins: Where each begins; any order, and they may overlap.
        ends: Where each ends. One that ends before it begins is empty.
    """

    def __init__(self, begins: Array, ends: Array) -> None:
        some = ends > begins
        begins, ends = begins[some], ends[some]
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        is_new = np.ones(len(begins), bool)
        is_new[1:] = begins[1:] > ends[:-1]
        is_last = np.ones(len(begins), bool)
        is_last[:-1] = is_new[1:]
        self.begins: Array = begins[is_new]
        self.ends: Array = ends[is_last]
        lengths = self.ends - self.begins
        self._before = np.concatenate([[0], np.cumsum(lengths)])

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals(
            np.concatenate([self.begins, other.begins]),
            np.concatenate([self.ends, other.ends]),
        )

    def within(self, begins: Array, ends: Array) -> Array:
        """Returns how many ns of each window [begin, end) are in the set."""
        return self._until(ends) - self._until(begins)

    def _until(self, times: Array) -> Array:
        """How many ns before each time are in the set."""
        if not len(self.begins):
            return np.zeros(len(times), np.int64)
        index = np.searchsorted(self.begins, times, side="right") - 1
        at = np.maximum(index, 0)
        length = self.ends[at] - self.begins[at]
        inside = np.clip(times - self.begins[at], 0, length)
        return np.where(index < 0, 0, self._before[at] + inside)


def within_both(
    one: Intervals, other: Intervals, begins: Array, ends: Array
) -> Array:
    """Returns how many ns of each window are in both sets."""
    return (
        one.within(begins, ends)
        + other.within(begins, ends)
        - (one | other).within(begins, ends)
    )
