"""Stands before Keras's `fit`, `evaluate` and `predict`: it shares their data.

What it does is what the four changes of a script do, by the same functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._gradients.distributed_class import is_multi_optimizer, unwrapped
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer
from hvd_keras._keras import calls, epochs, models
from hvd_keras._keras.lookup import private_module, require
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    _batch_logs,
)
from hvd_keras.data._arguments import is_read_once
from hvd_keras.data._comparison import called_by
from hvd_keras.distribution import _data, _orders, _row_checks, _turns
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.optimizer import DistributedOptimizer
from hvd_keras.prediction import predict

Run = Callable[..., Any]
_ROWS = ("x", "y", "sample_weight")  # the arguments
_has_shared = False  # whether some call was shared

_split: Any = require(
    private_module("trainers.data_adapters.array_slicing"),
    "train_validation_split",
    ["arrays", "validation_split"],
)


class Front:
    """What stands before the methods of models.

    Args:
        shares_data: Whether all ranks give the same data, to be shared. If
            not, each brings its own rows.
        batch_is_of_rank: Whether `batch_size` of arrays is that of each rank.
    """

    def __init__(
        self, *, shares_data: bool = True, batch_is_of_rank: bool = False
    ) -> None:
        self._shares_data = shares_data
        self._batch_is_of_rank = batch_is_of_rank

    def __call__(
        self, method: str, model: Any, run: Run, args: Any, kw: Any
    ) -> Any:
        """Runs `fit`, `evaluate` or `predict` of a model for all ranks.

        Args:
            method: Its name.
            model: The model.
            run: The method.
            args: What the script gives to it.
            kw: The same, by name.
        """
        _check_strategy(model)
        signature = inspect.signature(getattr(keras.Model, method))
        bound = signature.bind(model, *args, **kw)
        bound.apply_defaults()
        _, *names = signature.parameters
        given = {name: bound.arguments[name] for name in names}
        given.update(given.pop("kwargs", {}))
        global _has_shared
        _has_shared = True
        stand_in = {
            "fit": self._fit,
            "evaluate": self._evaluate,
            "predict": self._predict,
        }[method]
        with _turns.ranks_meet():
            return stand_in(model, run, given)

    def _fit(self, model: Any, run: Run, given: dict[str, Any]) -> Any:
        if self._shares_data:
            _check_stateful(model)
        distribute_optimizers(model)
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
            _tell_of_loss_scale()
        start = BroadcastGlobalVariablesCallback(0)
        checks = [_row_checks.RowChecks(model)] if basics.size() > 1 else []
        if not self._shares_data:
            return run(
                **_with({**given, **self._of_calls(given)}, start, *checks)
            )
        held_out = given["validation_data"]
        if given["validation_split"] and held_out is None:
            rows, held_out = _split(
                [given[name] for name in _ROWS],
                validation_split=given["validation_split"],
            )
            given.update(zip(_ROWS, rows, strict=True))
        size = self._global(given["batch_size"])
        with called_by("fit"):
            _share_rows(
                given,
                size,
                steps=given["steps_per_epoch"],
                shuffle=given["shuffle"],
            )
        if held_out is not None:
            size = self._global(given["validation_batch_size"]) or size
            share = functools.partial(
                _share_of_validation, held_out, size, given["validation_steps"]
            )
            # What a generator draws may come after what others draw.
            is_late = is_read_once(held_out)
            given["validation_data"] = (
                epochs.LateData(share) if is_late else share()
            )
        given.update(self._of_calls(given))
        given.update(
            batch_size=None,
            validation_batch_size=None,
            validation_split=0.0,
            shuffle=False,
        )
        return run(**_with(given, start, *checks))

    def _evaluate(self, model: Any, run: Run, given: dict[str, Any]) -> Any:
        given.update(self._of_calls(given))
        if self._shares_data:
            _check_stateful(model)
            with called_by("evaluate"):
                size = self._global(given["batch_size"])
                _share_rows(given, size, steps=given["steps"])
            given["batch_size"] = None
        return run(**_with(given))

    def _predict(self, model: Any, run: Run, given: dict[str, Any]) -> Any:
        x = given["x"]
        is_whole = self._shares_data and given["steps"] is None
        is_whole = is_whole and not (
            _stateful_layers(model)
            or any(
                map(
                    _batch_logs.reads_predictions_of_batches,
                    _flat(given["callbacks"]),
                )
            )
        )
        if not is_whole or is_read_once(x) or hasattr(x, "collate_fn"):
            given.update(self._of_calls(given))
            return run(**given)
        size = given.pop("batch_size")
        if isinstance(x, keras.utils.PyDataset):
            size = None
        elif size is not None:
            size = -(-size // basics.size())
        given.pop("x")
        if _data.are_arrays(x):
            x = _data.as_arrays(x)
        return predict(model, x, batch_size=size, **given)

    def _global(self, batch_size: int | None) -> int | None:
        if batch_size is not None and self._batch_is_of_rank:
            return batch_size * basics.size()
        return batch_size

    def _of_calls(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns what rank 0 alone shows."""
        return {"verbose": given["verbose"] if basics.rank() == 0 else 0}


