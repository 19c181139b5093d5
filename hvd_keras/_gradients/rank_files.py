"""Keeps the callbacks of several ranks from writing the same files."""

from __future__ import annotations

from typing import Any

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._job import state
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models, writers
from hvd_keras._values import agreement

_told: set[str] = set()


def share_out_files(callbacks: list[Any], model: Any) -> None:
    """Lets the first of the ranks that have the same path write there.

    It acts when `fit` gives its callbacks the model: `TensorBoard` then begins
    to write.
    """
    if state.job() is None or keras_calls.running_fit() is None:
        return
    sets = [
        part.hvd_settings.reduce.process_set
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    ]
    if not sets or sets[0].size() == 1 or not sets[0].included():
        return
    mine = writers.paths_of(callbacks)
    files = sorted(filter(any, mine))
    differing = agreement.disagreement("fit/files", files, process_set=sets[0])
    plans = [files] * (sets[0].size() or 1)
    if differing is not None:
        plans = [plan for plan, _ in differing]
    rank = sets[0].rank() or 0
    before = [entry for plan in plans[:rank] for entry in plan]
    for callback, entry in zip(callbacks, mine, strict=True):
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


def name_of_writer() -> str | None:
    """Returns what tells this rank from others; None in a job of one rank."""
    job = state.job()
    if job is None or job.topology.size == 1:
        return None
    return f"_{job.topology.rank}"
