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
    new = [
        (kind, path)
        for kind, path in mine
        if (kind, path) in of_others and kind not in _told
    ]
    if not new:
        return
    kinds = [kind for kind, _ in new]
    _told.update(kinds)
    shown = ", ".join(f"{kind} {path!r}" for kind, path in new)
    others = "nothing"
    if "TensorBoard" in kinds:
        others += ", but TensorBoard into folders of their own"
    ours = [k for k in ("ModelCheckpoint", "BackupAndRestore") if k in kinds]
    # A script that knows nothing of ranks does not change.
    shown_ours = [] if keras_calls.has_front() else ours
    names = " and ".join(f"`hvd.callbacks.{kind}`" for kind in shown_ours)
    cure = f" {names} can write while training goes on." if names else ""
    log.info(
        f"All ranks have callbacks of Keras that write: {shown}. This rank "
        f"writes there, the others write {others}.{cure}"
    )


def has_others() -> bool:
    """Whether this process is in a job of several ranks."""
    job = state.job()
    return job is not None and job.topology.size > 1
