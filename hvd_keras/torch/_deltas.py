"""Adasum of what the optimizers of the ranks did to the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Adasum
from hvd_keras.torch.grouped_allreduce import grouped_allreduce


class Deltas:
    """Lets each rank take its own step, then combines the steps.

    Args:
        parameters: The parameters of the optimizer.
        compression: In which form the steps travel.
        process_set: The ranks that take part.
    """

    passes = 1

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self._parameters = list(parameters)
        self._compression = compression
        self._process_set = process_set
        self._starts: list[torch.Tensor] = []

    def add(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Adds a parameter."""
        del name
        self._parameters.append(parameter)

    def before_step(self, *_: Any) -> None:
        """Keeps the parameters; called before `step`."""
        self._starts = [each.detach().clone() for each in self._parameters]

    @torch.no_grad()
    def after_step(self, *_: Any) -> None:
        """Replaces the step of this rank by that of all."""
        starts, self._starts = self._starts, []
        if self._process_set.included() is False:
            return
        deltas = [
            parameter - start
            for parameter, start in zip(self._parameters, starts, strict=True)
        ]
        try:
            combined = grouped_allreduce(
                deltas,
                Adasum,
                compression=self._compression,
                process_set=self._process_set,
            )
        except Exception:
            for parameter, start in zip(self._parameters, starts, strict=True):
                parameter.copy_(start)  # the step of a rank alone is none
            raise
        for parameter, start, delta in zip(
            self._parameters, starts, combined, strict=True
        ):
            parameter.copy_(start + delta)

    def synchronize(self) -> None:
        """Does nothing: the gradients stay those of the rank."""

    def check_zero_grad(self) -> None:
        """Does nothing: gradients are not reduced."""

    def skipping(self, skips: bool) -> None:
        """Refuses."""
        raise InvalidArgumentError(
            "`skip_synchronize()` must not be used with op=Adasum, which "
            "combines the steps of the ranks, not their gradients."
        )