def _check_strategy(model: Any) -> None:
    """Raises InvalidArgumentError for a model that is on several devices."""
    strategy = getattr(model, "distribute_strategy", None)
    num_replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if num_replicas > 1 and not models.has_our_strategy(model):
        raise InvalidArgumentError(
            "hvdrun shares the work among processes, each with one device. "
            "Remove the scope of `tf.distribute` from the script, and start a "
            "rank for each device. Received: a model in a "
            f"{type(strategy).__name__} with {num_replicas} devices."
        )


def _check_stateful(model: Any) -> None:
    """Raises InvalidArgumentError for layers that know rows by their place."""
    names = _stateful_layers(model)
    if names and basics.size() > 1:
        raise InvalidArgumentError(
            "`stateful=True` keeps a state for each row of a batch, and has a "
            "batch size that is fixed; each rank gets a part of a batch here. "
            "Train such a model on one rank, or by the four changes, built for "
            "the rows of a rank: `hvd.shard(data, batch_size=...)`. Received: "
            f"the layers {', '.join(names)}."
        )


def _stateful_layers(model: Any) -> list[str]:
    """Returns the names of layers that keep a state for each row of a batch."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional)
        and getattr(layer, "stateful", False)
    ]


def has_shared() -> bool:
    """Whether a call of this process was shared."""
    return _has_shared


def begin(front: Front | None) -> None:
    """Sets what stands before the methods of models; None: nothing."""
    if front is not None:
        _orders.draw_alike()
        _row_checks.install()
    calls.set_front(front)


@functools.cache  # said once
def _tell_of_loss_scale() -> None:
    if basics.rank() == 0 and basics.size() > 1:
        log.info(
            "in float16 a step is skipped where the gradients of a rank's own "
            "rows are not finite, and not those of all rows: the scale of the "
            "loss, and so the steps, may differ from those of one process by "
            "a few at the beginning."
        )


def distribute_optimizers(model: Any) -> None:
    """Makes all optimizers of a model distributed."""
    has_changed = False
    for optimizer in models.optimizers_of(model):
        inner = unwrapped(optimizer)
        parts = [inner]
        if is_multi_optimizer(inner):
            parts = list(inner.optimizers)
        for part in parts:
            if not isinstance(unwrapped(part), ReducingOptimizer):
                DistributedOptimizer(part)
                has_changed = True
    if has_changed:
        model.train_function = None  # it may be traced without


def _share_rows(
    given: dict[str, Any],
    size: int | None,
    *,
    steps: int | None,
    shuffle: bool | str = False,
) -> None:
    """Puts a share in the place of the rows among the arguments of a call."""
    x, *others = (given[name] for name in _ROWS)
    if _data.are_arrays(x):
        given.update(y=None, sample_weight=None)
    given["x"] = _data.shared(
        x, *others, batch_size=size, steps=steps, shuffle=shuffle
    )


def _share_of_validation(
    held_out: Any, size: int | None, steps: int | None
) -> Any:
    """Returns this rank's share of what `fit` validates with."""
    rows = keras.utils.unpack_x_y_sample_weight(held_out)
    with called_by("fit"):
        return _data.shared(*rows, batch_size=size, steps=steps)


def _with(given: dict[str, Any], *first: Any) -> dict[str, Any]:
    """Returns the arguments of a call, with our callbacks before others."""
    callbacks = given["callbacks"]
    flat = _flat(callbacks)
    average = MetricAverageCallback()
    if any(map(_batch_logs.reads_metrics_of_batches, flat)):
        average = _batch_logs.BatchMetricAverageCallback()
    ours = [*first, average]
    ours = [
        each
        for each in ours
        if not any(isinstance(one, type(each)) for one in flat)
    ]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:0] = ours
        return given
    return {**given, "callbacks": [*ours, *flat]}


def _flat(callbacks: Any) -> list[Any]:
    """Returns callbacks, which may be one, a list or a `CallbackList`."""
    found = getattr(callbacks, "callbacks", callbacks)
    flat: list[Any] = keras.tree.flatten(found or [])
    return flat
