"""How many rows elements have, one after the other."""

from __future__ import annotations

import dataclasses

_MOST_RUNS = 4096
# Elements of what never ends: as many as nobody takes.
ENDLESS = 1 << 40


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The numbers of rows of elements.

    Args:
        runs: Numbers of elements that follow on each other, and how many rows
            each of them has.
        is_ordered: Whether they come in that order.
    """

    runs: tuple[tuple[int, int], ...]
    is_ordered: bool = True

    @property
    def num_elements(self) -> int:
        return sum(count for count, _ in self.runs)

    @property
    def num_rows(self) -> int:
        return sum(count * size for count, size in self.runs)

    @property
    def is_endless(self) -> bool:
        return self.num_elements >= ENDLESS

    def shuffled(self) -> Lengths:
        """Returns those of the same elements in another order."""
        sizes = {size for _, size in self.runs}
        return dataclasses.replace(
            self, is_ordered=self.is_ordered and len(sizes) < 2
        )

    def take(self, count: int) -> Lengths | None:
        """Returns those of the first elements; None: unknown."""
        if count < 0 or count >= self.num_elements:
            return self
        return self._part(0, count)

    def skip(self, count: int) -> Lengths | None:
        """Returns those of all but the first elements; None: unknown."""
        if self.is_endless:
            return self if count >= 0 else Lengths(())
        count = self.num_elements if count < 0 else count
        return self._part(count, self.num_elements) if count else self

    def repeat(self, count: int) -> Lengths:
        """Returns those of elements that come several times."""
        if self.is_endless or not self.runs:
            return self
        if len(self.runs) == 1:
            ((number, size),) = self.runs
            number = ENDLESS if count < 0 else number * count
            return Lengths(((number, size),))
        if count < 0:
            return Lengths(((ENDLESS, 1),), is_ordered=False)
        if len(self.runs) * count > _MOST_RUNS:
            runs = [(number * count, size) for number, size in self.runs]
            return Lengths(tuple(runs), is_ordered=False)
        return dataclasses.replace(self, runs=self.runs * count)

    def concatenate(self, other: Lengths) -> Lengths:
        """Returns those of these elements and then of others."""
        if self.is_endless:
            return self
        is_ordered = self.is_ordered and other.is_ordered
        return Lengths(self.runs + other.runs, is_ordered)

    def _part(self, begin: int, end: int) -> Lengths | None:
        if not self.is_ordered:
            return None
        runs, place = [], 0
        for count, size in self.runs:
            left = min(place + count, end) - max(place, begin)
            if left > 0:
                runs.append((left, size))
            place += count
        return Lengths(tuple(runs))


def of_batches(num_rows: int, size: int, *, drops_rest: bool) -> Lengths:
    """Returns those of batches of one size; the last one may be smaller."""
    count, rest = divmod(num_rows, size)
    runs = [(count, size)] if count else []
    if rest and not drops_rest:
        runs.append((1, rest))
    return Lengths(tuple(runs))


def of_rows(num_rows: int) -> Lengths:
    """Returns those of elements that are rows; below 0: without end."""
    return Lengths(((ENDLESS if num_rows < 0 else num_rows, 1),))
