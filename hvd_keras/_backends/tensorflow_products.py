"""Finds products of rows by rows, and pairs, in a graph of TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._backends.products import are_paired, is_of_rows, rows_of

_PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum")
_OF_PAIRS = frozenset(
    "Add AddV2 Sub Mul Div RealDiv DivNoNan SquaredDifference Maximum Minimum "
    "Equal NotEqual Greater GreaterEqual Less LessEqual".split()
)

# What these return depends on a shape, not on values.
_OF_SHAPES = ("Rank", "Shape", "ShapeN", "Size")


@contextlib.contextmanager
def products_of_rows(data: list[Any], found: list[str]) -> Iterator[None]:
    """See `Backend.products_of_rows`; for steps that are traced."""
    yield
    parts = [x for x in data if tf.is_tensor(x) and x.shape.rank]
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not parts:
        return
    operations = graph.get_operations()
    # A user who gathers rows knows of it.
    if any(each.type == "HorovodAllgather" for each in operations):
        return
    sources = {id(x.op) for x in parts}
    rows = rows_of(list(x.shape) for x in parts)
    for each in operations:
        if (
            len(each.inputs) == 2
            and _is_of_rows(each, rows)
            and all(depends_on(x.op, sources) for x in each.inputs)
        ):
            found.append(f"{each.name!r} (a {each.type})")


def _is_of_rows(operation: tf.Operation, rows: set[int | None]) -> bool:
    if operation.type in _OF_PAIRS:
        first, second = (x.shape for x in operation.inputs)
        if first.rank is None or second.rank is None:
            return False
        return are_paired(list(first), list(second), rows)
    return operation.type in _PRODUCTS and _has_shape_of_rows(operation, rows)


def _has_shape_of_rows(product: tf.Operation, rows: set[int | None]) -> bool:
    first, second = (x.shape for x in product.inputs)
    if first.rank != 2 or second.rank != 2:
        return False
    if product.type == "Einsum":
        left, _, _ = product.get_attr("equation").decode().partition("->")
        ours, theirs = left.split(",")
        summed = [i for i in range(2) if ours[i] in theirs]
        contracted = first[summed[0]] if len(summed) == 1 else None
    else:
        name = "transpose_a" if product.type == "MatMul" else "adj_x"
        contracted = first[0 if product.get_attr(name) else 1]
    shape = product.outputs[0].shape
    # Gradients of weights sum over the rows.
    if shape == (1, 1) and "gradient" in product.name:
        return False
    return shape.rank is not None and is_of_rows(list(shape), contracted, rows)


def depends_on(operation: tf.Operation, sources: set[int]) -> bool:
    """Whether values of an operation depend on those of others, by id."""
    seen: set[int] = set()
    ahead = [operation]
    while ahead:
        each = ahead.pop()
        if id(each) in sources:
            return True
        if id(each) in seen or each.type in _OF_SHAPES:
            continue
        seen.add(id(each))
        ahead += [x.op for x in each.inputs]
    return False
