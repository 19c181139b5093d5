"""What a commit holds of a model that trains."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import _backends
from hvd_keras._backends.options import path_of
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._keras import models
from hvd_keras._values import agreement, object_format
from hvd_keras.callbacks import _meetings
from hvd_keras.elastic._commits import Array, Commit
from hvd_keras.variables import as_bytes, assign_bytes


class TrainingState:
    """Reads and sets the variables of a model, its optimizers and metrics.

    Args:
        model: The model; built.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # The first commit has its slots, so all have.
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)

    def describe(self) -> dict[str, Any]:
        """Describes what `parts` returns, for the header of a commit."""
        variables, metrics = self._variables()
        return {
            "variables": _describe(variables),
            "metrics": _describe(metrics),
        }

    def parts(self) -> list[Array]:
        """Returns the values of all variables, and other random states."""
        variables, metrics = self._variables()
        values = [as_bytes(each) for each in [*variables, *metrics]]
        return [*values, _backends.current().random_state()]

    def kept(self) -> Commit:
        """Returns a copy of the state, for this rank alone."""
        header = {**self.describe(), "stream": 0}
        data = np.concatenate([part.reshape(-1) for part in self.parts()])
        return Commit.of((0, 0), object_format.encode(header), data)

    def restore(self, commit: Commit, *, is_own: bool, stream: int) -> None:
        """Sets all variables but those of metrics.

        Args:
            commit: A commit of this rank or of another one.
            is_own: Whether this rank takes what differs between ranks as it
                is. Else its seeds are moved.
            stream: The number of this rank's seeds.

        Raises:
            ValueError: The commit is of another model.
        """
        header = commit.read_header()
        variables, _ = self._variables()
        _check(header["variables"], variables)
        begin = 0
        for variable in variables:
            begin = _assign(variable, commit.data, begin)
        if is_own:
            self._restore_random(header, commit.data)
        else:
            self._move_seeds(stream - header["stream"])

    def restore_metrics(self, commit: Commit) -> None:
        """Sets the metrics to those of a running epoch."""
        header = commit.read_header()
        _, metrics = self._variables()
        if header["metrics"] != _describe(metrics):
            return  # the first step builds them
        begin = _num_bytes(header["variables"])
        for variable in metrics:
            begin = _assign(variable, commit.data, begin)

    def _restore_random(self, header: dict[str, Any], data: Array) -> None:
        begin = _num_bytes(header["variables"] + header["metrics"])
        if data[begin:].size:
            _backends.current().set_random_state(data[begin:])

    def _move_seeds(self, distance: int) -> None:
        weights = {id(weight) for weight in self._model.weights}
        for state in self._variables()[0]:
            is_of_optimizer = not any(
                state is each for each in self._model.variables
            )
            if id(state) in weights or is_of_optimizer:
                continue
            if tuple(state.shape) == (2,):  # a seed and its count of uses
                seed, count = np.asarray(_backends.current().read(state))
                state.assign([seed_of_rank(int(seed), distance), count])

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """Variables of the model and its optimizers, and those of metrics."""
        model = self._model
        metrics = {id(v): v for v in model.metrics_variables}
        variables = {id(v): v for v in model.variables}
        for optimizer in models.optimizers_of(model):
            variables.update((id(v), v) for v in optimizer.variables)
        outer = _meetings.outer_variables_of(model)
        variables.update((id(v), v) for v in outer)
        own = [v for key, v in variables.items() if key not in metrics]
        return own, list(metrics.values())


def _describe(variables: list[Any]) -> list[list[Any]]:
    infos = map(_backends.current().describe, variables)
    return [[info.dtype, list(info.shape)] for info in infos]


def _num_bytes(described: list[list[Any]]) -> int:
    return sum(
        int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        for dtype, shape in described
    )


def _assign(variable: Any, data: Array, begin: int) -> int:
    """Assigns the value that begins there; returns where the next one does."""
    info = _backends.current().describe(variable)
    end = begin + info.num_bytes
    assign_bytes(variable, info, data[begin:end])
    return end


def _check(theirs: list[list[Any]], variables: list[Any]) -> None:
    mine = _describe(variables)
    if mine == theirs:
        return
    index, (found, ours) = agreement.first_difference([theirs, mine])
    path = path_of(variables[index]) if ours else "nothing"
    raise ValueError(
        "The model and its optimizer must be those of the commit. Received: "
        f"{path!r} {ours} as variable {index}, which is {found} there."
    )
