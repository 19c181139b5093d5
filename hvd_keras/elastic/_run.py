"""One training, which may take several memberships and calls of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._job import membership
from hvd_keras._keras import traces
from hvd_keras._keras.models import has_our_strategy, is_fully_built
from hvd_keras._keras.step_hook import remove_step_hooks
from hvd_keras.callbacks.backup_and_restore import BackupAndRestore
from hvd_keras.callbacks.broadcast_global_variables import (
    BroadcastGlobalVariablesCallback,
)
from hvd_keras.data.position import Position, handle_of
from hvd_keras.elastic._callback_states import (
    CallbackStates,
    append_to_logs,
    is_ours,
)
from hvd_keras.elastic._commit_files import CommitFiles
from hvd_keras.elastic._commits import Array, Commits
from hvd_keras.elastic._entrance import Entrance, Entry
from hvd_keras.elastic._errors import Changes
from hvd_keras.elastic._traces import depends_on_size
from hvd_keras.elastic._training_state import TrainingState

_BEGIN = "on_train_begin"


class Run:
    """Calls Keras's `fit` until the training has ended.

    When a member is lost or the members shall change, the ranks form a new
    membership, and go on from their last common commit.

    Args:
        model: The model that trains.
        fit: Keras's `fit` of that model.
        arguments: Those of `fit`, by name.
        commit_seconds: The time between commits.
        directory: Where commits are kept on disk too; None: nowhere.
    """

    def __init__(
        self,
        model: Any,
        fit: Callable[..., Any],
        arguments: dict[str, Any],
        *,
        commit_seconds: float,
        directory: str | None,
    ) -> None:
        self._model = model
        self._fit = fit
        self.arguments = arguments
        self.commit_seconds = commit_seconds
        self.commit_ms = 0.0  # spent on commits so far
        self.entry = Entry()
        self._callbacks = _all_callbacks(model, arguments.get("callbacks"))
        self.callback_states = CallbackStates(self._callbacks)
        self._files = None if directory is None else CommitFiles(directory)
        self._commits = Commits()
        self._entrance = Entrance(self._commits, self._files)
        self._changes = Changes()
        self._has_begun = False
        self._traces: int | None = None  # the generation of its programs
        self._muted: dict[int, tuple[Any, Any]] = {}

    def to_end(self) -> Any:
        """Trains; returns what `fit` returns."""
        try:
            return self._to_end()
        finally:
            if self._files is not None:
                self._files.let_go()

    def _to_end(self) -> Any:
        membership.announce_elastic()
        if membership.is_waiting():
            self._get_ready()
            membership.rejoin()
        while True:
            try:
                self.entry = self._entrance.enter(self._traces is not None)
                membership.note_state(is_first=self.entry.commit is None)
                self._keep_or_drop_traces()
                history = self._call_fit()
                break
            except Exception as error:
                if not self._changes.begin_after(error):
                    raise
            finally:
                self.unmute()
            membership.rejoin()
        if self._files is not None and basics.rank() == 0:
            self._files.delete()
        return history

    def note_step(self) -> None:
        """Notes that all ranks have done a step since the last change."""
        self._changes.note_progress()
        # A rank that is alone traces other programs.
        if self._traces is None and basics.size() > 1:
            self._traces = membership.trace_generation()

    def commit(self, header: dict[str, Any], parts: list[Array]) -> None:
        """Keeps a state on all ranks, and on disk if wanted. Collective."""
        header["num_streams"] = self.entry.num_streams
        number = self._entrance.next_number()
        if not self._commits.add(number, header, parts):
            log.warning("no commit was made: a rank has too little memory")
        elif self._files is not None and basics.rank() == 0:
            newest = self._commits.newest
            assert newest is not None
            self._files.write(newest)

    def leave(self) -> None:
        """Leaves the job on purpose; all ranks have just committed."""
        if self._files is not None:
            self._files.finish()
        membership.announce_leave("it was told to leave, and has committed")
        basics.shutdown()

    def unmute(self) -> None:
        """Lets all callbacks hear again that training begins."""
        for callback, own in self._muted.values():
            del vars(callback)[_BEGIN]
            if own is not None:
                vars(callback)[_BEGIN] = own
        self._muted.clear()

    def begin(self) -> None:
        """Gives the callbacks, which have begun, what the commit holds."""
        self.unmute()
        if not self._has_begun:
            self.callback_states.note_first()
        commit = self.entry.commit
        if commit is not None:
            header = commit.read_header()
            only = None if self._has_begun else header["changed"]
            self.callback_states.restore(header["callbacks"], only)
        self._has_begun = True

    def _call_fit(self) -> Any:
        arguments = {**self.arguments, "callbacks": list(self._callbacks)}
        commit = self.entry.commit
        if commit is not None:
            header = commit.read_header()
            epoch = header["epoch"]
            if header["is_stopped"] and not header["batch"]:
                epoch = arguments.get("epochs", 1)
            arguments["initial_epoch"] = epoch
            handle = handle_of(arguments.get("x"))
            if header["position"] is not None and handle is not None:
                handle.seek(Position(**header["position"]))
            if not self._has_begun:
                append_to_logs(self._callbacks)
        if self._has_begun:
            self._mute()
        return self._fit(**arguments)

    def _mute(self) -> None:
        """Keeps callbacks that have begun from beginning again.

        Ours must: they ask the ranks of the new membership.
        """
        for callback in self._callbacks:
            if not is_ours(callback):
                own = vars(callback).get(_BEGIN)
                self._muted[id(callback)] = (callback, own)
                vars(callback)[_BEGIN] = _do_nothing

    def _get_ready(self) -> None:
        """Traces a step while this rank is alone, so that others do not wait.

        Leaves everything else as it was.
        """
        model = self._model
        if not is_fully_built(model) or depends_on_size(model):
            return
        data = self.arguments.get("x")
        handle = handle_of(data)
        begins = None if handle is None else handle.upcoming()
        before = TrainingState(model).kept()
        self._fit(
            **{
                **self.arguments,
                "epochs": 1,
                "steps_per_epoch": 1,
                "callbacks": None,
                "initial_epoch": 0,
                "validation_data": None,
                "validation_split": 0.0,
                "verbose": 0,
            }
        )
        TrainingState(model).restore(before, is_own=True, stream=0)
        if handle is not None and begins is not None:
            handle.seek(Position(begins.epoch, begins.first, begins.first_rows))
        self._traces = membership.trace_generation()

    def _keep_or_drop_traces(self) -> None:
        """Drops what was traced or compiled, unless all ranks can use it."""
        model = self._model
        remove_step_hooks(model)
        fits = self.entry.has_traces and not depends_on_size(model)
        if fits and self._traces is not None:
            membership.keep_traces(self._traces)
            return
        self._traces = None
        model.train_function = None
        traces.forget(model)
        model.test_function = model.predict_function = None


def _do_nothing(logs: dict[str, Any] | None = None) -> None:
    """Stands in for a callback's `on_train_begin`."""


def _all_callbacks(model: Any, given: Any) -> list[Any]:
    """Returns the callbacks of `fit`, and those that elastic training needs."""
    given = getattr(given, "callbacks", given)  # of a list of Keras
    callbacks = [each for each in keras.tree.flatten(given) if each is not None]
    if any(isinstance(each, BackupAndRestore) for each in callbacks):
        raise ValueError(
            "`callbacks` must have Elastic or BackupAndRestore. Received: "
            "both; give Elastic a `directory` instead."
        )
    kind = BroadcastGlobalVariablesCallback
    has_broadcast = any(isinstance(each, kind) for each in callbacks)
    if not has_broadcast and not has_our_strategy(model):
        callbacks.insert(0, kind(0))
    # The same history over all calls of `fit`.
    if not any(isinstance(c, keras.callbacks.History) for c in callbacks):
        callbacks.append(keras.callbacks.History())
    return callbacks
