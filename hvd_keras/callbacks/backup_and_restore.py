"""The callback that resumes a killed training run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import keras
from absl import logging

from hvd_keras import _backends, basics
from hvd_keras._gradients import fit_check, loss_means
from hvd_keras._job import preemption, state
from hvd_keras._keras import callback_lists, resume
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.models import build_metrics
from hvd_keras._keras.resume import begin_epoch_at
from hvd_keras._keras.step_hook import StepHook, remove_step_hooks
from hvd_keras.callbacks._building import build_by_data
from hvd_keras.callbacks._preemption import Preemption
from hvd_keras.callbacks._training_state import Progress, TrainingState
from hvd_keras.data.position import Position, handle_of

_FILE = "training_state.npz"


class BackupAndRestore(ForKeras3, keras.callbacks.Callback):
    """Keras's `BackupAndRestore` for many ranks, exact to the batch.

    Rank 0 writes the state of the run into one file, in a thread: training goes
    on while it writes a copy. A new file replaces the last one when it is
    complete; a save waits for the one before. A `fit` that finds such a file
    resumes there: all ranks get the state from rank 0 and begin with the next
    epoch and batch. Only rank 0 needs to see the file. The file before stays
    beside it, and is taken if the newer one is damaged. On a full disk training
    goes on, with a warning for each save. One job at a time may use the folder.

    You may kill a job at any time and start it again. It ends with the weights,
    bit for bit, of a job that was not disturbed, if the data come again in
    their order. Those of `hvd.shard` do, also if they are shuffled: `fit`
    begins with the first row that was not used. (See `hvd.shard` for a
    `tf.data.Dataset`.) From other data, or with `steps_per_epoch`, `fit` takes
    the batches that are done and skips them; the callbacks hear of them as of
    others.

    The job may go on with another number of ranks: at the beginning of an epoch
    with any data, in the middle with those of `hvd.shard`. All ranks together
    then use the rest of the rows, each once. What was equal on all ranks stays
    so. Moving statistics and gradients that are being accumulated become their
    mean over the ranks; with `op=hvd.Sum`, change the number of ranks where
    nothing is being accumulated. A new rank keeps its own seeds.

    If a rank gets SIGTERM, or sees the notice that HVD_PREEMPTION_FILE or
    HVD_PREEMPTION_COMMAND names, all ranks save after the same batch. Then each
    ends by `SystemExit` with HVD_REQUEUE_EXIT_CODE (75). Run the job again to
    go on. A second SIGTERM ends a rank at once.

    The state contains the optimizer, sums of gradients that are being
    accumulated, the seeds of dropout, moving statistics and metrics, each as it
    was on its rank. It does not contain what callbacks remember, such as the
    patience of `EarlyStopping`.

    All ranks have the callback, at any place in the list. It saves and restores
    after all other callbacks have acted.

    Args:
        backup_dir: Directory for the file, used for nothing else.
        save_freq: "epoch", or a number of batches. With data of `hvd.shard`, a
            save that is due in the last batch of an epoch comes at its end.
        delete_checkpoint: Whether to delete the file when `fit` has ended.

    Raises:
        ValueError: An argument is wrong. From `fit`: the model is not built,
            the file is of another model, or the number of ranks has changed
            in the middle of an epoch of other data than those of `hvd.shard`.
        RuntimeError: Training began otherwise than by `fit`.
        SystemExit: From `fit`: a rank must stop soon; all have saved.
        DamagedFileError: From `fit`, on rank 0: the file is damaged, and so is
            the one before, or there is none.
        FileInUseError: From `fit`, on rank 0: another job uses the folder.
        InvalidArgumentError: From `fit`, on rank 0: a folder or a link has the
            name of the file.
        OSError: From `fit`, on rank 0: the folder cannot be written to.
        HvdError: From `fit`, on the other ranks: what rank 0 has raised.

    Example:

    >>> backup = hvd.callbacks.BackupAndRestore("backup", save_freq=100)
    >>> model.fit(dataset, epochs=9, callbacks=[backup])
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        *,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        is_number = type(save_freq) is int and save_freq > 0
        if save_freq != "epoch" and not is_number:
            raise ValueError(
                "`save_freq` must be 'epoch' or a number of batches > 0. "
                f"Received: save_freq={save_freq!r}."
            )
        if not str(backup_dir):
            raise ValueError(
                "`backup_dir` must name a directory. Received: "
                f"backup_dir={backup_dir!r}."
            )
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        callback_list = callback_lists.beginning_callback_list()
        fit = keras_calls.running_fit()
        if callback_list is None or fit is None:
            raise RuntimeError(
                "BackupAndRestore must be a callback of `fit`. Received: a "
                "training that began otherwise."
            )
        if not build_by_data(self.model, fit):
            raise ValueError(
                "The model must be built before `fit`, so that it can be "
                f"restored. Received: {self.model.name!r}, not built; call "
                "it on a batch, or give it an `Input`."
            )
        callback_lists.call_batch_ends_in_order(callback_list)
        backup = _Backup(self, callback_list, fit)
        backup.set_model(self.model)
        backup.resume(fit)
        callback_lists.add_callback(callback_list, backup)


