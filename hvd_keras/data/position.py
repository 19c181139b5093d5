"""Positions in sharded data, which survive a change of the ranks.

`hvd.shard` notes a `Handle` on what it returns. An iteration asks the handle
where to begin, and who shares the rows now. So the same object serves after
ranks have died, left or come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from hvd_keras._keras import callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras.data._counts import source_of
from hvd_keras.data._deal import Deal
from hvd_keras.data._own_loops import OwnLoop
from hvd_keras.data._pass import Pass
from hvd_keras.data._taken import Taken

_ATTRIBUTE = "_hvd_handle"
# What tf.data may do to a share so that its steps stay the same.
_KEEPS_STEPS = (
    "AssertCardinality",
    "Map",
    "Options",
    "ParallelMap",
    "Prefetch",
)


@dataclasses.dataclass(frozen=True)
class Position:
    """A place in data that all ranks share; `dataclasses.asdict` fits JSON.

    Args:
        epoch: Iterations over the data that are finished.
        num_rows: Rows of the present epoch that all ranks together have used;
            batches for a `PyDataset`.
        first_rows: A checksum of the first rows of the present epoch, if their
            order may change; else "".
    """

    epoch: int
    num_rows: int
    first_rows: str = ""


@dataclasses.dataclass(frozen=True)
class Form:
    """What does not change from one batch to the next.

    Args:
        is_static: Whether the shapes are fixed.
        has_weights: Whether there are weights for rows that fill a batch.
    """

    is_static: bool
    has_weights: bool


class Handle:
    """Says where each iteration over a rank's share begins.

    Args:
        deal_now: Returns the deal among the ranks of now.
        num_rows: Rows of an epoch; None if unknown.
        check_equal: Compares data and arguments over the ranks.
        form: What the batches of all iterations have in common. None: each may
            have its own.
        taken: Gets what this rank takes.
        own_loop: Gets what loops outside of Keras's methods do.
    """

    def __init__(
        self,
        deal_now: Callable[[], Deal],
        num_rows: int | None,
        check_equal: Callable[[], None],
        form: Form | None = None,
        *,
        taken: Taken,
        own_loop: OwnLoop,
    ) -> None:
        self._deal_now = deal_now
        self._num_rows = num_rows
        self._form = form
        self._check_equal = check_equal
        self.taken, self.own_loop = taken, own_loop
        self._next = Position(0, 0)
        self._is_sought = False
        self._running: Pass | None = None  # or has just ended
        self._is_inside = False  # of an iteration that `end` will end
        self._before_fit: Position | None = None
        self._num_trained = 0  # epochs of `fit` so far, the running one too
        self.initial_epoch = 0  # that the last `fit` got
        # Whether the next iteration is an epoch of a running `fit`. Others only
        # look at the data meanwhile. None: each iteration is an epoch.
        self._is_announced: bool | None = None
        self._at_seek: list[Callable[[], None]] = []
        self._num_made = 0  # iterators since the last one that was read
        # For shares that draw orders of the same `shuffle` in turn: by stage,
        # those that have iterators which nobody has read.
        self.unread: list[dict[Handle, None]] = []
        self.pass_over_unread: Callable[[], None] = lambda: None
        # Steps of an epoch, for who asks the share; None: it knows itself.
        self.whole_steps: int | None = None
        self.is_of_arrays = False  # not of data that may be shuffled already

    def note_iterator(self) -> None:
        """Notes that a program has made an iterator."""
        self._num_made += 1
        for handles in self.unread:
            handles[self] = None
        self.taken.loops.note_place()

    def take_unread(self) -> int:
        """Returns how many were made before this one, and never read."""
        return max(self.take_all_unread() - 1, 0)

    def take_all_unread(self) -> int:
        """Returns how many were made and not read so far."""
        for handles in self.unread:
            handles.pop(self, None)
        num_made, self._num_made = self._num_made, 0
        return num_made

    @property
    def begins_whole(self) -> bool:
        """Whether the next iteration is a whole epoch."""
        return self._next.num_rows == 0

    @property
    def has_trained(self) -> bool:
        """Whether a `fit` has begun an epoch of it."""
        return self._num_trained > 0

    def seek(self, position: Position) -> None:
        """Makes the next iteration begin at `position`.

        It deals out the rows behind that position among the ranks of then.
        Later iterations are whole epochs. Take `num_steps()` steps: unless the
        share is elastic, that of a `tf.data.Dataset` of known length raises an
        error if it is asked for more, as it has promised whole epochs.

        Raises:
            ValueError: The batches have a form that does not suit what is left
                for these ranks: fixed shapes, or no weights. Nothing changes.
        """
        self._pass_from(position)
        self._next, self._is_sought = position, True
        self._running = self._before_fit = None
        self._is_inside = False
        for function in self._at_seek:
            function()

    def position_after(self, num_steps: int) -> Position:
        """Returns the position after some steps of the running iteration.

        Args:
            num_steps: Steps that each rank has taken in it. All of them, or
                more, make the beginning of the next epoch. (If the length of
                the data is unknown, `position_at_end` gives that.)
        """
        running = self._running or self.upcoming()
        steps = running.num_global_steps
        if steps is not None and num_steps >= steps:
            return self.position_at_end()
        if not num_steps:
            num_rows = running.first
        else:
            num_rows = running.first + num_steps * running.deal.global_size
        return Position(running.epoch, num_rows, running.first_rows)

    def position_at_end(self) -> Position:
        """Returns the position after the running iteration."""
        return Position((self._running or self.upcoming()).epoch + 1, 0)

    def num_steps(self) -> int | None:
        """Returns this rank's steps in the next iteration; None: unknown."""
        return self.upcoming().num_steps

    def next_rest(self) -> int | None:
        """Returns the rows of the last step of the next iteration.

        0 if it is full; None if unknown.
        """
        part = self.upcoming()
        return part.deal.rest_of(part.num_rows)

    def check_equal(self) -> None:
        """Compares data and arguments over the ranks; all call it.

        `hvd.shard` does so, unless the job is elastic: a rank that joins calls
        it alone.

        Raises:
            MismatchError: On all ranks: they differ.
        """
        self._check_equal()

    def upcoming(self) -> Pass:
        """Returns the next iteration, dealt among the ranks of now."""
        return self._pass_from(self._next)

    def begin(self) -> Pass:
        """Returns the iteration that begins."""
        return self.begin_numbered()[0]

    def begin_numbered(self) -> tuple[Pass, int]:
        """Returns the iteration that begins, and its number in `taken`."""
        if self._is_announced is False:
            return self._running or self.upcoming(), -1
        if self._is_announced:
            self._is_announced = False
        self._running = begun = self.upcoming()
        self._is_inside = True
        self._next, self._is_sought = Position(begun.epoch + 1, 0), False
        self.own_loop.begin(begun)
        return begun, self.taken.begin(begun.epoch, begun.first)

    def end(self) -> None:
        """Goes to the next epoch, also if no iteration has begun."""
        if not self._is_inside and not self._is_sought:
            self._next = Position(self._next.epoch + 1, 0)
            self._running = None
        self._is_inside = False

    def note_first_rows(self, first_rows: str) -> None:
        """Notes a checksum of the first rows of the running iteration."""
        if self._running is not None:
            self._running = dataclasses.replace(
                self._running, first_rows=first_rows
            )

    def call_at_seek(self, function: Callable[[], None]) -> None:
        """Calls `function` whenever a position was sought."""
        self._at_seek.append(function)

    def note_fit(self) -> None:
        """Goes to where a `fit` begins, unless a position was sought.

        The epochs of `fit` follow on each other, whatever was looked at
        meanwhile: a single rank may have done that.
        """
        if not self._is_sought:
            self._go(Position(self._num_trained, 0))
        self._before_fit = self._next if self._is_sought else None

    def begin_fit(self) -> None:
        """Goes back to where `note_fit` was called; Keras may have looked."""
        if self._before_fit is not None:
            self.seek(self._before_fit)
        self._is_announced = False

    def begin_epoch(self, number: int | None, *, is_capped: bool) -> None:
        """Goes to the epoch that a running `fit` begins.

        Args:
            number: Its number in Keras if the `fit` begins with it, else None.
            is_capped: Whether it may begin in the middle of the data.
        """
        if self._is_sought:
            position = self._next
        elif is_capped:
            if number is None:
                return
            position = Position(self._num_trained, 0)
        else:
            position = Position(max(self._num_trained, number or 0), 0)
        if position != self._next:
            self._go(position)
        self._num_trained = position.epoch + 1
        self._is_announced = None if is_capped else True

    def end_fit(self) -> None:
        """Makes each iteration an epoch again."""
        if self._is_announced is None:  # maybe with steps across epochs
            self._num_trained = max(self._num_trained, self._next.epoch)
        self._is_announced = None

    def _go(self, position: Position) -> None:
        self._next = position
        self._is_inside = False
        for function in self._at_seek:
            function()

    def _pass_from(self, position: Position) -> Pass:
        part = Pass(
            position.epoch,
            position.num_rows,
            self._deal_now(),
            self._num_rows,
            position.first_rows,
        )
        if self._form is None or part.num_rows is None:
            return part
        deal = _fitted(part.deal, part.num_rows, self._form)
        return dataclasses.replace(part, deal=deal)


