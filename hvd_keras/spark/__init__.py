"""Trains Keras models on Spark: `run`, `KerasEstimator` and `KerasModel`.

It needs the extra `spark`; docs/spark.md tells how to use it. Tasks import this
before they know their place, so it imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._common.lazy import importer

if TYPE_CHECKING:
    from hvd_keras.spark.devices import get_available_devices
    from hvd_keras.spark.estimator import KerasEstimator, KerasModel
    from hvd_keras.spark.running import run
    from hvd_keras.spark.store import Store

__all__ = [
    "KerasEstimator",
    "KerasModel",
    "Store",
    "get_available_devices",
    "run",
]

__getattr__ = importer(
    __name__,
    {
        "KerasEstimator": "estimator",
        "KerasModel": "estimator",
        "Store": "store",
        "get_available_devices": "devices",
        "run": "running",
    },
)
