"""The data of a running call, and the epochs that Keras makes of them.

The private names of Keras in this table are used only here. They are checked
when this module is imported.

| Name | Used to |
|---|---|
| `EpochIterator._num_batches` | tell Keras how many steps an epoch has |
| `EpochIterator.steps_per_epoch` | know how many batches are asked for |
| `EpochIterator._steps_seen` | know whether a pass over the data has ended |
| `EpochIterator.data_adapter` | know how many batches a rank has |
| `DataAdapter.batch_size`, `partial_batch_size` | know their rows |
| `DataAdapter.shuffle`, `py_dataset` | keep an order equal on all ranks |
| `DataAdapter._get_iterator` | let TensorFlow forget a `PyDataset` |
| `DataAdapter.enqueuer`, `OrderedEnqueuer.shuffle` | the same, of workers |
| `EpochIterator.catch_stop_iteration` | end an epoch on torch |
| `Model._eval_epoch_iterator` | know the data of validation; absent without |
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras._common.replacements import replace
from hvd_keras._keras.calls import Call, running_calls, running_fit
from hvd_keras._keras.hooks import Hooks
from hvd_keras._keras.lookup import private_module, require

_EpochIterator: Any = private_module("trainers.epoch_iterator").EpochIterator

# Called with epoch and batch, from 1 on, before `fit` takes that batch; with
# zeros at its end.
at_batch: Hooks[Callable[[int, int], None]] = Hooks()
# Called when a call has its data, before a step.
at_data: Hooks[Callable[[Call], None]] = Hooks()
# Get the data of an epoch that begins, and tell how many steps it has, or None.
# `steps_per_epoch` goes before.
step_counts: Hooks[Callable[[Any], int | None]] = Hooks()
# Get data, and tell whether nobody knows where they end.
open_ends: Hooks[Callable[[Any], bool]] = Hooks()
# Get data, and tell whether steps apply the weights of classes, not Keras.
weighs_classes: Hooks[Callable[[Any], bool]] = Hooks()


class LateData:
    """Data of a call that are made when Keras begins to read them.

    Args:
        make: Returns them.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def batch_sizes_of(call: Call) -> list[int] | None:
    """Returns what tells the rows of each batch; None if they are unknown."""
    adapter = require(call.epochs, "data_adapter")
    # Others may end with a smaller batch.
    if not type(adapter).__name__.startswith(("Array", "TF", "TorchData")):
        return None
    if adapter.batch_size is None:
        return None
    # Keras looks at the first tensor alone.
    specs = keras.tree.flatten(getattr(call.data, "element_spec", []))
    if len({each.shape[0] for each in specs if each.shape.rank}) > 1:
        return None
    numbers = adapter.num_batches, adapter.batch_size
    return [*(n or 0 for n in numbers), adapter.partial_batch_size or 0]


def arrays_of(call: Call) -> list[Any] | None:
    """Returns inputs, labels and weights of a call; None: no arrays."""
    adapter = require(call.epochs, "data_adapter")
    if not type(adapter).__name__.startswith("Array"):
        return None
    leaves = keras.tree.flatten([call.data, *call.others])
    return [leaf for leaf in leaves if leaf is not None]


def data_of_validation(model: Any) -> Any:
    """Returns the data that a running `fit` validates with; None so far."""
    epochs = getattr(model, "_eval_epoch_iterator", None)
    return getattr(epochs, "_hvd_data", None)


def is_capped(fit: Call) -> bool:
    """Whether a running `fit` was told how many steps an epoch has."""
    return bool(fit.epochs.steps_per_epoch)


def is_within_pass(data: Any) -> bool:
    """Whether a running call has taken some batches of data, but not all.

    It goes on with the others in the next epoch.
    """
    for call in running_calls():
        for epochs in (
            call.epochs,
            getattr(call.model, "_eval_epoch_iterator", None),
        ):
            if getattr(epochs, "_hvd_data", None) is data:
                num_seen: int = require(epochs, "_steps_seen")
                adapter = require(epochs, "data_adapter")
                return 0 < num_seen < (adapter.num_batches or 0)
    return False


def num_batches_of(fit: Call) -> float | None:
    """Returns how many batches the data of a running `fit` has.

    It is None if unknown, and infinity if the data have no end.
    """
    tf = sys.modules.get("tensorflow")  # without it there are no datasets
    if tf is not None and isinstance(fit.data, tf.data.Dataset):
        cardinality = int(fit.data.cardinality().numpy())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            return math.inf
    adapter = require(fit.epochs, "data_adapter")
    num_batches: int | None = adapter.num_batches
    return num_batches


def keep_order(data: Any) -> None:
    """Keeps a beginning `fit` from shuffling the batches of a `PyDataset`.

    Otherwise each rank would shuffle them in its own order, unless `fit` gets
    `shuffle=False`.
    """
    fit = running_fit()
    if fit is None:
        return
    adapter = require(fit.epochs, "data_adapter")
    if getattr(adapter, "py_dataset", None) is data:
        require(adapter, "shuffle")
        adapter.shuffle = False
        if adapter.enqueuer is not None:  # of several workers
            require(adapter.enqueuer, "shuffle")
            adapter.enqueuer.shuffle = False


