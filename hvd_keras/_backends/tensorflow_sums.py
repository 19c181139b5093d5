"""Knows a loss that adds up rows by the graph of a step of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras._backends.tensorflow_products import depends_on

# What of a sum is left by these is a sum.
_TERMS = (
    *("Identity", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims"),
    *("Add", "AddV2", "AddN", "Sub", "Pack"),
)
_SCALED = ("Mul", "RealDiv", "DivNoNan")


def adds_up_rows(loss: Any, data: list[Any], known: Iterable[Any]) -> bool:
    """See `Backend.adds_up_rows`; for steps that are traced."""
    parts = [x for x in data if tf.is_tensor(x) and x.shape.rank]
    if tf.executing_eagerly() or not parts:
        return False
    sources = {id(x.op) for x in parts}
    rows = {x.shape[0] for x in parts}
    seen = {x.name for x in known}
    ahead = [loss]
    while ahead:
        tensor = ahead.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        op = tensor.op
        if op.type in _TERMS:
            ahead += op.inputs
        elif op.type in _SCALED:
            ahead += _scaled(op, rows)
        elif op.type == "Sum":
            values = op.inputs[0]
            if _has_rows(values, op.inputs[1], rows):
                if depends_on(values.op, sources):
                    return True
            else:
                ahead.append(values)
    return False


def _scaled(op: tf.Operation, rows: set[int | None]) -> list[tf.Tensor]:
    """Returns what a constant multiplies, if it is not the number of rows."""
    first, second = op.inputs
    factor = tf.get_static_value(second)
    if factor is None and op.type == "Mul":
        first, factor = second, tf.get_static_value(first)
    is_number = factor is not None and factor.size == 1
    if not is_number or (
        op.type != "Mul" and any(n and factor % n == 0 for n in rows)
    ):
        return []
    return [first]


def _has_rows(values: tf.Tensor, axes: Any, rows: set[int | None]) -> bool:
    """Whether a sum over axes is one over rows."""
    rank, axes = values.shape.rank, tf.get_static_value(axes)
    if not rank or axes is None or values.op.type == "Pack":
        return False
    first = [int(axis) % rank for axis in axes.reshape(-1)]
    return 0 in first and values.shape[0] in rows
