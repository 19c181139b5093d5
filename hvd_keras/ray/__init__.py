"""Trains Keras models on Ray: `KerasTrainer` and `RayExecutor`.

It needs the extra `ray`; docs/ray.md tells how to use it. Workers import this
before they know their place, so it imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_keras.ray.executor import RayExecutor
    from hvd_keras.ray.reporting import ReportCallback, restored
    from hvd_keras.ray.trainer import KerasTrainer

__all__ = ["KerasTrainer", "RayExecutor", "ReportCallback", "restored"]

_HOMES = {
    "KerasTrainer": "trainer",
    "RayExecutor": "executor",
    "ReportCallback": "reporting",
    "restored": "reporting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(home, name)
