"""Numbers that a compiled step leaves for Python to read."""

from __future__ import annotations

from typing import Any

import numpy as np


class Note:
    """Counts steps, and those in which a rank has raised its flag.

    Its numbers are: all steps; those with a flag; the number of the first one,
    counted from 1, and its flags.

    Args:
        size: The number of flags.
    """

    def __init__(self, size: int) -> None:
        self._numbers = np.zeros(3 + size, np.int32)

    def add(self, flags: Any) -> None:
        """Takes the flags of a step: a tensor of `size` integers."""
        self._add(np.asarray(flags))

    def read(self) -> np.ndarray[Any, Any]:
        """Returns the numbers after all steps that were called."""
        return self._numbers

    def _add(self, flags: Any) -> None:
        numbers = self._numbers
        numbers[0] += 1
        if np.any(flags):
            numbers[1] += 1
            if not numbers[2]:
                numbers[2] = numbers[0]
                numbers[3:] = flags
