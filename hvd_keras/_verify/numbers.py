"""Compares numbers and arrays, and writes them down."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras._verify.records import Array


def gap_of(value: Array, one: Array) -> float:
    if value.shape != one.shape:
        return float("inf")
    if not one.size:
        return 0.0
    gap = np.abs(value.astype(np.float64) - one.astype(np.float64))
    both = np.isnan(value) & np.isnan(one) | (value == one)
    gap = np.where(both, 0.0, gap)
    return float(np.max(np.where(np.isnan(gap), np.inf, gap)))


def ratio_of(value: Any, one: Any) -> float | None:
    """Returns the factor between two arrays, if it is one for all elements."""
    value, one = np.float64(value).ravel(), np.float64(one).ravel()
    scale = float(np.dot(one, one))
    if not scale or not np.isfinite(scale):
        return None
    factor = float(np.dot(value, one)) / scale
    rest = float(np.max(np.abs(value - factor * one)))
    return factor if rest <= 1e-2 * float(np.max(np.abs(value))) else None


def several(values: Any) -> str:
    return " and ".join(f"{float(value):.6g}" for value in values)


def short(array: Any) -> str:
    flat = np.ravel(array)
    return f"{flat[0]:.6g}" if flat.size == 1 else f"{flat[:3].tolist()}"
