"""Keeps rows that only fill a batch from metrics, whoever updates them.

A metric that knows weights gets those of the rows, 0 for filling. Another one
gets the rows that count alone. That needs tensors whose shapes depend on
values, which XLA has not: there the metric is named.

| Private name | Used to |
|---|---|
| `MeanMetricWrapper._fn` | know metrics that are functions of the user's |
| `get_keras_mask`, `set_keras_mask` | keep the mask of rows that count |
"""

from __future__ import annotations

import contextlib
import dis
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from hvd_keras._keras import metric_functions
from hvd_keras._keras.lookup import private_module, require

_masking: Any = private_module("backend.common.masking")
_WEIGHTS = "sample_weight"
_METHOD = "update_state"


@contextlib.contextmanager
def without_filling(metrics: Iterable[Any], batch: Any) -> Iterator[None]:
    """Lets updates of metrics leave out the rows that only fill a batch."""
    changed = []
    for metric in metrics:
        own = vars(metric).get(_METHOD)
        if not isinstance(own, _Update):
            # Keras tracks what `__setattr__` sets.
            vars(metric)[_METHOD] = _Update(metric, batch)
            changed.append((metric, own))
    try:
        yield
    finally:
        for metric, own in changed:
            if own is None:
                del vars(metric)[_METHOD]
            else:
                vars(metric)[_METHOD] = own


class _Update:
    """Stands in for the method `update_state` of a metric during a step."""

    def __init__(self, metric: Any, batch: Any) -> None:
        self._metric, self._batch = metric, batch
        self._original = getattr(metric, _METHOD)

    def __call__(self, *args: Any, **kw: Any) -> Any:
        given = inspect.signature(self._original).bind(*args, **kw)
        weights = given.arguments.get(_WEIGHTS)
        parts = [p for n, p in given.arguments.items() if n != _WEIGHTS]
        is_of_rows = any(map(self._has_rows, keras.tree.flatten(parts)))
        if not is_of_rows:
            return self._original(*args, **kw)
        cuts = self._batch.can_cut
        if _takes_weights(self._metric) and not (
            cuts and _is_function_of_user(self._metric)
        ):
            if weights is None:
                weights = self._batch.row_weights()
            if len(weights.shape) == 1:
                weights = spread(weights, _mask_in(parts))
            given.arguments[_WEIGHTS] = weights
            result = self._original(*given.args, **given.kwargs)
            if metric_functions.is_of_whole_batch(self._metric):
                self._batch.tell_of_filling(self._metric)
            return result
        if not cuts:
            self._batch.tell_of_filling(self._metric)
            return self._original(*args, **kw)
        return self._with_rows_alone(*args, **kw)

    def _has_rows(self, part: Any) -> bool:
        shape: Any = getattr(part, "shape", ())
        rows = self._batch.row_weights().shape[0]
        return len(shape) > 0 and (None in (rows, shape[0]) or shape[0] == rows)

    def _with_rows_alone(self, *args: Any, **kw: Any) -> Any:
        is_row = self._batch.row_weights() > 0

        def cut(part: Any) -> Any:
            if not self._has_rows(part):
                return part
            part = keras.ops.convert_to_tensor(part)
            mask = _masking.get_keras_mask(part)
            rows = part[is_row]
            if mask is not None:
                _masking.set_keras_mask(rows, mask[is_row])
            return rows

        args, kw = keras.tree.map_structure(cut, (args, kw))
        # A mean over no row is not a number.
        variables = list(self._metric.variables)
        before = [keras.ops.copy(v.value) for v in variables]
        result = self._original(*args, **kw)
        has_rows = keras.ops.any(is_row)
        for variable, old in zip(variables, before, strict=True):
            new = keras.ops.convert_to_tensor(variable)
            variable.assign(keras.ops.where(has_rows, new, old))
        return result


def _takes_weights(metric: Any) -> bool:
    """Whether the method of a metric uses the weights that it gets."""
    for kind in type(metric).__mro__:
        if _METHOD in vars(kind):
            break
    if kind.__module__.startswith("keras."):
        return True
    code = getattr(inspect.unwrap(vars(kind)[_METHOD]), "__code__", None)
    if code is None:
        return True
    return _reads(code, _WEIGHTS)


def _reads(code: Any, name: str) -> bool:
    """Whether a function looks at one of its parameters."""
    num = code.co_argcount + code.co_kwonlyargcount
    if name not in code.co_varnames[:num]:
        return bool(code.co_flags & inspect.CO_VARKEYWORDS)
    for each in dis.get_instructions(code):
        names = each.argval if isinstance(each.argval, tuple) else [each.argval]
        if "LOAD" in each.opname and name in names:
            return True
    return False


def _is_function_of_user(metric: Any) -> bool:
    """Whether a metric is a function that may return one value for a batch."""
    if not isinstance(metric, keras.metrics.MeanMetricWrapper):
        return False
    home = getattr(require(metric, "_fn"), "__module__", "")
    return not home.startswith("keras.")


def _mask_in(parts: list[Any]) -> Any:
    """Returns the mask of the last tensor, the prediction, or None."""
    return _masking.get_keras_mask(keras.tree.flatten(parts)[-1])


def spread(weights: Any, like: Any) -> Any:
    """Returns the weights of rows, as a tensor of the shape of `like`.

    Weights of parts of rows, pixels for example, stay as they are.
    """
    if weights is None or len(weights.shape) > 1:
        return weights
    if like is None or len(like.shape) <= 1:
        return weights
    shape = [-1] + [1] * (len(like.shape) - 1)
    weights = keras.ops.reshape(weights, shape)
    return keras.ops.where(
        keras.ops.ones_like(like, dtype="bool"), weights, weights
    )


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(_masking, "get_keras_mask")
    require(_masking, "set_keras_mask")


check_names()
