"""The state of a training run on all ranks, in one file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, _native, basics
from hvd_keras._backends.options import path_of
from hvd_keras._common import damage, files, owners
from hvd_keras._values import agreement
from hvd_keras.callbacks import _meetings
from hvd_keras.callbacks._background import (
    BackgroundWriter,
    claim,
    wait_for_all,
)
from hvd_keras.callbacks._rank_zero import on_rank_zero
from hvd_keras.data.position import Position
from hvd_keras.exceptions import DamagedFileError
from hvd_keras.variables import as_bytes, assign_bytes

_NAME = "BackupAndRestore"
_RANDOM = "random"  # a row for each rank; empty if variables hold all


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a training run goes on.

    Args:
        epoch: The next epoch of `fit`.
        batch: The batches of it that are done.
        data: The position in data of `hvd.shard`; None if unknown.
        size: The number of ranks when it was saved.
        num_unsaved: The batches since a save was due.
    """

    epoch: int
    batch: int
    data: Position | None = None
    size: int = 0
    num_unsaved: int = 0


class TrainingState:
    """Writes and reads the variables of a model that trains.

    A variable that is equal on all ranks is written once. Others, such as sums
    of gradients and seeds, are written for each rank. All methods are
    collective. If another number of ranks restores the variables,

    - those that are equal on all ranks have their values;
    - each rank gets the mean of other floating-point ones (moving statistics,
      sums of gradients), so that the mean over the ranks stays the same;
    - states of metrics keep their sum over the ranks, or their mean if they do
      not add up;
    - the first ranks get their own integers (seeds), new ranks keep theirs.

    Args:
        model: The model; built.
        path: The file; rank 0 must see it.
    """

    def __init__(self, model: keras.Model, path: str) -> None:
        self._model = model
        self._path = path
        self._writer = BackgroundWriter(f"{_NAME}/write", path, is_spare=True)

    def save(self, place: Progress) -> None:
        """Replaces the file by one for a run that goes on at `place`.

        It is written in a thread, after the last one. The file before stays
        beside it. If the disk is full, a warning says so.

        Raises:
            FileInUseError: On rank 0: another job has taken the file.
            HvdError: On the other ranks: that.
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
        random = _backends.current().random_state()
        if random.size:
            (random,) = _native.core().allgather(
                f"{_NAME}/random", [random[np.newaxis]]
            )
        header = {
            "position": [place.epoch, place.batch],
            "data": place.data and dataclasses.asdict(place.data),
            "size": basics.size(),
            "unsaved": place.num_unsaved,
            "differing": differing,
            "variables": _describe(variables),
            "metrics": _describe(metrics),
        }
        if basics.rank() == 0:
            # Those of JAX and torch may be the memory of the variables.
            values = [np.array(value) for value in values]

        def begin() -> None:
            self._writer.begin(lambda: self._write(header, values, random))

        on_rank_zero(f"{_NAME}/write", begin)

    def finish(self, *, deletes: bool = False) -> bool:
        """Waits for the file, then lets other jobs write. It raises as `save`.

        Args:
            deletes: Whether to delete the file then.

        Returns:
            Whether the file has been written.
        """
        if deletes:
            return self._writer.finish(self._delete)
        return self._writer.finish()

    def begin(self) -> Progress | None:
        """Makes this job the only one that writes the file.

        Returns:
            Where to go on; None if there is no file.

        Raises:
            DamagedFileError: On rank 0: the file is damaged, and there is none
                before it.
            FileInUseError: On rank 0: another job writes it.
            InvalidArgumentError: On rank 0: something else is in its place.
            OSError: On rank 0: nothing can be written there.
            HvdError: On the other ranks: that.
        """
        claim(_NAME, self._path, self._check_places)
        header = on_rank_zero(f"{_NAME}/position", self._read_header)
        if header is None:
            return None
        epoch, batch = header["position"]
        data = header.get("data")
        return Progress(
            int(epoch),
            int(batch),
            Position(**data) if data else None,
            int(header["size"]),
            int(header.get("unsaved", 0)),
        )

    def _delete(self) -> None:
        for path in self._paths():
            for each in (path, damage.put_aside(path)):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(each)
        owners.release(self._path)
        with contextlib.suppress(OSError):  # not empty: not ours alone
            os.rmdir(os.path.dirname(self._path))

    def restore(self, *, only_metrics: bool = False) -> None:
        """Gives all variables their values from the file.

        Args:
            only_metrics: Whether to leave out all but those of metrics.

        Raises:
            ValueError: The file is of another model.
        """
        optimizer = self._model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        variables, metrics = self._variables()
        num_own = len(variables)
        header, arrays = self._read(num_own if only_metrics else 0)
        self._check(header, variables)
        # The first step builds the metrics; before it they need no values.
        if header["metrics"] == _describe(metrics):
            variables += metrics
        for index, variable in enumerate(variables):
            if only_metrics and index < num_own:
                continue
            info = _backends.current().describe(variable)
            is_own = index in header["differing"]
            copies = header["size"] if is_own else 1
            value: Any = np.zeros(info.num_bytes * copies, np.uint8)
            if basics.rank() == 0:
                value = arrays.pop(str(index)).reshape(-1)
            (value,) = _native.core().broadcast(f"{_NAME}/value", [value], 0)
            adds_up = (
                index >= num_own
                and getattr(variable, "aggregation", "") == "sum"
            )
            if is_own or adds_up:
                value = np.broadcast_to(
                    value.reshape(copies, -1), (header["size"], info.num_bytes)
                )
                value = own_value(value, np.dtype(info.dtype), adds_up=adds_up)
            if value is not None:
                assign_bytes(variable, info, value)
        if not only_metrics:
            _meetings.note_restored(self._model)
            self._restore_random(header["size"], arrays)

    def restore_random(self) -> None:
        """Gives the random state that no variable holds, if there is one."""
        if not _backends.current().random_state().size:
            return
        header, arrays = self._read(sum(map(len, self._variables())))
        self._restore_random(header["size"], arrays)

    def _restore_random(
        self, size: int, arrays: dict[str, np.ndarray[Any, Any]]
    ) -> None:
        backend = _backends.current()
        num_bytes = backend.random_state().size
        if not num_bytes:
            return
        states = np.zeros((size, num_bytes), np.uint8)
        found = arrays.get(_RANDOM)  # on rank 0
        is_known = np.zeros(1, np.uint8)
        if found is not None and found.shape == states.shape:
            states, is_known[0] = found, 1
        states, is_known = _native.core().broadcast(
            f"{_NAME}/random", [states, is_known], 0
        )
        if is_known[0] and basics.rank() < size:
            backend.set_random_state(states[basics.rank()])

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """Variables of the model and its optimizer, and those of metrics."""
        model = self._model
        optimizer = getattr(model.optimizer, "variables", [])
        metrics = {id(v): v for v in model.metrics_variables}
        outer = _meetings.outer_variables_of(model)
        own = [*model.variables, *optimizer, *outer]
        variables = {id(v): v for v in own}
        own = [v for key, v in variables.items() if key not in metrics]
        return own, list(metrics.values())

    def _paths(self) -> list[str]:
        """Returns the paths of the file and of the one before."""
        return [self._path, files.previous(self._path)]

    def _check_places(self) -> None:
        for path in self._paths():
            files.check_place(path)

    def _read_header(self) -> dict[str, Any] | None:
        wait_for_all()
        return damage.read_newest(self._paths(), _read_whole)

    def _read(
        self, first: int
    ) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Returns the header, and on rank 0 the arrays from a variable on."""
        arrays: dict[str, np.ndarray[Any, Any]] = {}

        def read() -> Any:
            path = next(filter(os.path.exists, self._paths()))
            with np.load(path, allow_pickle=False) as file:
                for name in file.files:
                    if not name.isdigit() or int(name) >= first:
                        arrays[name] = file[name]
            return json.loads(arrays.pop("header").tobytes())

        return on_rank_zero(f"{_NAME}/read", read), arrays

    def _write(
        self,
        header: dict[str, Any],
        values: list[np.ndarray[Any, Any]],
        random: np.ndarray[Any, Any],
    ) -> None:
        owners.claim(self._path)
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        arrays = {str(index): value for index, value in enumerate(values)}
        arrays[_RANDOM] = random
        with files.replacing(self._path, keeps_previous=True) as path:
            with open(path, "wb") as file:
                np.savez(file, header=text, **arrays)  # type: ignore[arg-type]
            owners.claim(self._path)

    def _check(self, header: dict[str, Any], variables: list[Any]) -> None:
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


