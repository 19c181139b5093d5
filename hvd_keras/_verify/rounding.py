"""What rounding alone does to the arrays of a script, as measured.

Sums in another order differ in their last digits. Where that turns a ReLU or
the place of a maximum, a gradient changes by more, and training amplifies it.
How much it is depends on the script, so a third run measures it: one process
whose gradients are nudged, by more than rounding changes them. An array may
differ by what the nudges did up to the step that is compared. Where a
difference is not far above that, other runs are nudged otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hvd_keras._verify.causes import Difference
from hvd_keras._verify.numbers import gap_of
from hvd_keras._verify.records import Event

_MOST_RUNS = 3
_FACTOR = 3  # of what the nudges do
_NEAR = 10  # times that: another run may do as much
_KINDS = ("gradients", "loss", "results", "weights")
_MOST = 0.1  # where rounding does more than this, equality shows nothing


class Rounding:
    """What rounding may do to each array, up to the event that is compared.

    Args:
        nudged: Those of each run with nudged gradients.
        tolerance: What is equal without a reason.
    """

    def __init__(
        self, nudged: Iterable[Iterable[Event]], tolerance: float
    ) -> None:
        self._tolerance = tolerance
        self._most: dict[tuple[str, str], float] = {}
        self._used: dict[str, float] = {}
        self._nudged = [
            {e.place: e for e in events if e.kind in _KINDS}
            for events in nudged
        ]

    def go_on_to(self, event: Event) -> None:
        """Measures one more event of the one process."""
        largest = {
            name: float(np.max(np.abs(array)))
            for name, array in event.arrays.items()
            if array.size
        }
        floor = 1e-2
        if event.kind == "gradients":
            floor *= max(largest.values(), default=0.0)
        others = [
            run[event.place] for run in self._nudged if event.place in run
        ]
        for name, size in largest.items():
            for other in others:
                if name in other.arrays:
                    gap = gap_of(other.arrays[name], event.arrays[name])
                    gap *= _FACTOR / (max(size, floor) or 1.0)
                    key = event.kind, name
                    self._most[key] = max(self._most.get(key, 0.0), gap)

    def explains(self, kind: str, name: str, gap: float) -> bool:
        """Whether rounding alone makes such a difference.

        Args:
            kind: The kind of event.
            name: That of the array.
            gap: The difference, in parts of the largest element.
        """
        if not gap <= min(self._most.get((kind, name), 0.0), _MOST):
            return False  # also if it is NaN
        if gap > self._tolerance:
            self._used[name] = max(self._used.get(name, 0.0), gap)
        return True

    def may_explain(self, found: Difference) -> bool:
        """Whether more runs may show that rounding explains a difference."""
        if not self._nudged:
            return True
        most = self._most.get((found.kind, found.name), 0.0)
        return len(self._nudged) < _MOST_RUNS and found.gap <= _NEAR * most

    def hides(self, found: Difference) -> bool:
        """Whether rounding does so much that a difference shows nothing."""
        most = self._most.get((found.kind, found.name), 0.0)
        return 0.0 < found.gap <= most

    def texts(self) -> list[str]:
        """Returns what was left out, for people."""
        if not self._used:
            return []
        name, gap = max(self._used.items(), key=lambda item: item[1])
        more = f" and {len(self._used) - 1} more" * (len(self._used) > 1)
        return [
            f"Left out: differences of {name}{more} up to {gap:.0e} of their "
            "largest. Rounding alone makes such here, where it turns a ReLU "
            "or the place of a maximum; more runs have measured it."
        ]