def let_decide(fit: Call, decide: Callable[[int], int]) -> bool:
    """Lets `decide` end the epochs of a running `fit` on torch.

    Only on torch does Keras take a batch before it calls the train function.
    `decide` gets 1, or 0 if there is no batch left. It returns 0 to end the
    epoch, else 1.

    Returns:
        Whether Keras runs on torch; on other backends this does nothing.
    """
    if keras.backend.backend() != "torch":
        return False
    base = type(fit.epochs)

    def __next__(self: Any) -> Any:  # noqa: N807
        try:
            item = base.__next__(self)
        except StopIteration:
            decide(0)
            raise
        if decide(1):
            return item
        _start_again(self)
        raise StopIteration

    fit.epochs.__class__ = type(base.__name__, (base,), {"__next__": __next__})
    return True


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(_EpochIterator, "catch_stop_iteration", ["self"])
    require(_EpochIterator, "_enumerate_iterator", ["self"])
    for name in ("x", "y", "sample_weight"):
        if name not in inspect.signature(_EpochIterator).parameters:
            raise ImportError(
                f"hvd_keras needs the parameter `{name}` of Keras's "
                "`EpochIterator`, which is missing in Keras "
                f"{keras.__version__}."
            )


def install() -> None:
    """Wraps the methods that show data, and epochs that begin."""
    replace(_EpochIterator, "__init__", _noting_data)
    replace(_EpochIterator, "_enumerate_iterator", _counting_steps)


def _noting_data(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def wrapper(*args: Any, **kw: Any) -> None:
        bound = signature.bind(*args, **kw)
        given = bound.arguments
        if isinstance(given["x"], LateData):
            given["x"] = given["x"].make()
        weight = given.get("class_weight")
        # Keras refuses it for data with weights, which may be ours.
        is_ours = weight is not None and any(
            weighs(given["x"]) for weighs in weighs_classes
        )
        if is_ours:
            given["class_weight"] = None
        original(*bound.args, **bound.kwargs)
        epochs = given["self"]
        _hold_weakly(require(epochs, "data_adapter"))
        epochs._hvd_data = given["x"]
        epochs._hvd_others = [given.get("y"), given.get("sample_weight")]
        # Later ones hold validation data.
        for call in running_calls()[:1]:
            if call.epochs is None:
                call.class_weight = weight if is_ours else None
                note(call, epochs)

    return wrapper


def _hold_weakly(adapter: Any) -> None:
    """Lets go of a `PyDataset` after a call.

    TensorFlow keeps what a dataset is generated from for as long as the process
    lives, with all its rows. The iterator over epochs keeps it while it runs.
    """
    if getattr(adapter, "py_dataset", None) is not None:
        iterate = require(type(adapter), "_get_iterator", ["self"])
        held = weakref.ref(adapter)
        adapter._get_iterator = lambda: iterate(held())


def note(call: Call, epochs: Any) -> None:
    """Notes the iterator over the data of a call."""
    if not hasattr(epochs, "_hvd_data"):
        return
    call.epochs, call.data = epochs, epochs._hvd_data
    call.others = epochs._hvd_others
    for function in at_data:
        function(call)


def _start_again(epochs: Any) -> None:
    """Lets data start again that end here."""
    with require(epochs, "catch_stop_iteration")():
        raise StopIteration


def _taking_batches(epochs: Any, items: Iterator[Any]) -> Iterator[Any]:
    """Takes the batches of an epoch before the steps that use them.

    Where TensorFlow's step takes its batch itself, all of it that does not need
    the batch runs once more at the end of the data, if that comes slowly: the
    optimizer and means count a step too many.
    """
    for first, last, iterator in items:
        batches = list(itertools.islice(iterator, epochs.steps_per_execution))
        if not batches:
            _start_again(epochs)
            return
        yield first, last, iter(batches)


def _noting_rows(call: Call, items: Iterator[Any]) -> Iterator[Any]:
    """Notes the rows of each batch that Python gives to a step."""

    def noted(batch: Any) -> Any:
        call.rows_of_step = _rows_that_count(batch, call.rows.may_fill)
        return batch

    for first, last, iterator in items:
        yield first, last, map(noted, iterator)


def _rows_that_count(batch: Any, may_fill: bool) -> int | None:
    """Returns how many rows of a batch do not only fill it."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if may_fill and weights is not None:
        values = keras.ops.convert_to_numpy(keras.tree.flatten(weights)[0])
        column = values.reshape(len(values), -1)[:, 0]
        return int(np.count_nonzero((column != 0.0) | ~np.signbit(column)))
    for part in keras.tree.flatten([y, x]):
        shape: Any = getattr(part, "shape", ())
        if len(shape):
            return int(shape[0])
    return None


def _telling(epochs: Any, items: Iterator[Any]) -> Iterator[Any]:
    """Tells of the batches of an epoch of `fit`."""
    calls = running_calls()[:1]
    if not calls or calls[0].method != "fit" or calls[0].epochs is not epochs:
        yield from items
        return
    fit = calls[0]
    first_epoch = getattr(fit.model, "_initial_epoch", None)
    if first_epoch is None:
        first_epoch = fit.arguments.get("initial_epoch") or 0
    fit.num_epochs += 1
    if _tell_end not in fit.at_end:
        fit.at_end.append(_tell_end)
    epoch = first_epoch + fit.num_epochs
    for first, *others in items:
        _tell_batch(epoch, first + 1)
        yield first, *others


def _tell_end() -> None:
    if sys.exc_info()[0] is None:  # else it is where the `fit` failed
        _tell_batch(0, 0)


def _tell_batch(epoch: int, batch: int) -> None:
    for function in at_batch:
        function(epoch, batch)


def _counting_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any) -> Any:
        data = getattr(self, "_hvd_data", None)
        for function in step_counts:
            num_steps = function(data)
            if num_steps is not None and not self.steps_per_epoch:
                self._num_batches = num_steps
        items = _telling(self, original(self))
        if keras.backend.backend() != "tensorflow":
            for call in running_calls()[:1]:
                if call.sums_metrics:
                    return _noting_rows(call, items)
        elif any(is_open(data) for is_open in open_ends):
            return _taking_batches(self, items)
        return items

    return wrapper


check_names()