def own_value(
    copies: np.ndarray[Any, Any], dtype: np.dtype[Any], *, adds_up: bool
) -> np.ndarray[Any, Any] | None:
    """Returns this rank's value of a variable that differed by rank.

    Args:
        copies: The bytes of each rank that saved, one a line.
        dtype: Of the variable.
        adds_up: Whether the sum over the ranks must stay the same, not the
            mean.

    Returns:
        The bytes; None if this rank is to keep its own value.
    """
    rank, size = basics.rank(), basics.size()
    if len(copies) == size:
        return copies[rank]
    is_integer = dtype.kind in "iub"
    if is_integer and not adds_up:
        return copies[rank] if rank < len(copies) else None
    total = np.ascontiguousarray(copies).view(dtype)
    total = total.astype(np.int64 if is_integer else np.float64).sum(axis=0)
    if is_integer:
        value = total // size + (rank < total % size)
    else:
        value = total / (size if adds_up else len(copies))
    return value.astype(dtype).view(np.uint8)


def _read_whole(path: str) -> dict[str, Any]:
    """Checks a whole file, and returns its header."""
    damage.check_zip(path)
    with np.load(path, allow_pickle=False) as file:
        if "header" not in file.files:
            raise DamagedFileError("it is no backup")
        header: dict[str, Any] = json.loads(file["header"].tobytes())
    return header


def _describe(variables: list[Any]) -> list[list[Any]]:
    """Dtypes and shapes, in a form that JSON keeps unchanged."""
    infos = map(_backends.current().describe, variables)
    return [[info.dtype, list(info.shape)] for info in infos]
