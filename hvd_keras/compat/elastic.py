"""Horovod's elastic API by Horovod's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras import elastic
from hvd_keras._common.ignored import ignoring
from hvd_keras.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    State,
    run,
)

__all__ = [  # noqa: F822
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class ObjectState(elastic.ObjectState):
    """`hvd_keras.elastic.ObjectState`, with Horovod's arguments.

    Args:
        bcast_object: No effect: objects are broadcast by hvd_keras.
        get_rank: No effect.
        **kwargs: The attributes and their first values.
    """

    @ignoring("horovod.elastic.ObjectState", "bcast_object get_rank")
    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


def __getattr__(name: str) -> Any:
    # Late, for the others need Keras.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(elastic, name)