def _fitted(deal: Deal, num_rows: int, form: Form) -> Deal:
    """Returns a deal of `num_rows` rows whose batches have a form.

    Raises:
        ValueError: There is none.
    """
    fills = deal.may_fill(num_rows)
    is_short = 0 < num_rows < deal.size and deal.policy == "split"
    if form.has_weights or not (fills or is_short):
        fits = True
    elif is_short and deal.is_elastic:
        logging.warning(
            "The last %d rows of an epoch are dropped: they are fewer than "
            "the %d ranks, and the data have no targets.",
            num_rows,
            deal.size,
        )
        fits = True
    else:
        fits = not is_short and deal.policy == "split"
    if not fits or (form.is_static and not deal.is_static(num_rows)):
        raise ValueError(
            "What is left of an epoch must make batches of the same form as "
            f"a whole epoch. Received: {num_rows} rows for {deal.size} ranks "
            f"with batch_size={deal.batch_size}, policy={deal.policy!r}. Keep "
            "the rows of a global batch, or pass `elastic=True` to `hvd.shard`."
        )
    if fills and not form.has_weights:
        # Fewer rows than ranks go to the step before.
        return dataclasses.replace(deal, has_weights=False)
    return deal


def attach(data: Any, handle: Handle) -> Any:
    """Returns `data` after noting its handle."""
    setattr(data, _ATTRIBUTE, handle)
    return data


