"""The names of Ray Train that Ray calls developer API, looked up here alone."""

from __future__ import annotations

from hvd_keras.exceptions import LaunchError
from hvd_keras.ray._ray import TRIED, ray

try:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError as error:
    raise LaunchError(
        f"Ray {TRIED} with Ray Train must be installed: pip install "
        f"'.[ray]' in a clone of hvd_keras. Received: {error}."
    ) from error

__all__ = ["Backend", "BackendConfig", "DataParallelTrainer", "ray"]
