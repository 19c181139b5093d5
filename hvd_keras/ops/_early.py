"""Lets gradients leave when they are computed, if TensorFlow has one thread.

`hvdrun` sets `TF_NUM_INTEROP_THREADS=1` if a rank has one core. TensorFlow then
computes what the way back through the layers needs, and puts off all else: the
gradients of weights, and kernels that are asynchronous, as those of
collectives. So every sum would begin at the end of the step.

Over several hosts an allreduce of gradients is therefore two ops: one that is
synchronous and submits it, and one that waits for the sums. The way back goes
on to the layers of the next bucket when the first op of a bucket has run.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras import _native, basics
from hvd_keras.ops import _one_thread, _xla, _xla_library
from hvd_keras.ops._graph import run_independently

# Ops that compute no gradient: nothing waits for these.
_OF_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
# TensorFlow makes one op of the two, which must not wait for itself.
_MERGED = frozenset({"BiasAddGrad", "Conv2DBackpropFilter"})
_END = "HorovodGroupedAllreduceEnd"


def is_wanted() -> bool:
    """Whether a reduction of gradients that is being traced has two ops."""
    return (
        _one_thread.is_set()
        and _xla.is_ending_together()
        and basics.cross_size() > 1
        and not _xla_library.sees_gpu()
    )


def end(graph: tf.Graph, started: Any) -> list[tf.Tensor]:
    """Returns the sums of an allreduce that an op has started."""
    run_independently(graph, started.number)
    results: list[tf.Tensor] = _native.ops().horovod_grouped_allreduce_end(
        started.sums, started.number
    )
    run_independently(graph, results)
    return results


def order(results: Iterable[Any]) -> None:
    """Makes the way back wait until what it has computed is on its way.

    An op waits only for buckets that need nothing of what it computes, and it
    leads to several gradients: a gradient itself would gain nothing.

    Args:
        results: The gradients of a model as the ranks have reduced them, in
            the order of its variables.
    """
    ends: dict[Any, list[Any]] = {}  # the last layers, which come first, first
    for result in reversed(list(results)):
        op = getattr(result, "op", None)
        if op is not None and op.type == _END:
            ends.setdefault(op, []).append(op)
    starts = [op.inputs[-1].op for op in ends]
    if len(starts) < 2:
        return
    has_several = _leading_to_several(starts)
    seen = _ancestors(starts[0], set())
    for before, start in itertools.pairwise(starts):
        new = _ancestors(start, seen)
        seen |= new
        new = {op for op in new if op.type not in _OF_SHAPES}
        for op in new:
            is_first = op.inputs and not any(t.op in new for t in op.inputs)
            if is_first and op in has_several and op.type not in _MERGED:
                op._add_control_inputs([before])


def _ancestors(op: tf.Operation, known: set[tf.Operation]) -> set[tf.Operation]:
    """Returns `op` and all that it needs, but for what is known."""
    found: set[tf.Operation] = set()
    left = [op]
    while left:
        one = left.pop()
        if one not in known and one not in found:
            found.add(one)
            left += [tensor.op for tensor in one.inputs]
            left += one.control_inputs
    return found


def _leading_to_several(starts: list[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops that more than one of the reduced gradients needs."""
    leads: dict[tf.Operation, set[int]] = collections.defaultdict(set)
    number = itertools.count()
    for start in starts:
        for tensor in start.inputs[:-1]:  # without the name
            leads[tensor.op].add(next(number))
    for op in reversed(starts[0].graph.get_operations()):  # users come first
        for tensor in op.inputs if op in leads else ():
            if len(leads[tensor.op]) < 2:
                leads[tensor.op] |= leads[op]
    return {op for op, gradients in leads.items() if len(gradients) > 1}