def own_handle_of(data: Any) -> Handle | None:
    """Returns the handle of the very object that `hvd.shard` returned."""
    handle: Handle | None = getattr(data, _ATTRIBUTE, None)
    return handle


def handle_of(data: Any) -> Handle | None:
    """Returns the handle of what `hvd.shard` returned.

    Also behind `map`, `prefetch` and `with_options` of a `tf.data.Dataset`. It
    is None for other data. It is None behind `cache`, which gives the batches
    of the first iteration again whatever the position is: cache before
    `hvd.shard`.
    """
    while True:
        handle = own_handle_of(data)
        if handle is not None or not callable(getattr(data, "_inputs", None)):
            return handle
        name = type(data).__name__.lstrip("_").removesuffix("Dataset")
        inputs = data._inputs() if name in _KEEPS_STEPS else []
        if len(inputs) != 1:
            return None
        (data,) = inputs


class _Epochs(keras.callbacks.Callback):
    """Tells a handle of the epochs of a `fit`."""

    def __init__(self, handle: Handle, *, is_capped: bool) -> None:
        super().__init__()
        self._handle, self._is_capped = handle, is_capped
        self._is_first = True

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        number = epoch if self._is_first else None
        self._is_first = False
        self._handle.begin_epoch(number, is_capped=self._is_capped)


# The models that train, innermost last, and the handles of their data.
_training: list[tuple[Any, Handle]] = []


def _note_fit(call: Any) -> None:
    handle = handle_of(call.data)
    if handle is not None and call.method == "fit":
        keras_epochs.keep_order(call.data)
        handle.note_fit()
        _training.append((call.model, handle))


def _begin_fit(callback_list: Any) -> None:
    fit = keras_calls.running_fit()
    handle = None if fit is None else handle_of(fit.data)
    if fit is None or handle is None:
        return
    handle.begin_fit()
    handle.initial_epoch = fit.arguments.get("initial_epoch") or 0
    for callback in callback_list.callbacks:
        if isinstance(callback, _Epochs):  # of another `fit`
            callback_lists.remove_callback(callback_list, callback)
    epochs = _Epochs(handle, is_capped=keras_epochs.is_capped(fit))
    callback_lists.add_callback(callback_list, epochs)


def _end_fit(model: Any) -> None:
    if _training and _training[-1][0] is model:
        _training.pop()[1].end_fit()


def _steps_of(data: Any) -> int | None:
    """Tells Keras how many steps the epoch has that begins."""
    handle = handle_of(data)
    return None if handle is None else handle.num_steps()


def _has_open_end(data: Any) -> bool:
    """Whether data of ours end nobody knows where."""
    return source_of(data) is not None and _steps_of(data) is None


def serve_fits() -> None:
    """Lets Keras's `fit` and `evaluate` know of positions."""
    keras_epochs.at_data.add(_note_fit)
    callback_lists.at_train_begin.add(_begin_fit)
    keras_calls.at_end_of_fit.add(_end_fit)
    keras_epochs.step_counts.add(_steps_of)
    keras_epochs.open_ends.add(_has_open_end)
