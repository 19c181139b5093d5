"""Says in the user's words which call a collective belongs to."""

from __future__ import annotations

import re

from hvd_keras._records.evidence import Record

# By the first part of the name that hvd_keras gives a collective.
_OF_OURS = {
    "fit": "`fit`",
    "evaluate": "`evaluate`",
    "predict": "`hvd.predict`",
    "shard": "`hvd.shard`",
    "files": "`hvd.shard`",
    "records": "`hvd.shard`",
    "DistributedOptimizer": "the first step of the optimizer",
    "assert_equal_on_all_ranks": "`hvd.assert_equal_on_all_ranks`",
    "StepsGuard": "the next batch of `fit`",
    "KerasState": "`hvd.elastic.KerasState`",
    # Others than SyncEarlyStopping contain it.
    "SyncEarlyStopping": "the check between epochs of `fit`",
}
_CALLBACKS = (
    "BackupAndRestore",
    "BroadcastGlobalVariablesCallback",
    "ConsistencyCheck",
    "LocalUpdates",
    "MetricAverageCallback",
    "ModelCheckpoint",
)
# Of a call without `name`: what it is, and its number.
_UNNAMED = re.compile(
    r"(?:(torch|jax)\.)?((?:grouped_)?(?:allreduce|allgather|reducescatter)|"
    r"alltoall|barrier|broadcast|join)(?:\.(?:call|program))?"
    r"(?:\.round_\d+)?\.\d+(?:/.*)?"
)
_OF_TORCH = re.compile(r"gradients(\.\d+)?/")
_GRADIENTS = "the sum of the gradients"
_BEHIND_BATCH = "the check behind a batch of `fit`"
_OF_GRADIENTS = ("/bucket_", "/largest", "/nonfinite", "/loss_")


def is_of_user(record: Record) -> bool:
    """Whether the user has made the call, and may have named it."""
    return _of_ours(record.name) is None


def is_of_step(record: Record) -> bool:
    """Whether each step of a training makes the call."""
    words = _of_ours(record.name)
    return words in (_GRADIENTS, _OF_OURS["StepsGuard"], _BEHIND_BATCH)


def words_of(record: Record) -> str:
    """Returns the call in words; its name in quotes if the user made it."""
    unnamed = _UNNAMED.fullmatch(record.name)
    own = _call(*unnamed.groups()) if unnamed else f"'{record.name}'"
    return _of_ours(record.name) or own


def _call(package: str | None, kind: str) -> str:
    if package == "torch" and kind == "broadcast":
        return "`hvd.broadcast` or `hvd.broadcast_parameters`"
    return f"`hvd_keras.jax.{kind}`" if package == "jax" else f"`hvd.{kind}`"


def called(record: Record) -> str:
    """As `words_of`; the kind of the user's own call goes before its name."""
    words = words_of(record)
    return f"{record.kind} {words}" if words.startswith("'") else words


def _of_ours(name: str) -> str | None:
    if any(part in name for part in _OF_GRADIENTS):
        return _GRADIENTS
    if _OF_TORCH.match(name):
        return "the first step of the optimizer"
    if name.startswith("Model.save/"):
        return "`model.save`"
    if name.endswith(("/first_values", "/first_values/differing")):
        return "the first step of the optimizer or tape"
    if name == "SyncEarlyStopping":  # without "/epoch"
        return _BEHIND_BATCH
    head = name.partition("/")[0].partition(".")[0]
    if head in _OF_OURS:
        return _OF_OURS[head]
    if head in _CALLBACKS:
        return f"`hvd.callbacks.{head}`"
    return "a call of hvd_keras" if head == "hvd_keras" else None
