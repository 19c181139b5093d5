"""Notes which metrics are functions of a whole batch.

Keras averages what a metric function returns over rows. If that is one value
for the batch, nobody knows how it depends on the rows.

| Private name | Used to |
|---|---|
| `MeanMetricWrapper._fn`, `_fn_kwargs` | look at what the function returns |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.lookup import require

# The attribute of a metric whose function returns one value for a batch.
_WHOLE = "_hvd_is_of_whole_batch"


def install() -> None:
    """Hooks into Keras. A second call does nothing."""
    replace(keras.metrics.MeanMetricWrapper, "update_state", _noting)


def is_of_whole_batch(metric: Any) -> bool:
    """Whether a metric's function has returned one value for a batch."""
    return bool(vars(metric).get(_WHOLE))


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        function = require(self, "_fn")
        if getattr(function, "__module__", "").startswith("keras."):
            return original(self, y_true, y_pred, sample_weight)
        values = function(y_true, y_pred, **require(self, "_fn_kwargs"))
        is_whole = len(getattr(values, "shape", ())) == 0
        vars(self)[_WHOLE] = is_whole
        calls = keras_calls.running_calls()[:1]
        if is_whole and any(call.rows.fills_in_part for call in calls):
            # Weights that mark what fills a batch: the function has no rows.
            sample_weight = None
        # Keras tracks what `__setattr__` sets.
        vars(self)["_fn"] = lambda *args, **kw: values
        try:
            return original(self, y_true, y_pred, sample_weight)
        finally:
            vars(self)["_fn"] = function

    return update_state


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    wrapper = keras.metrics.MeanMetricWrapper
    require(
        wrapper, "update_state", ["self", "y_true", "y_pred", "sample_weight"]
    )


check_names()
