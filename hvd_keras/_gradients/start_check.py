"""Compares the variables of an optimizer over the ranks in its first step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hvd_keras import _backends
from hvd_keras._backends.options import path_of
from hvd_keras._job import state
from hvd_keras._keras import names as private
from hvd_keras._values import agreement, checksums, first_values
from hvd_keras._values.first_values import Value
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet

# In a loop.
CURE = "Call `hvd.broadcast_variables`"


class StartCheck:
    """Compares variables once in each membership of the job.

    Ranks that train different weights with equal gradients stay apart.
    """

    def __init__(self) -> None:
        self.is_off = False
        self._generation: int | None = None
        self._num_attempts = 0
        self._num_late = 0  # see `_compare_late`

    def is_due(self) -> bool:
        """Whether the ranks have to compare; the same on all ranks."""
        return not self.is_off and self._generation != state.generation()

    def note(self, is_equal: bool = True) -> None:
        """Notes whether the ranks have compared, or need not."""
        self._generation = state.generation() if is_equal else None
        self._num_attempts = 0

    def __call__(
        self,
        optimizer: Any,
        variables: Iterable[Any],
        local_variables: Iterable[Any],
        process_set: ProcessSet,
    ) -> None:
        """Compares what `optimizer` trains, and its own variables.

        A step may be called or traced here. In the first trace on TensorFlow,
        variables may have no values yet; then a second trace follows.

        Raises:
            MismatchError: They differ; on all ranks.
        """
        if self.is_off:
            self._compare_late(variables, process_set)
        if not self.is_due():
            return
        if process_set.size() == 1:
            self.note()
            return
        compared = [
            *variables,
            *shared_variables(
                optimizer.variables,
                optimizer,
                local_variables,
                are_apart=optimizer.hvd_is_apart,
            ),
        ]
        backend = _backends.current()
        values = [(repr(path_of(v)), backend.peek(v)) for v in compared]
        known = [
            (label, checksums.checksum(value))
            for label, value in values
            if value is not None
        ]
        are_known = len(known) == len(values)
        check = checksums.comparing(known if are_known else None, process_set)
        (difference,) = agreement.together(
            "DistributedOptimizer/start", [check], process_set
        )
        if difference is not None:
            raise unequal_start(difference)
        self._num_attempts += 1
        if are_known or not backend.has_values_later or self._num_attempts > 1:
            self.note()

    def _compare_late(
        self, variables: Iterable[Any], process_set: ProcessSet
    ) -> None:
        """Tells of a difference, unless the program broadcasts after a step."""
        backend, generation = _backends.current(), state.generation()
        if self._generation != generation:
            self._generation, self._num_late = generation, 0
        is_second = self._num_late == 1 and backend.has_values_later
        is_due = self._num_late == 0 or is_second
        if not is_due or not first_values.are_compared(process_set):
            return
        found = first_values.compare(
            "DistributedOptimizer/first_values",
            [Value.of(repr(path_of(v)), backend.peek(v)) for v in variables],
            process_set,
        )
        first_values.note(found, CURE, process_set)
        # Without values, a second trace follows.
        self._num_late += 2 if found.are_known else 1


def shared_variables(
    variables: Sequence[Any],
    optimizer: Any,
    local_variables: Iterable[Any],
    *,
    are_apart: bool = False,
) -> list[Any]:
    """Returns those variables of an optimizer that are equal on all ranks.

    A rank has its own sums of gradients, and slots of its local variables.

    Args:
        variables: Variables of `optimizer`, or of one around it.
        optimizer: The optimizer; not a `LossScaleOptimizer`.
        local_variables: The variables that it trains on this rank alone.
        are_apart: Whether only the ranks of a host share its slots now.
    """
    own = {id(each) for each in private.gradient_accumulators_of(optimizer)}
    for each in local_variables:
        own.update(map(id, private.slots_of(optimizer, each)))
    if are_apart:
        own.update(id(each) for each in variables if len(each.shape))
    return [each for each in variables if id(each) not in own]


def unequal_start(difference: str) -> MismatchError:
    """Returns the error for ranks that begin with different weights."""
    if "learning_rate'" in difference.partition(",")[0]:
        return MismatchError(
            "All ranks must begin to train with the same learning rate: it "
            f"must not depend on the rank. Received: {difference}."
        )
    return MismatchError(
        "All ranks must begin to train with the same weights. Add "
        "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)` to the callbacks "
        "of `fit`, or call `hvd.broadcast_variables` before the first step. "
        f"Received: {difference}."
    )
