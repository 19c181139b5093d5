"""Checksums of values that ranks have computed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hvd_keras._values.checksums import checksum

TINY = {
    "float32": 1e-39,
    "float64": 1e-310,
    "complex64": 1e-39,
    ml_dtypes.bfloat16: 1e-39,
}


@pytest.mark.parametrize("dtype", TINY)
@pytest.mark.parametrize("place", [0, 70_000])
def test_denormal_numbers_count_as_zero(dtype: Any, place: int) -> None:
    array = np.random.default_rng(0).normal(size=90_000).astype(dtype)
    array[place] = 0
    for value in (TINY[dtype], -TINY[dtype], -0.0):
        other = array.copy()
        other[place] = value
        assert other.tobytes() != array.tobytes()
        assert checksum(other) == checksum(array)
    other[place] = 1
    assert checksum(other) != checksum(array)


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "bool"])
def test_other_types_depend_on_every_bit(dtype: str) -> None:
    array = np.zeros((100, 3), dtype)
    other = array.copy()
    other.reshape(-1).view(np.uint8)[-1] = 1
    assert checksum(other) != checksum(array)
    assert checksum(array[:, 1:]) == checksum(np.zeros((100, 2), dtype))


def test_no_values_have_a_checksum_too() -> None:
    assert checksum(np.zeros(0, "float32")) == checksum(np.zeros(0, "int32"))
