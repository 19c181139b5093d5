"""`horovod.spark` on `hvd_keras.spark`: functions on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_keras import spark
from hvd_keras._common.ignored import ignoring
from hvd_keras.run.spec import settings

__all__ = ["Backend", "SparkBackend", "default_num_proc", "run", "run_elastic"]

_MAX_RESTARTS = 3  # hvdrun's
# Spark says where tasks print and which Python they have.
_OF_TASKS = "stdout stderr verbose prefix_output_with_timestamp"


@ignoring(
    "horovod.spark.run",
    f"use_mpi use_gloo extra_mpi_args executable {_OF_TASKS}",
)
def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    *,
    env: Mapping[str, str] | None = None,
    nics: Sequence[str] | str | None = None,
    retries: int = 0,
) -> list[Any]:
    """`hvd_keras.spark.run`, with Horovod's arguments.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Its arguments by name.
        num_proc: Number of ranks. Defaults to all slots of the cluster.
        start_timeout: Seconds within which all ranks must call `init()`.
        env: Environment variables for the ranks.
        nics: Interfaces where to listen to other hosts.
        retries: See `hvd_keras.spark.run`.

    Returns:
        What `fn` returned on each rank, in rank order.
    """
    if nics is not None and not isinstance(nics, str):
        nics = ",".join(nics)
    told = settings(HVD_START_TIMEOUT=start_timeout, HVD_INTERFACE=nics)
    return spark.run(
        fn, args, kwargs, num_proc, retries=retries, env={**(env or {}), **told}
    )


@ignoring(
    "horovod.spark.run_elastic",
    f"min_num_proc max_num_proc min_np max_np elastic_timeout {_OF_TASKS}",
)
def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    start_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    nics: Sequence[str] | str | None = None,
) -> list[Any]:
    """Runs a function, and all of it again when a task was lost.

    The number of ranks stays. `fn` should go on from its last checkpoint.

    Args:
        fn: See `run`.
        args: See `run`.
        kwargs: See `run`.
        num_proc: See `run`.
        start_timeout: See `run`.
        reset_limit: How often to start again. Defaults to 3.
        env: See `run`.
        nics: See `run`.
    """
    retries = _MAX_RESTARTS if reset_limit is None else reset_limit
    return run(
        fn,
        args,
        kwargs,
        num_proc,
        start_timeout,
        env=env,
        nics=nics,
        retries=retries,
    )


def default_num_proc() -> int:
    """Returns how many tasks can run at a time."""
    from hvd_keras.spark import _barrier

    return _barrier.num_slots(_barrier.active_session())


class Backend:
    """What an estimator runs its ranks with. Derive others from it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Runs a function on all ranks; returns what each returned."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """Returns the number of ranks."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Ranks that are tasks of Spark."""

    def __init__(
        self,
        num_proc: int | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Describes them.

        Args:
            num_proc: Number of ranks. Defaults to all slots of the cluster.
            env: Environment variables for the ranks.
            **options: Other arguments of `run`.
        """
        self._num_proc = num_proc or default_num_proc()
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        env = {**self._env, **(env or {})}
        return run(fn, args, kwargs, self._num_proc, env=env, **self._options)

    def num_processes(self) -> int:
        return self._num_proc
