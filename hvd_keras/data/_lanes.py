"""An order of the rows of whole files, in which each rank has its own files.

Files are put into lanes of about equally many rows. The order takes rows from
all lanes in turn, so that all end together. It does not depend on the number of
ranks, and each rank reads some lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PART = 4096  # rows that are told at once, about


class Lanes:
    """The lanes of some files.

    Args:
        counts: Rows of each file.
        num_lanes: How many lanes there are, at most.
        seed: Decides on the order of the files of a lane, together with the
            number of the pass; None: theirs.
    """

    def __init__(
        self, counts: Sequence[int], num_lanes: int, seed: int | None
    ) -> None:
        self.counts, self._seed = np.array(counts, np.int64), seed
        used = np.flatnonzero(self.counts)
        self.files: list[list[int]] = [
            [] for _ in range(min(num_lanes, len(used)))
        ]
        self._rows = np.zeros(len(self.files), np.int64)
        # The largest first, each to the lane that has least.
        for file in used[np.argsort(-self.counts[used], kind="stable")]:
            lane = int(self._rows.argmin())
            self.files[lane].append(int(file))
            self._rows[lane] += self.counts[file]
        self.num_rows = int(self._rows.sum())
        self.num_parts = -(-self.num_rows // _PART)

    def _before(self, part: int) -> Array:
        """Returns how many rows of each lane come before a part.

        Row j of a lane of c rows stands at (j + 1/2) / c of the epoch.
        """
        count = self.num_parts
        return (2 * self._rows * part + count - 1) // (2 * count)

    def part(self, part: int) -> Array:
        """Returns the lane of each row of a part, in order."""
        before, after = self._before(part), self._before(part + 1)
        lanes = np.repeat(np.arange(len(before)), after - before)
        rows = np.concatenate(
            [np.arange(b, a) for b, a in zip(before, after, strict=True)]
        )
        places = (2 * rows + 1) / self._rows[lanes]
        return lanes[np.lexsort([lanes, places])]

    def at(self, row: int) -> tuple[int, int, Array]:
        """Returns where a row of the order is.

        Returns:
            Its part, its place in the part, and how many rows of each lane
            come before it.
        """
        low, high = 0, self.num_parts
        while high - low > 1:
            middle = (low + high) // 2
            if self._before(middle).sum() <= row:
                low = middle
            else:
                high = middle
        before = self._before(low)
        place = row - int(before.sum())
        lanes = self.part(low)[:place]
        return low, place, before + np.bincount(lanes, minlength=len(before))

    def left_of(
        self, lane: int, number: Array, num_done: int
    ) -> tuple[Array, Array]:
        """Returns the files of a lane that are left, in their order.

        Args:
            lane: The lane.
            number: That of the pass.
            num_done: Rows of the lane that come before.

        Returns:
            The files, and how many rows of each were before.
        """
        files = np.array(self.files[lane])
        if self._seed is not None:
            key = [self._seed, *map(int, number), lane]
            files = np.random.default_rng(key).permutation(files)
        ends = np.cumsum(self.counts[files])
        begins = ends - self.counts[files]
        is_left = ends > num_done
        return files[is_left], np.maximum(num_done - begins[is_left], 0)
