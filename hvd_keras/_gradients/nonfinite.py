"""Skips updates whose gradients are NaN or infinite on any rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_keras import _backends
from hvd_keras.process_set import ProcessSet


class NonfiniteWatch:
    """Tells which rank brought a gradient that is not finite, and when.

    Args:
        name: First part of the names of its collectives.
        process_set: The ranks that reduce together; this rank is one.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name = f"{name}/nonfinite"
        self._process_set = process_set
        self._note = _backends.current().make_note(process_set.size() or 1)

    def all_finite(self, gradients: list[Any]) -> Any:
        """Returns a tensor: whether all ranks have finite gradients."""
        ops = keras.ops
        finite = [
            ops.all(ops.isfinite(g.values if hasattr(g, "dense_shape") else g))
            for g in gradients
        ]
        is_bad = ops.logical_not(ops.all(ops.stack(finite)))
        index = self._process_set.rank() or 0
        places = np.arange(self._process_set.size() or 1) == index
        mine = ops.convert_to_tensor(places.astype("int32"))
        flags = ops.cast(is_bad, "int32") * mine
        flags = _backends.current().sum(flags, self._name, self._process_set)
        self._note.add(flags)
        return ops.equal(ops.sum(flags), 0)

    def found(self) -> tuple[int, int, list[int]]:
        """Returns what it has found so far, the same on all ranks.

        Returns:
            The number of skipped updates; the step of the first one, counted
            from 1; and the ranks whose gradients were not finite in it.
        """
        _, num_bad, first, *flags = self._note.read().tolist()
        members = self._process_set.ranks or [0]
        ranks = [r for r, bad in zip(members, flags, strict=True) if bad]
        return num_bad, first, ranks
