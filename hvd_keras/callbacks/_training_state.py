"""The state of a training run on all ranks, in one file."""

from __future__ import annotations

import json
import os
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, _native, basics
from hvd_keras._backends.options import path_of
from hvd_keras._common.files import replacing
from hvd_keras._values import agreement
from hvd_keras.callbacks._rank_zero import on_rank_zero
from hvd_keras.variables import as_bytes, assign_bytes

_NAME = "BackupAndRestore"


class TrainingState:
    """Writes and reads the variables of a model that trains.

    A variable that is equal on all ranks is written once. Others, such as sums
    of gradients and seeds, are written for each rank. All methods are
    collective.

    Args:
        model: The model; built.
        path: The file; rank 0 must see it.
    """

    def __init__(self, model: keras.Model, path: str) -> None:
        self._model = model
        self._path = path

    def save(self, position: tuple[int, int]) -> None:
        """Replaces the file.

        Args:
            position: The next epoch, and the next batch in it.
        """
        variables, metrics = self._variables()
        values = [as_bytes(variable) for variable in [*variables, *metrics]]
        differing = agreement.differing_indices(f"{_NAME}/digests", values)
        parts = []
        if differing:
            parts = _native.core().allgather(
                f"{_NAME}/parts",
                [values[index][np.newaxis] for index in differing],
            )
        for index, part in zip(differing, parts, strict=True):
            values[index] = np.asarray(part)
        header = {
            "position": list(position),
            "size": basics.size(),
            "differing": differing,
            "variables": _describe(variables),
            "metrics": _describe(metrics),
        }
        on_rank_zero(f"{_NAME}/write", lambda: self._write(header, values))

    def position(self) -> tuple[int, int] | None:
        """Returns the next epoch and batch, or None if there is no file."""
        header = on_rank_zero(f"{_NAME}/position", self._read_header)
        if header is None:
            return None
        epoch, batch = header["position"]
        return int(epoch), int(batch)

    def restore(self) -> None:
        """Gives all variables their values from the file.

        Raises:
            ValueError: The file is of another model or number of ranks.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        header = on_rank_zero(f"{_NAME}/read", lambda: self._read(arrays))
        optimizer = self._model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        variables, metrics = self._variables()
        self._check(header, variables)
        # The first step builds the metrics; before it they need no values.
        if header["metrics"] == _describe(metrics):
            variables += metrics
        for index, variable in enumerate(variables):
            info = _backends.current().describe(variable)
            is_own = index in header["differing"]
            copies = basics.size() if is_own else 1
            value = np.zeros(info.num_bytes * copies, np.uint8)
            if basics.rank() == 0:
                value = arrays.pop(str(index)).reshape(-1)
            (value,) = _native.core().broadcast(f"{_NAME}/value", [value], 0)
            if is_own:
                value = value.reshape(basics.size(), -1)[basics.rank()]
            assign_bytes(variable, info, value)

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """Variables of the model and its optimizer, and those of metrics."""
        model = self._model
        optimizer = getattr(model.optimizer, "variables", [])
        metrics = {id(v): v for v in model.metrics_variables}
        variables = {id(v): v for v in [*model.variables, *optimizer]}
        own = [v for key, v in variables.items() if key not in metrics]
        return own, list(metrics.values())

    def _read_header(self) -> dict[str, Any] | None:
        if not os.path.exists(self._path):
            return None
        with np.load(self._path, allow_pickle=False) as file:
            header: dict[str, Any] = json.loads(file["header"].tobytes())
        return header

    def _read(self, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
        with np.load(self._path, allow_pickle=False) as file:
            arrays.update(file)
        return json.loads(arrays.pop("header").tobytes())

    def _write(
        self, header: dict[str, Any], values: list[np.ndarray[Any, Any]]
    ) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        arrays = {str(index): value for index, value in enumerate(values)}
        with replacing(self._path) as path, open(path, "wb") as file:
            np.savez(file, header=text, **arrays)  # type: ignore[arg-type]

    def _check(self, header: dict[str, Any], variables: list[Any]) -> None:
        if header["size"] != basics.size():
            raise ValueError(
                "A run must go on with the number of ranks of its backup. "
                f"Received: {basics.size()} ranks; {self._path!r} is of "
                f"{header['size']}."
            )
        mine = _describe(variables)
        if mine == header["variables"]:
            return
        index, (theirs, ours) = agreement.first_difference(
            [header["variables"], mine]
        )
        path = path_of(variables[index]) if ours else "nothing"
        raise ValueError(
            "The model and its optimizer must be those that were backed up. "
            f"Received: {path!r} {ours} as variable {index}, which is "
            f"{theirs} in {self._path!r}."
        )


def _describe(variables: list[Any]) -> list[list[Any]]:
    """Dtypes and shapes, in a form that JSON keeps unchanged."""
    infos = map(_backends.current().describe, variables)
    return [[info.dtype, list(info.shape)] for info in infos]
