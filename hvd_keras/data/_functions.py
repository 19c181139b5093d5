"""Tells what a function that tf.data maps over rows does."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.dataset_kinds import kind_of

# Ops that TensorFlow calls stateful, though a function with them gives the same
# for the same row, whenever and wherever it runs.
_HARMLESS = frozenset(
    {
        "Assert",
        "Case",
        "DatasetToSingleElement",
        "If",
        "LookupTableFind",
        "LookupTableFindV2",
        "PartitionedCall",
        "Placeholder",
        "RangeDataset",
        "ReadFile",
        "ReadVariableOp",
        "StatefulPartitionedCall",
        "TensorSliceDataset",
        "While",
    }
)
# What takes less time than to tell a row from the others, if the row is small.
_CHEAP = frozenset(
    {
        *("AddV2", "Cast", "ConcatV2", "Const", "ExpandDims", "GatherV2"),
        *("Identity", "Mul", "Neg", "NoOp", "OneHot", "Pack", "Placeholder"),
        *("RealDiv", "Reshape", "Shape", "Sqrt", "Square", "Squeeze"),
        *("StridedSlice", "Sub", "Transpose"),
    }
)
# In a function that makes a dataset of each element: reading files alone costs
# little beside these.
_CHANGES = frozenset(
    {
        *("EagerPyFunc", "GeneratorDataset", "MapDataset"),
        *("ParallelMapDataset", "ParallelMapDatasetV2", "PyFunc"),
    }
)
_MOST_CHEAP = 4096  # numbers in a row


def arrays_of(function: Any) -> Iterator[list[tf.Tensor]]:
    """Yields the arrays that a function has captured."""
    for tensor in function.captured_inputs:
        if tensor.dtype not in (tf.resource, tf.variant) and tensor.shape.rank:
            yield [tensor]


def is_cheap(dataset: Any) -> bool:
    """Whether the function of `map` costs next to nothing."""
    counts = [
        _numbers_in(spec)
        for part in (dataset, *dataset._inputs())
        for spec in tf.nest.flatten(part.element_spec)
    ]
    return _ops_of(dataset._map_func.function) <= _CHEAP and all(
        count is not None and count <= _MOST_CHEAP for count in counts
    )


def _numbers_in(spec: Any) -> int | None:
    """Returns the numbers in an element, in a row if it is a batch."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return None
    is_batch = spec.shape.rank and spec.shape[0] is None
    shape = spec.shape[1:] if is_batch else spec.shape
    count: int | None = shape.num_elements()
    return count


def passes_on(function: Any) -> bool:
    """Whether a function returns what it gets, in the same order."""
    made = list(function.graph.outputs)
    for index, tensor in enumerate(made):
        while tensor.op.type == "Identity":
            (tensor,) = tensor.op.inputs
        made[index] = tensor
    given = function.graph.inputs
    return len(made) == len(given) and all(map(operator.is_, made, given))


def changes_rows(dataset: Any) -> bool:
    """Whether a stage has a function that changes rows, at some cost."""
    if not hasattr(dataset, "_map_func"):
        return False
    function = dataset._map_func.function
    if kind_of(dataset).removeprefix("Parallel") == "Map":
        return not is_cheap(dataset)
    return bool(_ops_of(function) & _CHANGES)  # of datasets


def is_stateful(function: Any) -> bool:
    """Whether a function may give something else for the same row."""
    return bool(_stateful_ops_of(function))


def calls_python(function: Any) -> bool:
    """Whether a function is stateful for its calls of Python alone."""
    return _stateful_ops_of(function) <= {"EagerPyFunc", "PyFunc"}


def _stateful_ops_of(function: Any) -> set[str]:
    from tensorflow.python.framework import op_def_registry

    known = {
        name: op_def_registry.get(name)
        for name in _ops_of(function) - _HARMLESS
    }
    return {name for name, op in known.items() if op is None or op.is_stateful}


def reads_records(function: Any) -> bool:
    """Whether a function reads TFRecord files without compression."""
    is_reading = False
    for nodes in _bodies_of(function):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op in ("TFRecordDataset", "TFRecordDatasetV2"):
                kind = by_name.get(node.input[1].split(":")[0])
                if kind is None or kind.op != "Const":
                    return False
                if list(kind.attr["value"].tensor.string_val) != [b""]:
                    return False
                is_reading = True
    return is_reading


def _bodies_of(function: Any) -> list[Any]:
    """Returns the nodes of a function, and those of each function in it."""
    graph = function.graph.as_graph_def()
    return [graph.node, *(inner.node_def for inner in graph.library.function)]


def _ops_of(function: Any) -> set[str]:
    """Returns the names of all ops in a function."""
    names = {
        inner.signature.name
        for inner in function.graph.as_graph_def().library.function
    }
    return {node.op for body in _bodies_of(function) for node in body} - names
