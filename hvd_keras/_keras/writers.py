"""Keras's own callbacks that write files, and `Model.save`, on many ranks.

| Private name | Used to |
|---|---|
| `ModelCheckpoint._save_model` | write nothing, or on one rank for all |
| `BackupAndRestore._save_model` | the same |
| `OrbaxCheckpoint._save_checkpoint` | the same |
| `_should_save_on_batch` of all three | know that they are about to save |
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common import files, paths
from hvd_keras._common.replacements import replace
from hvd_keras._keras.calls import Call, running_calls
from hvd_keras._keras.lookup import owner_of, require
from hvd_keras._keras.saving import saving_by

for _kind in (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.ModelCheckpoint,
):
    require(_kind, "_should_save_on_batch", ["self", "batch"])
require(keras.callbacks.BackupAndRestore, "_save_model", ["self"])
require(
    keras.callbacks.ModelCheckpoint,
    "_save_model",
    ["self", "epoch", "batch", "logs"],
)

# The attribute that holds the path of each callback.
_PATHS: dict[type, str] = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.BackupAndRestore: "backup_dir",
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.CSVLogger: "filename",
}
_Orbax: Any = getattr(keras.callbacks, "OrbaxCheckpoint", None)
if _Orbax is not None:
    require(_Orbax, "_save_checkpoint", ["self", "step", "logs"])
    require(_Orbax, "_should_save_on_batch", ["self", "batch"])
    _PATHS[_Orbax] = "directory"


class CheckpointOfAllRanks(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint, but `hvd_save` decides which rank saves."""

    def hvd_save(self, save: Callable[[], None]) -> None:
        """Calls `save`, or lets another rank do so."""
        raise NotImplementedError

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        save = super()._save_model
        self.hvd_save(lambda: save(epoch, batch, logs))


def path_of(callback: Any) -> tuple[str, str]:
    """Returns Keras's name and the path of a callback that writes files.

    Both are empty for other callbacks.
    """
    if not isinstance(callback, CheckpointOfAllRanks):
        for kind, attribute in _PATHS.items():
            path = str(getattr(callback, attribute, ""))
            if isinstance(callback, kind) and path not in ("", os.devnull):
                return kind.__name__, paths.real_path(path)
    return "", ""


def keep_from_writing(callback: Any, rank: int) -> None:
    """Keeps a callback from writing the files that another rank writes.

    `TensorBoard` writes into a directory of the rank. The others write nothing.
    """
    if isinstance(callback, keras.callbacks.TensorBoard):
        callback.log_dir = os.path.join(callback.log_dir, f"rank_{rank}")
    elif isinstance(callback, keras.callbacks.CSVLogger):
        callback.filename = os.devnull
    elif isinstance(callback, keras.callbacks.BackupAndRestore):
        callback._save_model = lambda: None
        callback.delete_checkpoint = False
    elif _Orbax is not None and isinstance(callback, _Orbax):
        callback._save_checkpoint = lambda *args, **kw: None
    else:
        save = callback._save_model

        def save_model(*args: Any, **kw: Any) -> None:
            # It decides and notes what it would save.
            with saving_by(callback.model, lambda method: _save_nothing):
                save(*args, **kw)

        callback._save_model = save_model


def frequencies_of(callbacks: list[Any]) -> list[tuple[str, Any]]:
    """Returns Keras's names of callbacks that save, and how often they do."""
    return [
        (kind.__name__, callback.save_freq)
        for callback in callbacks
        for kind in _PATHS
        if isinstance(callback, kind) and hasattr(callback, "save_freq")
    ]


def call_before_saving(fit: Call, function: Callable[[], None]) -> None:
    """Calls `function` before a callback saves in the middle of an epoch."""
    for callback in fit.callbacks:
        if not frequencies_of([callback]):
            continue
        should_save = require(callback, "_should_save_on_batch", ["batch"])

        def should_save_now(
            batch: int, should_save: Callable[[int], bool] = should_save
        ) -> bool:
            is_due = should_save(batch)
            if is_due:
                function()
            return is_due

        own = vars(callback)
        own["_should_save_on_batch"] = should_save_now
        fit.at_end.append(functools.partial(own.pop, "_should_save_on_batch"))


def _save_nothing(*args: Any, **kw: Any) -> None:
    pass


def patch_saving(has_others: Callable[[], bool]) -> None:
    """Makes models replace files as a whole.

    Args:
        has_others: Whether other processes may write the same file now.
    """
    for method in ("save", "save_weights"):
        whole = functools.partial(_saving_whole, has_others)
        replace(owner_of(method), method, whole)


def _saving_whole(
    has_others: Callable[[], bool], original: Callable[..., Any]
) -> Callable[..., Any]:
    def save(self: Any, filepath: Any, *args: Any, **kw: Any) -> Any:
        if any(c.is_apart and c.model is self for c in running_calls()):
            raise RuntimeError(
                "A model must be saved when its ranks have equal weights. "
                "Received: `save` between two meetings of `local_updates`. "
                "Use `hvd.callbacks.ModelCheckpoint`, or call `meet()` of the "
                "`hvd.LocalUpdates` on all ranks before."
            )
        is_path = isinstance(filepath, str | os.PathLike)
        # Keras may ask before it overwrites, or write many files.
        is_plain = not args and kw.keys() <= {"overwrite", "include_optimizer"}
        is_asked = not kw.get("overwrite", True)
        if not (has_others() and is_path and is_plain) or is_asked:
            return original(self, filepath, *args, **kw)
        path = os.fspath(filepath)
        is_file = path.endswith((".keras", ".h5", ".hdf5"))
        # Our own callback replaces files itself.
        if not is_file or files.is_partial(path):
            return original(self, filepath, *args, **kw)
        with files.replacing(path) as partial:
            return original(self, partial, *args, **kw)

    return save
