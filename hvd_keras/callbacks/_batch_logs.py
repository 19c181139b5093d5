"""Logs of all ranks at the ends of batches, for callbacks that read them."""

from __future__ import annotations

import dis
import types
from typing import Any

import keras

from hvd_keras._keras import names as private
from hvd_keras.callbacks.metric_average import MetricAverageCallback

_OF_METRICS = ("on_train_batch_end", "on_batch_end", "on_test_batch_end")


class BatchMetricAverageCallback(MetricAverageCallback):
    """As `MetricAverageCallback`, and at the end of each batch, too.

    It is the first of the callbacks of a call, since it changes their logs.
    All ranks take equal steps.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._share(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._share(logs)

    def _share(self, logs: Any) -> None:
        if not isinstance(logs, dict):
            return
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        # What hides Keras's method answers for all ranks.
        logs.update(getattr(self.model, private.GET_LOGS)(dict(logs)))


def reads_metrics_of_batches(callback: Any) -> bool:
    """Whether a callback reads metrics before an epoch has ended."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        frequency = callback.save_freq
    else:
        frequency = getattr(callback, "update_freq", "epoch")  # TensorBoard
    return frequency != "epoch" or any(
        _reads_logs(callback, method) for method in _OF_METRICS
    )


def reads_predictions_of_batches(callback: Any) -> bool:
    """Whether a callback reads what the model returns for each batch."""
    return _reads_logs(callback, "on_predict_batch_end")


def _reads_logs(callback: Any, method: str) -> bool:
    """Whether a method of the user's own uses its `logs`, as far as we see."""
    function = getattr(callback, method, None)
    function = getattr(function, "__func__", function)
    if function is None:
        return False
    module = str(getattr(function, "__module__", ""))
    if module.partition(".")[0] in ("keras", "hvd_keras"):
        return False
    if not isinstance(function, types.FunctionType):
        return True
    code = function.__code__
    num_named = code.co_argcount + code.co_kwonlyargcount
    if "logs" not in code.co_varnames[:num_named]:
        return True
    return any(
        each.opname.startswith("LOAD")
        # One instruction may load two.
        and "logs" in (each.argval, *_elements(each.argval))
        for each in dis.get_instructions(code)
    )


def _elements(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()
