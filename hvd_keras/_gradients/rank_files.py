"""Keeps the callbacks of several ranks from writing the same files."""

from __future__ import annotations

from typing import Any

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._job import state
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import writers
from hvd_keras._values.agreement import Check
from hvd_keras.process_set import ProcessSet

_told: set[str] = set()


def share_out(fit: keras_calls.Call, process_set: ProcessSet) -> Check:
    """Lets the first of the ranks that have the same path write there.

    `TensorBoard` begins to write when `fit` gives its callbacks the model.
    """
    mine = [writers.path_of(callback) for callback in fit.callbacks]
    files = sorted(filter(any, mine))
    plans = yield files
    rank = process_set.rank() or 0
    before = [entry for plan in plans[:rank] for entry in plan]
    for callback, entry in zip(fit.callbacks, mine, strict=True):
        if entry in before:
            writers.keep_from_writing(callback, basics.rank())
    if rank == 0:
        _tell(mine, [entry for plan in plans[1:] for entry in plan])


def _tell(mine: list[tuple[str, str]], of_others: list[Any]) -> None:
    for kind, path in mine:
        if (kind, path) not in of_others or kind in _told:
            continue
        _told.add(kind)
        cure = ""
        if kind in ("ModelCheckpoint", "BackupAndRestore"):
            cure = (
                f" `hvd.callbacks.{kind}` also writes while training goes on."
            )
        others = "nothing"
        if kind == "TensorBoard":
            others = "into folders of their own"
        log.info(
            f"All ranks have Keras's {kind} with the path {path!r}: this rank "
            f"writes there, the others write {others}. Nothing to do.{cure}"
        )


def has_others() -> bool:
    """Whether this process is in a job of several ranks."""
    job = state.job()
    return job is not None and job.topology.size > 1
