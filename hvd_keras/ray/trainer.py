"""A trainer of Ray Train whose workers are the ranks of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras._common import horovod_site
from hvd_keras.ray._developer import (
    Backend,
    BackendConfig,
    DataParallelTrainer,
    ray,
)
from hvd_keras.run.hosts import workers


class _HvdConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _HvdBackend


class _HvdBackend(Backend):
    """Tells each worker its place, before the training function is loaded."""

    def on_training_start(
        self, worker_group: Any, backend_config: BackendConfig
    ) -> None:
        hosts = worker_group.execute(_host_of_worker)
        at = worker_group.execute_single(
            0, workers.meeting_point, len(set(hosts))
        )
        found = workers.variables(hosts, at, "Ray Train")
        ray.get(
            [
                worker_group.execute_single_async(
                    rank,
                    workers.become_rank,
                    own,
                    is_horovod=horovod_site.is_used(),
                )
                for rank, own in enumerate(found)
            ]
        )


def _host_of_worker() -> str:
    return str(ray.util.get_node_ip_address())


class KerasTrainer(DataParallelTrainer):
    """Trains a Keras 3 model on Ray's workers, each of which is a rank.

    It is a `DataParallelTrainer` of Ray Train, so scaling, failures, storage
    and datasets are configured as Ray's users know them. Keras may run on
    TensorFlow, JAX or torch; Keras 2 is never asked for.

    Args:
        train_loop_per_worker: Runs on each worker; gets `train_loop_config` if
            it takes an argument. It calls `hvd.init()`, and trains as under
            hvdrun. Import frameworks in it.
        train_loop_config: What it gets.
        scaling_config: A `ray.train.ScalingConfig`: how many workers, and
            what each needs.
        run_config: A `ray.train.RunConfig`: storage, and a `FailureConfig`. If
            a worker dies and failures are allowed, all workers start again;
            `restored()` gives them the last checkpoint.
        **options: Other arguments of `DataParallelTrainer`, such as `datasets`.

    Example:

    >>> trainer = KerasTrainer(  # doctest: +SKIP
    ...     train, scaling_config=ray.train.ScalingConfig(num_workers=2)
    ... )
    >>> trainer.fit().metrics["accuracy"]  # doctest: +SKIP
    0.98
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=_HvdConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            **options,
        )
