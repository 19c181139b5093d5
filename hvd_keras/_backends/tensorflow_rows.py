"""Finds slices that one process has once, however many rows a batch has.

An embedding of tokens has a slice for each token of each row. One of positions
(`Embedding(length, dim)(ops.arange(length))`) has a slice for each position:
its gradient is a sum over the rows. The graph of a step tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
# Stateful ops whose value is that of a variable.
_READS = ("ReadVariableOp", "VarHandleOp", "VariableV2", "ResourceGather")
# Ops that hide what their results depend on.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case")


def parts_of(indices: tf.Tensor) -> list[tuple[tf.Tensor, bool | None]]:
    """Returns the parts of a gradient's indices, in order.

    A table that a step looks into twice has two parts.

    Returns:
        For each part its indices, and whether one process has them once for the
        whole batch; None if that cannot be known.
    """
    if isinstance(indices, tf.__internal__.EagerTensor):
        return [(indices, None)]
    op = indices.op
    if op.type == "ConcatV2":
        return [pair for part in op.inputs[:-1] for pair in parts_of(part)]
    shape = (op.inputs[0] if op.type == "Reshape" else indices).shape
    length = shape[0] if shape.rank is not None and shape.rank > 1 else 0
    # A batch of a known length leaves constants, not a dependency.
    if (length or 0) > 1 and length in set(_batch_lengths(op.graph)):
        return [(indices, False)]
    return [(indices, _is_once(indices))]


def _is_once(tensor: tf.Tensor) -> bool | None:
    """Whether a tensor is independent of the rows of a batch."""
    seen: set[int] = set()
    todo = [tensor]
    is_known = True
    while todo:
        tensor = todo.pop()
        if id(tensor) in seen or isinstance(
            tensor, tf.__internal__.EagerTensor
        ):
            continue
        seen.add(id(tensor))
        op = tensor.op
        if op.type.startswith("Placeholder"):
            outside = _captured(tensor)
            if outside is None:
                return False
            if outside.dtype != tf.resource:
                todo.append(outside)
        elif op.type.removeprefix("Stateless") in _CALLS:
            is_known = False
        elif op.op_def.is_stateful and op.type not in _READS:
            return False  # data, or random numbers
        elif not _is_other_length(tensor):
            todo += op.inputs
    return is_known or None


def _captured(placeholder: tf.Tensor) -> tf.Tensor | None:
    """Returns what a function has captured; None for its arguments."""
    captures = getattr(placeholder.graph, "captures", ())
    return next((out for out, own in captures if own is placeholder), None)


def _is_other_length(tensor: tf.Tensor) -> bool:
    """Whether it is a length of a shape, other than the first: the rows."""
    op = tensor.op
    if not op.inputs or op.inputs[0].op.type != "Shape":
        return False
    if op.type == "Unpack":
        return bool(tensor.value_index > 0)
    if op.type != "StridedSlice" or not op.get_attr("shrink_axis_mask"):
        return False
    first = tf.get_static_value(op.inputs[1])
    rank = op.inputs[0].op.inputs[0].shape.rank
    if first is None or rank is None:
        return False
    return bool(int(first[0]) % rank > 0)


def _batch_lengths(graph: Any) -> Iterator[int | None]:
    """Yields the first lengths of what the functions around a step get."""
    while isinstance(graph, tf.__internal__.FuncGraph):
        captured = set(map(id, graph.internal_captures))
        data = [t for t in graph.inputs if id(t) not in captured]
        for op in graph.get_operations():
            if op.type.startswith("IteratorGetNext"):
                data += op.outputs
        yield from (t.shape[0] for t in data if t.shape.rank)
        graph = graph.outer_graph