class _Backup(keras.callbacks.Callback):
    """Does the work of a BackupAndRestore, last in its list."""

    def __init__(
        self,
        owner: BackupAndRestore,
        callback_list: Any,
        fit: keras_calls.Call,
    ) -> None:
        super().__init__()
        self._owner = owner
        self._fit = fit
        self._list = callback_list
        self._path = os.path.join(owner.backup_dir, _FILE)
        # With `steps_per_epoch`, an epoch of `fit` is none of the data.
        is_capped = keras_epochs.is_capped(fit)
        self._handle = None if is_capped else handle_of(fit.data)
        self._has_backup = False
        # Whether `fit` is about to begin in the middle of an epoch.
        self._begins_inside = False
        self._epoch = 0
        self._first = (0, 0)  # the epoch and batch to begin with
        self._num_before = 0  # batches of the epoch before those of the data
        self._end_resumed: Callable[[], None] = lambda: None
        self._num_unsaved = 0
        self._preemption = Preemption()
        self._state: TrainingState

    def resume(self, fit: keras_calls.Call) -> None:
        """Makes `fit` begin with the epoch and the batch of the backup."""
        self._state = state = TrainingState(self.model, self._path)
        place = state.begin()
        self._has_backup = place is not None
        if place is None:
            return
        self._first = place.epoch, place.batch
        self._num_unsaved = place.num_unsaved
        resume.set_initial_epoch(self.model, place.epoch)
        remove_step_hooks(self.model, fit)
        if self._handle is not None and place.data is not None:
            self._handle.seek(place.data)
            loss_means.forget_counts(fit, self._handle.next_rest())
            self._begins_inside = place.batch > 0
            if place.batch:
                self._build_metrics(fit.data)
                rest = self._handle.upcoming()
                self._num_before = rest.first // rest.deal.global_size
                self._first = place.epoch, self._num_before
                self._end_resumed = begin_epoch_at(fit, self._num_before)
        elif place.batch and place.size != basics.size():
            raise ValueError(
                "In the middle of an epoch, a run must go on with the number "
                "of ranks of its backup, unless its data come from "
                f"`hvd.shard`. Received: {basics.size()} ranks; "
                f"{self._path!r} is of {place.size}."
            )
        elif place.batch:
            _Skip(self.model, fit, place.batch, state.restore)

    def _build_metrics(self, data: Any) -> None:
        is_indexed = isinstance(data, keras.utils.PyDataset)
        batch = data[0] if is_indexed else data.element_spec
        if not build_metrics(self.model, batch):
            logging.warning(
                "The metrics of the epoch that goes on begin anew: the model "
                "must be callable on symbolic tensors to restore them."
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._has_backup:
            self._state.restore()
            # Moving statistics differ by rank in the middle of an epoch.
            fit_check.note_as_equal(self.model)
        self._preemption.begin()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch = epoch
        if self._begins_inside:
            self._state.restore(only_metrics=True)  # Keras has reset them

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._begins_inside:
            self._begins_inside = False
            # On torch, the iteration over the data has drawn a number.
            self._state.restore_random()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        done = (self._epoch, batch + 1)
        is_new = done > self._first  # else it is in the file
        must_stop = self._preemption.must_stop()
        if is_new:
            self._num_unsaved += self.model.steps_per_execution
        is_due = self._is_due()
        if not (must_stop or is_due):
            return
        position = None
        if self._handle is not None:
            position = self._handle.position_after(batch + 1 - self._num_before)
            if position == self._handle.position_at_end():
                return  # `on_epoch_end` comes soon, and saves
        if is_new:
            self._save(*done, position, is_due=is_due)
        if must_stop:
            self._stop(*done)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._end_resumed()
        self._num_before = 0
        must_stop = self._preemption.must_stop(is_epoch_end=True)
        is_due = self._owner.save_freq == "epoch" or self._is_due()
        if must_stop or is_due:
            handle = self._handle
            position = None if handle is None else handle.position_at_end()
            self._save(epoch + 1, 0, position, is_due=is_due)
        if must_stop:
            self._stop(epoch + 1, 0)

    def _is_due(self) -> bool:
        """Whether as many batches as `save_freq` are not in the file."""
        frequency = self._owner.save_freq
        return isinstance(frequency, int) and self._num_unsaved >= frequency

    def _save(
        self,
        epoch: int,
        batch: int,
        position: Position | None,
        *,
        is_due: bool,
    ) -> None:
        # A run that is not stopped would not meet now, and saves later.
        if is_due:
            self._num_unsaved = 0
            self._fit.meet(True)
        size, num_unsaved = basics.size(), self._num_unsaved
        self._state.save(Progress(epoch, batch, position, size, num_unsaved))

    def _stop(self, epoch: int, batch: int) -> NoReturn:
        what = f"saved to {self._path}"
        if not self._state.finish():
            what = f"not saved; {self._path} is an older state"
        self._preemption.end()
        preemption.report(f"preempted at epoch {epoch}, batch {batch}; {what}")
        raise SystemExit(state.config().requeue_exit_code)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._preemption.end()
        callback_lists.remove_callback(self._list, self)
        remove_step_hooks(self.model)
        resume.set_initial_epoch(self.model, None)
        self._state.finish(deletes=self._owner.delete_checkpoint)


class _Skip(StepHook):
    """Skips the batches that are done, then restores the state."""

    def __init__(
        self,
        model: keras.Model,
        fit: keras_calls.Call,
        num_batches: int,
        restore: Callable[[], None],
    ) -> None:
        super().__init__(model, fit)
        self._num_left = num_batches
        self._restore = restore
        self._logs: Any = None

    def step(self, batches: Iterable[Any], *given: Any) -> Any:
        state = list(given)
        if self._num_left <= 0:
            return self.train_function(*state, batches)
        num_steps = self.model.steps_per_execution
        if self._logs is None:
            # Run the first one: it builds metrics and the like. The restore
            # below undoes it.
            self._logs = self.train_function(*state, batches)
            if state:
                self._logs, *state = self._logs
        elif not list(itertools.islice(batches, num_steps)):
            raise ValueError(
                "The data must have the batches that were done before the "
                f"backup. Received: data that end {self._num_left} batches "
                "earlier."
            )
        self._num_left -= num_steps
        if self._num_left <= 0:
            backend = _backends.current()
            state = backend.change_state(self.model, state, self._restore)
        return (self._logs, *state) if state else self._logs
