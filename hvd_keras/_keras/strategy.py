"""The private names of Keras that only `HvdStrategy` uses.

| Name | Used to |
|---|---|
| `Model._get_metrics_result_or_logs` | sum metric states over the ranks |
| `trainer.reduce_per_replica` | give all predictions to all ranks |
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras._common.replacements import replace
from hvd_keras._keras import names as private
from hvd_keras._keras.lookup import owner_of, require
from hvd_keras._keras.tensorflow import is_ours

# The module differs by release of Keras.
_trainer: Any = sys.modules[owner_of("make_predict_function").__module__]
require(_trainer, "reduce_per_replica", ["values", "strategy", "reduction"])


def patch_compile(after: Callable[[Any], None]) -> None:
    """Makes `compile` call `after(model)` for models under our strategy."""

    def distributing(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_model(self: Any, *args: Any, **kw: Any) -> Any:
            result = original(self, *args, **kw)
            if is_ours(self.distribute_strategy):
                after(self)
            return result

        return compile_model

    # Keras compares a model's method with this one to see if it is overridden.
    replace(owner_of("compile"), "compile", distributing)


def patch_saving() -> None:
    """Makes `save` and `save_weights` do nothing if another rank saves."""
    for method in ("save", "save_weights"):
        replace(owner_of(method), method, _saving)


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(self: Any, *args: Any, **kw: Any) -> Any:
        strategy = self.distribute_strategy
        if is_ours(strategy) and not strategy.extended.should_checkpoint:
            return None
        return original(self, *args, **kw)

    return save


def patch_logs(logs_of: Callable[[Any, Any, Any], Any]) -> None:
    """Makes `fit` and `evaluate` take logs from `logs_of(model, get, logs)`."""

    def summing(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_logs(self: Any, logs: Any) -> Any:
            # If a callback hooks into this instance, it has already summed.
            is_hooked = private.GET_LOGS in vars(self)
            own = functools.partial(original, self)
            if is_hooked or not is_ours(self.distribute_strategy):
                return own(logs)
            return logs_of(self, own, logs)

        return get_logs

    replace(owner_of(private.GET_LOGS), private.GET_LOGS, summing)


def patch_predictions(gather: Callable[[Any], Any]) -> None:
    """Makes `predict` return `gather(outputs)` of a rank's outputs."""

    def gathering(original: Callable[..., Any]) -> Any:
        def reduce_per_replica(
            values: Any, strategy: Any, reduction: str
        ) -> Any:
            if reduction == "concat" and is_ours(strategy):
                return gather(values)
            return original(values, strategy, reduction)

        return tf.autograph.experimental.do_not_convert(reduce_per_replica)

    replace(_trainer, "reduce_per_replica", gathering)
