"""Sends variables and objects between ranks, as in `horovod.tensorflow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_keras import objects
from hvd_keras import variables as variables_module
from hvd_keras._common.autograph import as_it_is
from hvd_keras.compat._forwarding import forwarding
from hvd_keras.process_set import ProcessSet, global_process_set

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@as_it_is
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives the variables of all ranks the values they have on `root_rank`.

    Args:
        variables: Keras or TensorFlow variables, or a function that returns
            them, such as `optimizer.variables` of Keras 2.
        root_rank: The rank whose values all get.
        process_set: The ranks that take part.
        inplace: No effect, because variables are always assigned in place.

    Returns:
        An operation if a graph is being built, else None.
    """
    return variables_module.broadcast_variables(
        variables() if callable(variables) else variables,
        root_rank,
        process_set=process_set,
        inplace=inplace,
    )


@as_it_is
def broadcast_global_variables(root_rank: int) -> Any:
    """`hvd_keras.broadcast_global_variables`."""
    return variables_module.broadcast_global_variables(root_rank)


# Sessions are ignored, because objects travel outside of TensorFlow.
broadcast_object = forwarding(
    objects.broadcast_object,
    "obj root_rank session name process_set",
    root_rank=0,
)
allgather_object = forwarding(
    objects.allgather_object, "obj session name process_set"
)


@as_it_is
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts an object."""
    return lambda obj: broadcast_object(
        obj, root_rank, session, name, process_set
    )


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts TensorFlow 1's global variables when a session begins.

    Args:
        root_rank: The rank whose values all get.
        device: Device of the broadcasts; "" lets TensorFlow choose.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._operation: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            with tf.device(self.device or None):
                self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)
