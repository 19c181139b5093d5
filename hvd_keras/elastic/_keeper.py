"""The callback that commits, restores and ends a `fit` when members change."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import keras

from hvd_keras import basics
from hvd_keras._gradients import fit_check
from hvd_keras._job import membership
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras.models import is_fully_built
from hvd_keras._keras.resume import begin_epoch_at
from hvd_keras.data.position import Handle, Position, handle_of
from hvd_keras.elastic._errors import ChangeDueError
from hvd_keras.elastic._pace import Due, Pace
from hvd_keras.elastic._training_state import TrainingState

if TYPE_CHECKING:
    from hvd_keras.elastic._run import Run


class Keeper(keras.callbacks.Callback):
    """Acts after all other callbacks, in one call of Keras's `fit`.

    Args:
        run: The training, over all its calls of `fit`.
        fit: The running call.
    """

    def __init__(self, run: Run, fit: keras_calls.Call) -> None:
        super().__init__()
        self._run = run
        self._fit = fit
        self._pace = Pace(run.commit_seconds)
        self._epoch = 0
        self._first_batch = 0  # of the epoch that runs
        self._end_resumed: Callable[[], None] = lambda: None
        self._is_first_epoch = True
        self._state: TrainingState
        self._handle: Handle | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        run, model = self._run, self.model
        run.begin()
        if not is_fully_built(model):
            raise ValueError(
                "The model must be built before elastic training, so that it "
                f"can be restored. Received: {model.name!r}, not built; call "
                "it on a batch, or give it an `Input`."
            )
        self._handle = handle_of(self._fit.data)
        if self._handle is not None and membership.is_elastic():
            self._handle.check_equal()
        self._state = TrainingState(model)
        entry = run.entry
        if entry.commit is None:
            first = int(run.arguments.get("initial_epoch", 0))
            self._commit(first, 0, self._upcoming())
            return
        self._state.restore(
            entry.commit, is_own=entry.is_own, stream=entry.stream
        )
        header = entry.commit.read_header()
        # Moving statistics differ by rank in the middle of an epoch.
        fit_check.note_as_equal(model)
        self._begin_in_epoch(header)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch = epoch
        entry = self._run.entry
        if self._is_first_epoch and entry.commit is not None and entry.is_own:
            # Keras has just reset them.
            header = entry.commit.read_header()
            if header["batch"]:
                model = self.model  # on JAX, this gives it its values
                del model
                self._state.restore_metrics(entry.commit)
        self._is_first_epoch = False

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        due = self._pace.after_step()
        if not due:
            return
        position = self._position(batch + 1)
        if position is not None and position == self._end():
            return  # `on_epoch_end` comes right now
        self._commit(self._epoch, batch + 1, position)
        self._run.note_step()
        if due.change:
            self._change(due)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._end_resumed()
        due = self._pace.after_epoch()
        self._commit(epoch + 1, 0, self._end())
        self._run.note_step()
        self._first_batch = 0
        is_last = epoch + 1 >= (self.params or {}).get("epochs", 0)
        if due.change and not is_last and not self.model.stop_training:
            self._change(due)

    def _commit(
        self, epoch: int, batch: int, position: Position | None
    ) -> None:
        """Keeps the state at the beginning of a batch of an epoch."""
        began = time.perf_counter()
        self._fit.meet(False)
        model = self.model  # on JAX, this gives it its values
        callbacks = self._run.callback_states.read()
        header = {
            "epoch": epoch,
            "batch": batch,
            "position": position and dataclasses.asdict(position),
            "is_stopped": bool(model.stop_training),
            "callbacks": callbacks,
            "changed": self._run.callback_states.changed(callbacks),
            "stream": self._run.entry.stream,
            "size": basics.size(),
            **self._state.describe(),
        }
        self._run.commit(header, self._state.parts())
        self._pace.note_commit()
        self._run.commit_ms += 1e3 * (time.perf_counter() - began)

    def _upcoming(self) -> Position | None:
        """Returns where the data begin; None if that is not known."""
        if self._handle is None or keras_epochs.is_capped(self._fit):
            return None
        begins = self._handle.upcoming()
        return Position(begins.epoch, begins.first, begins.first_rows)

    def _position(self, batch: int) -> Position | None:
        """Returns the position in the data before a batch of the epoch."""
        if self._handle is None or keras_epochs.is_capped(self._fit):
            return None
        return self._handle.position_after(batch - self._first_batch)

    def _end(self) -> Position | None:
        if self._handle is None or keras_epochs.is_capped(self._fit):
            return None
        return self._handle.position_at_end()

    def _begin_in_epoch(self, header: dict[str, Any]) -> None:
        """Makes the first epoch begin where the commit was made."""
        batch, skips, limit = header["batch"], False, None
        if header["position"] is not None and self._handle is not None:
            begins = self._handle.upcoming()
            batch = begins.first // begins.deal.global_size
            # Keras counts what is left; callbacks want to know of all.
            whole = dataclasses.replace(begins, first=0)
            if self.params and whole.num_steps:
                self.params["steps"] = whole.num_steps
        elif keras_epochs.is_capped(self._fit):
            limit = self._fit.epochs.steps_per_epoch
        else:
            skips = True
        self._first_batch = 0 if skips else batch
        if header["batch"]:
            self._end_resumed = begin_epoch_at(
                self._fit, batch, skips=skips, limit=limit
            )

    def _change(self, due: Due) -> NoReturn:
        if not due.leaves:
            raise ChangeDueError("The members of the job change now.")
        self._run.leave()
        raise SystemExit(0)
