"""Runs a function once in each task of a barrier stage of Spark.

This holds all that leans on how Spark runs Python in tasks. It works in classic
Spark and in Spark Connect, which lacks RDDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hvd_keras.exceptions import LaunchError

_TRIED = "4.3"

try:
    import pyarrow as pa
    from pyspark import BarrierTaskContext, TaskContext
    from pyspark.sql import SparkSession
except ImportError as error:
    raise LaunchError(
        f"PySpark {_TRIED} with pyarrow must be installed: pip install "
        f"'.[spark]' in a clone of hvd_keras. Received: {error}."
    ) from error

Task = Callable[[BarrierTaskContext], bytes]

_SCHEMA = "task int, result binary"


def active_session() -> SparkSession:
    """Returns the session of this driver.

    Raises:
        LaunchError: There is none.
    """
    session = SparkSession.getActiveSession()
    if session is None:
        raise LaunchError(
            "A Spark session must be active, as after "
            "`SparkSession.builder.getOrCreate()`. Received: none."
        )
    return session


def num_slots(session: SparkSession) -> int:
    """Returns how many tasks can run at a time.

    Raises:
        LaunchError: Spark Connect does not say it.
    """
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:
        raise LaunchError(
            "`num_proc` must be given with Spark Connect, which does not tell "
            "how many tasks can run. Received: None."
        ) from None


def run_tasks(session: SparkSession, num_tasks: int, task: Task) -> list[bytes]:
    """Calls `task` in tasks that all run at the same time.

    Args:
        session: The session.
        num_tasks: How many.
        task: Gets the context of its task.

    Returns:
        What each task returned, by its number.

    Raises:
        Exception: What Spark raises if a task fails or is lost. It does not try
            a barrier stage again whose results are wanted.
    """

    def run_task(_: Iterator[Any]) -> Iterator[Any]:
        context = BarrierTaskContext.get()
        result = task(context)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([context.partitionId()], pa.int32()),
                pa.array([result], pa.binary()),
            ],
            ["task", "result"],
        )

    frame = session.range(0, num_tasks, 1, num_tasks)
    rows = frame.mapInArrow(run_task, _SCHEMA, barrier=True).collect()
    found = {row.task: bytes(row.result) for row in rows}
    return [found[number] for number in range(num_tasks)]


def share(context: BarrierTaskContext, text: str) -> list[str]:
    """Returns the texts of all tasks, by task."""
    return list(context.allGather(text))


def hosts_of_tasks(context: BarrierTaskContext) -> list[str]:
    """Returns the host of each task."""
    infos = context.getTaskInfos()
    return [info.address.rpartition(":")[0] or info.address for info in infos]


def present_task() -> TaskContext:
    """Returns the context of the task that runs in this process.

    Raises:
        LaunchError: None does.
    """
    context = TaskContext.get()
    if context is None:
        raise LaunchError(
            "This must run in a task of Spark. Received: a process without one."
        )
    return context


def gpus_of_task(context: TaskContext) -> list[str]:
    """Returns the addresses of the GPUs that Spark has given to a task."""
    found = context.resources().get("gpu")
    return [] if found is None else list(found.addresses)
