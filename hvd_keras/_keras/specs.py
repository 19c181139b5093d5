"""Shapes and dtypes of tensors, without the tensors."""

from __future__ import annotations

import itertools
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

    def made(self, num_rows: int, rows: Rows, seed: int) -> Any:
        """Returns small numbers, the same for a seed.

        Args:
            num_rows: How many rows are drawn.
            rows: Which of them to return, by their places.
            seed: Of the numbers.

        Raises:
            ValueError: It has no rows.
        """
        if not self.is_tensor:
            return self.value
        if not self.shape:
            raise ValueError("A tensor must have rows. Received: a scalar.")
        shape = [num_rows, *[size or 3 for size in self.shape[1:]]]
        numbers = np.random.default_rng(seed).uniform(0.1, 0.9, shape)
        numbers[: num_rows // 2] *= 0.3  # so that halves have other means
        if "float" not in self.dtype:
            numbers = np.round(numbers)
        return keras.ops.convert_to_tensor(numbers[rows], dtype=self.dtype)


def specs_of(structure: Any) -> Any:
    """Returns a `Spec` for each value of a structure."""
    return keras.tree.map_structure(Spec, structure)


def made(specs: Any, num_rows: int, rows: Rows, seed: int = 0) -> Any:
    """Returns small numbers for each `Spec` of a structure, see `Spec.made`."""
    seeds = itertools.count(seed)
    return keras.tree.map_structure(
        lambda spec: spec.made(num_rows, rows, next(seeds)), specs
    )
