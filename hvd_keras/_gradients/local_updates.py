"""What a user says of local updates, and the outer optimizer in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends
from hvd_keras._backends.options import ReduceOptions
from hvd_keras._keras import calls as keras_calls
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average

AVERAGE = "average"


@dataclasses.dataclass(frozen=True)
class LocalUpdates:
    """Lets hosts train apart, and average their weights every few steps.

    This is for hosts on a slow network: they send 1/`every` of the bytes. The
    ranks of a host reduce their gradients in each step. Between the hosts
    nothing travels until they *meet*: after `every` steps, all weights become
    their mean over the ranks (post-local SGD). The optimizer's slots, such as
    momentum, stay those of the host. On one host, nothing changes.

    Hosts also meet before validation, at the end of each epoch, and before
    `BackupAndRestore`, `ModelCheckpoint`, `hvd.elastic.Elastic` or Keras's
    callbacks that save. Then they average moving statistics, too. A checkpoint
    holds the mean of the slots. So all ranks have equal weights, bit for bit,
    whenever somebody looks at them. Elsewhere `Model.save` raises an error; a
    callback of yours may call `meet()` before.

    It works in `fit`, on all backends, and needs no callback. Hosts need data
    that are dealt alike, as `hvd.shard` does: with other classes on each host,
    accuracy falls. With `every=1` and plain SGD, the weights are those of one
    process on the whole batch. With another optimizer, with clipping, or with
    more steps they are not: a host clips by its own gradients.

    Args:
        every: The number of updates between two meetings, >= 1. With
            `backward_passes_per_step`, an update has several batches; with
            `steps_per_execution`, hosts meet after an execution.
        within: Which ranks reduce their gradients in each step: "host"; "rank",
            if each rank trains alone; or the `ProcessSet` that this rank is in.
            Each rank is in one of these sets.
        outer: "average", or a Keras optimizer, which gets the way from the mean
            to the weights of the last meeting as gradient. `SGD(0.7,
            momentum=0.9, nesterov=True)` is DiLoCo. It needs long training,
            10,000 steps and more; in short ones it loses accuracy.

    Raises:
        ValueError: A value is invalid.
        TypeError: `within` or `outer` has the wrong type.

    Example:

    >>> optimizer = hvd.DistributedOptimizer(
    ...     keras.optimizers.Adam(1e-3),
    ...     local_updates=hvd.LocalUpdates(every=20),
    ... )
    """

    every: int
    within: str | ProcessSet = "host"
    outer: Any = AVERAGE

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise ValueError(
                "`every` must be an integer >= 1. Received: "
                f"every={self.every!r}."
            )
        is_set = isinstance(self.within, ProcessSet)
        if not is_set and self.within not in ("host", "rank"):
            raise ValueError(
                '`within` must be "host", "rank" or the ProcessSet of this '
                f"rank. Received: within={self.within!r}."
            )
        is_plain = isinstance(self.outer, keras.optimizers.Optimizer)
        is_plain = is_plain and not hasattr(self.outer, "hvd_settings")
        if self.outer != AVERAGE and not is_plain:
            raise TypeError(
                f"`outer` must be {AVERAGE!r} or a Keras optimizer that is not "
                f"distributed. Received: outer={self.outer!r}."
            )

    def meet(self) -> None:
        """Lets the hosts meet now, in a running `fit`.

        All ranks call it after the same step, for example in
        `on_train_batch_end` of a callback that saves the model on one rank.
        """
        for call in keras_calls.running_calls():
            call.meet(True)

    def described(self) -> dict[str, Any]:
        """Returns what must be equal on all ranks."""
        is_set = isinstance(self.within, ProcessSet)
        outer = self.outer
        if outer != AVERAGE:
            outer = {
                "class_name": type(outer).__name__,
                "config": outer.get_config(),
            }
        return {
            "every": self.every,
            "within": "a ProcessSet" if is_set else self.within,
            "outer": outer,
        }


def check(updates: Any, options: ReduceOptions) -> None:
    """Refuses what does not go together.

    Raises:
        TypeError: `updates` is something else.
        ValueError: `options` excludes local updates.
    """
    if updates is None:
        return
    if not isinstance(updates, LocalUpdates):
        raise TypeError(
            "`local_updates` must be None or an `hvd.LocalUpdates`. Received: "
            f"local_updates={updates!r}."
        )
    if options.op != Average:
        raise ValueError(
            "`op` must be Average with `local_updates`, which averages "
            "weights. Received: "
            f"op={options.op.name}. Use Average; it also makes losses that "
            "are sums those of one process."
        )
    if options.process_set is not global_process_set:
        raise ValueError(
            "`process_set` must be that of all ranks with `local_updates`: all "
            "of them meet. For ranks that train together between two "
            "meetings, use `hvd.LocalUpdates(..., within=process_set)`. "
            f"Received: process_set={options.process_set}."
        )


class Outer:
    """An optimizer that trains the common weights, a step at each meeting.

    Args:
        optimizer: Of Keras; not distributed.
        weights: The variables of the model.
    """

    def __init__(self, optimizer: Any, weights: list[Any]) -> None:
        self._optimizer = optimizer
        read = _backends.current().read
        self._common = [
            keras.Variable(read(each), dtype=each.dtype, name=each.name)
            for each in weights
        ]
        if not optimizer.built:
            optimizer.build(self._common)
        # Whether a file has given the common weights their values.
        self.is_restored = False

    @property
    def variables(self) -> list[Any]:
        return [*self._common, *self._optimizer.variables]

    def begin(self, weights: list[Any]) -> None:
        """Call this when a `fit` begins."""
        if not self.is_restored:
            _copy(weights, self._common)
        self.is_restored = False

    def step(self, weights: list[Any]) -> None:
        """Replaces the mean of the weights by what the optimizer says."""
        subtract = keras.ops.subtract
        self._optimizer.apply(
            [
                subtract(common.value, mean.value)
                for common, mean in zip(self._common, weights, strict=True)
            ],
            self._common,
        )
        _copy(self._common, weights)


def _copy(values: list[Any], variables: list[Any]) -> None:
    backend = _backends.current()
    for value, variable in zip(values, variables, strict=True):
        # On JAX, a variable could lose an array that it shares to a step.
        backend.assign(variable, np.array(backend.read(value)))
