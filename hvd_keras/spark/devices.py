"""The GPUs that Spark has given to a task."""

from __future__ import annotations

import os

from hvd_keras._common import gpus
from hvd_keras.spark import _barrier


def get_available_devices() -> list[str]:
    """Returns the GPUs of the task that calls this, as Spark names them.

    They are the resource `gpu` of Spark (`spark.task.resource.gpu.amount`).
    A rank that `run` has started sees them alone (`CUDA_VISIBLE_DEVICES`),
    so a framework there counts them from 0.

    Returns:
        The address of each GPU, such as ["1"]; empty if Spark gave none.

    Raises:
        LaunchError: No task of Spark runs in this process.

    Example, in a function that `run` runs on tasks with a GPU each:

    >>> hvd_keras.spark.get_available_devices()  # doctest: +SKIP
    ['0']
    """
    return _barrier.gpus_of_task(_barrier.present_task())


def visible_devices(addresses: list[str]) -> dict[str, str]:
    """Returns the variable that shows CUDA these GPUs alone.

    Args:
        addresses: What Spark calls them: their numbers among the GPUs that
            this process may see. None leaves all as it is.
    """
    if not addresses:
        return {}
    seen = gpus.visible(os.environ) if gpus.VARIABLE in os.environ else []
    if all(one.isdigit() and int(one) < len(seen) for one in addresses):
        addresses = [seen[int(one)] for one in addresses]
    return {gpus.VARIABLE: ",".join(addresses)}
