"""Knows sums over rows, and changed gradients, by the graph of a step."""

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
# The mean of what the ranks make by these is what is made of their mean.
_LINEAR = (
    *(*_TERMS, "Sum", "Mean", "Transpose", "ConcatV2", "Split", "Unpack"),
    "UnsortedSegmentSum",  # makes slices dense
)
_SCALED = ("Mul", "RealDiv", "DivNoNan")


def sums_of_rows(loss: Any, data: list[Any], known: Iterable[Any]) -> set[str]:
    """See `Backend.sums_of_rows`; for steps that are traced."""
    parts = [x for x in data if tf.is_tensor(x) and x.shape.rank]
    found: set[str] = set()
    if tf.executing_eagerly() or not parts:
        return found
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
            if op.type != "Mul" and _is_ratio(op, sources):
                found.add("ratio")
        elif op.type == "Sum":
            values = op.inputs[0]
            if _has_rows(values, op.inputs[1], rows):
                if depends_on(values.op, sources):
                    found.add("sum")
            else:
                ahead.append(values)
    return found


def _is_ratio(op: tf.Operation, sources: set[int]) -> bool:
    """Whether scalars are divided that both depend on values of the batch."""
    return all(
        x.shape.rank == 0 and depends_on(x.op, sources) for x in op.inputs
    )


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


def are_changed(gradients: list[Any], own: list[Any]) -> bool:
    """See `Backend.are_changed`; for steps that are traced."""
    if tf.executing_eagerly():
        return False
    known = _symbolic(own)
    sources = {id(each.op) for each in known}
    seen = {each.name for each in known}
    ahead = _symbolic(gradients)
    while ahead:
        tensor = ahead.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        op = tensor.op
        inner = [x for x in op.inputs if depends_on(x.op, sources)]
        if op.type in _LINEAR or (op.type in _SCALED and len(inner) == 1):
            ahead += inner
        elif inner:
            return True
    return False


def _symbolic(gradients: list[Any]) -> list[tf.Tensor]:
    """Returns the tensors of a graph; a gradient may be a variable, too."""
    values = [
        each.values if isinstance(each, tf.IndexedSlices) else each
        for each in gradients
    ]
    return [
        each
        for each in values
        if isinstance(each, tf.Tensor)
        and not isinstance(each, tf.__internal__.EagerTensor)
    ]
