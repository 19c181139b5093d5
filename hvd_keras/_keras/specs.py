"""Shapes and dtypes of tensors, without the tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

Rows = slice | np.ndarray[Any, Any]


class Spec:
    """The shape and dtype of a tensor; what is none is kept.

    Args:
        value: A tensor or array, also one that is traced, or something else.
    """

    def __init__(self, value: Any) -> None:
        self.is_tensor = keras.ops.is_tensor(value) or isinstance(
            value, np.ndarray | keras.KerasTensor
        )
        self.value = None if self.is_tensor else value
        if self.is_tensor:
            self.shape = tuple(value.shape)
            self.dtype = keras.backend.standardize_dtype(value.dtype)

    def made(
        self, num_rows: int, rows: Rows, seed: int, *, is_label: bool = False
    ) -> Any:
        """Returns small numbers, the same for a seed.

        Args:
            num_rows: How many rows are drawn.
            rows: Which of them to return, by their places.
            seed: Of the numbers.
            is_label: Whether they are 0 and 1, as what marks or masks rows.

        Raises:
            ValueError: It has no rows.
        """
        if not self.is_tensor:
            return self.value
        if not self.shape:
            raise ValueError("A tensor must have rows. Received: a scalar.")
        shape = [num_rows, *[size or 3 for size in self.shape[1:]]]
        numbers = np.random.default_rng(seed).uniform(0.1, 0.9, shape)
        half = num_rows // 2
        if is_label:
            numbers += np.where(np.arange(num_rows) < half, -0.2, 0.2).reshape(
                [-1, *[1] * len(shape[1:])]
            )
            first = numbers.reshape(num_rows, -1)[:, :1]
            first[0::2], first[1::2] = 1.0, 0.0  # some of each in two rows
            first[half:] = 1.0
        else:
            numbers[:half] *= 0.3  # so that halves have other means
        if is_label or "float" not in self.dtype:
            numbers = np.round(numbers)
        return keras.ops.convert_to_tensor(numbers[rows], dtype=self.dtype)


def specs_of(structure: Any) -> Any:
    """Returns a `Spec` for each value of a structure."""
    return keras.tree.map_structure(Spec, structure)


def made(
    specs: Any,
    num_rows: int,
    rows: Rows,
    seed: int = 0,
    labels: Sequence[int] = (),
) -> Any:
    """Returns small numbers for each `Spec` of a structure, see `Spec.made`.

    Args:
        specs: The structure.
        num_rows: How many rows are drawn.
        rows: Which of them to return.
        seed: Of the numbers.
        labels: The places of a tuple or list at which labels stand.
    """
    seeds = itertools.count(seed)

    def made_of(part: Any, *, is_label: bool) -> Any:
        return keras.tree.map_structure(
            lambda spec: spec.made(
                num_rows, rows, next(seeds), is_label=is_label
            ),
            part,
        )

    if not labels:
        return made_of(specs, is_label=False)
    parts = [
        made_of(part, is_label=place in labels)
        for place, part in enumerate(specs)
    ]
    return parts if isinstance(specs, list) else tuple(parts)
