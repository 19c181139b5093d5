"""Trains Keras models on Spark: `run`, `KerasEstimator` and `KerasModel`.

It needs the extra `spark`; docs/spark.md tells how to use it. Tasks import this
before they know their place, so it imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_keras.spark.estimator import KerasEstimator, KerasModel
    from hvd_keras.spark.running import run
    from hvd_keras.spark.store import Store

__all__ = ["KerasEstimator", "KerasModel", "Store", "run"]

_HOMES = {
    "KerasEstimator": "estimator",
    "KerasModel": "estimator",
    "Store": "store",
    "run": "running",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(home, name)
