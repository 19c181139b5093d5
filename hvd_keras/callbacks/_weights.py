"""Compares the weights that the ranks have trained, when an epoch has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, basics
from hvd_keras._backends.options import path_of
from hvd_keras._common import log
from hvd_keras._gradients import model_state
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import names as private
from hvd_keras._values import agreement, checksums
from hvd_keras._values.agreement import Check
from hvd_keras.callbacks import _rates
from hvd_keras.exceptions import MismatchError

# What a comparison may cost of the time of an epoch.
_MOST = 0.01
_BYTES_A_SECOND = 0.5e9  # until it was measured


class TrainedWeights:
    """What distributed optimizers have trained, and their own variables.

    It leaves out local variables, and learning rates, which have a comparison
    of their own.

    Args:
        model: The model.
        local: More variables that each rank keeps for itself.
    """

    def __init__(self, model: Any, local: Iterable[Any]) -> None:
        self._local = [*local]
        self._model = model
        self._seconds: float | None = None

    def _variables(self) -> list[Any]:
        # Slots are among them, unless hosts have just trained apart.
        variables: list[Any] = []
        for part in _rates.parts_of(self._model):
            own = [*self._local, *part.hvd_local]
            rate = part.learning_rate
            variables += model_state.without(
                own, private.trainable_variables_of(part)
            )
            variables += model_state.without(
                [rate] if isinstance(rate, keras.Variable) else [],
                model_state.shared_variables_of(part, own),
            )
        if keras_calls.has_front():
            # A step of the script may train what no optimizer knows.
            variables += model_state.without(
                self._local, self._model.trainable_variables
            )
        unique = {private.identity_of(each): each for each in variables}
        return list(unique.values())

    def numbers(self) -> list[int]:
        """Returns a checksum of each."""
        begin = time.monotonic()
        read = _backends.current().read
        numbers = [checksums.checksum(read(v)) for v in self._variables()]
        self._seconds = time.monotonic() - begin
        return numbers

    def are_cheap(self, epoch_seconds: float) -> bool:
        """Whether they cost nearly nothing beside an epoch."""
        seconds = self._seconds
        if seconds is None:
            describe = _backends.current().describe
            num_bytes = sum(describe(v).num_bytes for v in self._variables())
            seconds = 1e-3 + num_bytes / _BYTES_A_SECOND
        return seconds <= _MOST * epoch_seconds

    def comparing(self, is_due: bool, callbacks: Any) -> Check:
        """Compares them over the ranks that are due.

        Args:
            is_due: Whether this rank takes their checksums.
            callbacks: Those of the training.

        Raises:
            MismatchError: The ranks have different weights.
        """
        numbers = self.numbers() if is_due else []
        digest = checksums.checksum(np.array(numbers)) if numbers else None
        if len(set((yield digest)) - {None}) < 2:
            return
        restores = sorted(
            type(each).__name__
            for each in callbacks
            if getattr(each, "restore_best_weights", False)
        )
        rates = _rates.rates_of(self._model)
        gathered = yield (numbers, rates, restores)
        lists = [each for each, _, _ in gathered if each]
        index, _ = agreement.first_difference(lists)
        ranks = [rank for rank, (each, _, _) in enumerate(gathered) if each]
        mine = None
        if numbers and index < len(numbers):
            variable = self._variables()[index]
            value = np.asarray(_backends.current().read(variable), np.float64)
            mine = path_of(variable), f"{np.linalg.norm(value):.9g}"
        told = yield mine
        known = [each for each in told if each is not None]
        if not known:
            return
        path, _ = known[0]
        having = [rank for rank in ranks if told[rank] is not None]
        norms = [told[rank][1] for rank in having]
        if len(set(norms)) == 1:
            norms = [
                f"{norms[0]} (checksum {gathered[rank][0][index]:08x})"
                for rank in having
            ]
        where = f"{path!r} has the norm {agreement.by_rank(norms, having)}"
        each_rates = [each for _, each, _ in gathered]
        of_rates = _rates.difference_in(each_rates)
        if of_rates is None and len(set(map(tuple, each_rates))) > 1:
            return  # a schedule that hosts of other kinds round differently
        if any(each != restores for _, _, each in gathered):
            if basics.rank() == 0:
                log.mistake(
                    "The weights differ by rank after training, because a "
                    "callback has restored its best ones on some ranks alone. "
                    "Give it to all ranks, with "
                    "`hvd.callbacks.MetricAverageCallback()`. Received: "
                    f"{where}."
                )
            return
        if of_rates is not None:
            _rates.refuse(f"{of_rates}, and {where}")
        raise MismatchError(
            "All ranks must have equal weights after each epoch. Received: "
            f"{where}. A rank has changed them by itself (a callback, or a "
            "`train_step` that adds its own gradients to them), or has trained "
            f"with another learning rate. {_rates.cure()}"
        )


def tell_of_different_rates(difference: str | None) -> None:
    """Warns of rates that differ after the last step."""
    if difference is not None and basics.rank() == 0:
        log.mistake(
            "The learning rates differ by rank after training. Its weights are "
            f"equal. Received: {difference}. {_rates.cure_of_rates()}"
        )
