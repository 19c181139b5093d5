"""Compares parameters over the ranks in the first step of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from hvd_keras._job import state
from hvd_keras._values import first_values
from hvd_keras._values.first_values import Value
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet
from hvd_keras.torch._memory import as_array

_CURE = (
    "Call `hvd_keras.torch.broadcast_parameters(model.state_dict(), "
    "root_rank=0)`"
)


class StartCheck:
    """Compares once in each membership of the job, and again if they differ.

    Programs for Horovod may broadcast after their first step.
    """

    def __init__(self) -> None:
        self._generation: int | None = None
        self._is_apart = False

    def __call__(
        self,
        name: str,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        process_set: ProcessSet,
    ) -> None:
        """Compares parameters before a step; one that has joined takes no part.

        Raises:
            MismatchError: They differ in the second step too; on all ranks.
        """
        generation = state.generation()
        is_known = self._generation == generation and not self._is_apart
        if is_known or not first_values.are_compared(process_set):
            return
        was_apart = self._is_apart and self._generation == generation
        self._generation = generation
        found = first_values.compare(
            f"{name}/first_values",
            [Value.of(repr(label), _held(p)) for label, p in named_parameters],
            process_set,
        )
        self._is_apart = found.difference is not None
        if self._is_apart and was_apart:
            raise MismatchError(
                f"All ranks must train the same weights. {_CURE} before the "
                f"first step. Received: {found.difference}."
            )
        first_values.note(found, _CURE, process_set, were_apart=was_apart)


def _held(parameter: torch.Tensor) -> Any:
    if is_lazy(parameter):
        return None
    return as_array(parameter.detach().cpu().contiguous())
