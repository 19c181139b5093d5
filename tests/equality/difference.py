"""How far training has ended from where one process ends."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from equality.fits import Trained

SMALLEST = 1e-3  # what is smaller counts as this large


def difference(found: Trained, expected: Trained) -> tuple[float, str]:
    """Returns the largest relative difference, and of what it is.

    That of an array is the largest difference of its entries over the largest
    entry that is expected. Logs that are not found are not compared.
    """
    worst = (0.0, "nothing")
    pairs = zip(found.weights, expected.weights, strict=True)
    for index, (value, wanted) in enumerate(pairs):
        worst = max(worst, (_relative(value, wanted), f"weight {index}"))
    for key, values in found.logs.items():
        wanted = expected.logs[key]
        if isinstance(values, dict):
            assert values.keys() == wanted.keys(), (values, wanted)
        flat = keras.tree.flatten(values), keras.tree.flatten(wanted)
        worst = max(worst, (_relative(*flat, each=True), key))
    return worst


def _relative(value: Any, wanted: Any, *, each: bool = False) -> float:
    value, wanted = np.asarray(value, "f8"), np.asarray(wanted, "f8")
    if value.shape != wanted.shape:
        raise ValueError(f"shapes {value.shape} and {wanted.shape}")
    if not value.size:
        return 0.0
    if np.isnan(value).any() or np.isnan(wanted).any():
        return float("inf")
    scale = np.abs(wanted) if each else np.abs(wanted).max()
    return float(np.max(np.abs(value - wanted) / np.maximum(scale, SMALLEST)))
