"""The names of Ray that Ray calls developer API, each looked up here alone."""

from __future__ import annotations

from hvd_keras.exceptions import LaunchError

_TRIED = "2.60"

try:
    import ray
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError as error:
    raise LaunchError(
        f"Ray {_TRIED} with Ray Train must be installed: pip install "
        f"'hvd-keras[ray]'. Received: {error}."
    ) from error

__all__ = ["Backend", "BackendConfig", "DataParallelTrainer", "ray"]
