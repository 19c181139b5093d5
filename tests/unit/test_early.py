"""The way back through a model waits until gradients are on their way."""

from __future__ import annotations

import collections
from typing import Any

import keras
import pytest
import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _early

layers = keras.layers


def plain() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu", name="first"),
            layers.Conv2D(4, 3, activation="relu", name="second"),
            layers.Flatten(),
            layers.Dense(4, name="third"),
        ]
    )


def branching() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", name="first")(inputs)
    left = layers.Conv2D(4, 3, padding="same", name="second")(x)
    right = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.BatchNormalization()(layers.Add()([x, left, right]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4, name="third")(x))


def recurrent() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.LSTM(4, return_sequences=True),
            layers.GRU(4),
            layers.Dense(4, name="third"),
        ]
    )


def step_of(model: keras.Model, size: int) -> tuple[tf.Graph, list[Any]]:
    """Traces a step whose gradients are reduced in buckets of `size` each."""
    ops = _native.ops()
    ends: list[Any] = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        results: list[Any] = []
        for i in range(len(gradients), 0, -size):
            bucket = gradients[max(0, i - size) : i]
            started = ops.horovod_grouped_allreduce_start(
                bucket, f"bucket_{i}", reduce_op=1
            )
            results = (
                _early.end(tf.compat.v1.get_default_graph(), started) + results
            )
        _early.order(results)
        ends.extend(dict.fromkeys(result.op for result in results))
        return results

    x = tf.TensorSpec((2, *model.input_shape[1:]))
    graph = step.get_concrete_function(x).graph
    return graph, [end.inputs[-1].op for end in reversed(ends)]


def needs(op: tf.Operation) -> set[tf.Operation]:
    """Returns all ops that run before `op`."""
    return _early._ancestors(op, set()) - {op}


def is_in_order(graph: tf.Graph) -> bool:
    """Whether no op waits for itself."""
    num_left = {}
    users = collections.defaultdict(list)
    for op in graph.get_operations():
        before = {t.op for t in op.inputs} | set(op.control_inputs)
        num_left[op] = len(before)
        for each in before:
            users[each].append(op)
    ready = [op for op, number in num_left.items() if not number]
    num_run = 0
    while ready:
        op = ready.pop()
        num_run += 1
        for user in users[op]:
            num_left[user] -= 1
            if not num_left[user]:
                ready.append(user)
    return num_run == len(num_left)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("make", [plain, branching, recurrent])
def test_no_op_waits_for_itself(make: Any, size: int) -> None:
    graph, starts = step_of(make(), size)
    assert len(starts) > 1
    assert is_in_order(graph)


def test_a_bucket_leaves_before_the_layers_below_are_computed() -> None:
    graph, starts = step_of(plain(), 2)  # kernel and bias of a layer
    (back,) = (
        op
        for op in graph.get_operations()
        if op.type == "Conv2DBackpropInput" and "/second" in op.name
    )
    assert {starts[0], starts[1]} <= needs(back)
    assert starts[2] not in needs(back)


def test_gradients_themselves_wait_for_no_bucket() -> None:
    graph, starts = step_of(plain(), 1)
    for op in graph.get_operations():
        if op.type in ("BiasAddGrad", "Conv2DBackpropFilter"):
            assert not set(op.control_inputs) & set(starts)


def test_one_bucket_needs_no_order() -> None:
    graph, starts = step_of(plain(), 6)
    assert len(starts) == 1
    for op in graph.get_operations():
        if op.name.startswith("gradient"):
            assert starts[0] not in op.control_inputs
