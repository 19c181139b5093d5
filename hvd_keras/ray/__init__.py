"""Trains Keras models on Ray: `KerasTrainer` and two executors.

It needs the extra `ray`; docs/ray.md tells how to use it. Workers import this
before they know their place, so it imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._common.lazy import importer

if TYPE_CHECKING:
    from hvd_keras.ray.elastic_executor import ElasticRayExecutor
    from hvd_keras.ray.executor import RayExecutor
    from hvd_keras.ray.reporting import ReportCallback, restored
    from hvd_keras.ray.trainer import KerasTrainer

__all__ = [
    "ElasticRayExecutor",
    "KerasTrainer",
    "RayExecutor",
    "ReportCallback",
    "restored",
]

__getattr__ = importer(
    __name__,
    {
        "ElasticRayExecutor": "elastic_executor",
        "KerasTrainer": "trainer",
        "RayExecutor": "executor",
        "ReportCallback": "reporting",
        "restored": "reporting",
    },
)
