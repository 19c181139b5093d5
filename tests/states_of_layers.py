"""Tests of states of layers, for each backend."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
from stateful_layers import (
    EPOCHS,
    ROWS,
    Running,
    Stateful,
    merged,
    rows,
    trained,
)

import hvd_keras as hvd
from hvd_keras.exceptions import InvalidArgumentError

ops = keras.ops
needs_peers = pytest.mark.ranks(2)


def states(layer: Any) -> list[np.ndarray]:
    return [np.asarray(ops.convert_to_numpy(v)) for v in layer.weights]


def assert_equal_on_all_ranks(values: list[np.ndarray]) -> None:
    for other in hvd.allgather_object(values):
        for mine, theirs in zip(values, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("by", ["add_weight", "set_aggregation", "of_layer"])
def test_states_are_what_the_user_says(by: str, caplog: Any) -> None:
    said = {"sums": "sum", "seen": "sum", "centre": "mean", "queue": "own"}
    layer = Stateful(**(said if by == "add_weight" else {}) | {"queue": "none"})
    layer.build((None, 4))
    if by == "of_layer":
        hvd.set_aggregation(layer, "sum")
        hvd.set_aggregation(layer.centre, "mean")
    elif by == "set_aggregation":
        for name in ("sums", "seen", "centre"):
            hvd.set_aggregation(getattr(layer, name), said[name])
    hvd.set_aggregation(layer.queue, "own")
    trained(layer)
    alone = Stateful()
    trained(alone, alone=True)
    np.testing.assert_allclose(
        layer.sums.numpy(), alone.sums.numpy(), rtol=1e-5
    )
    assert int(layer.seen.numpy()) == EPOCHS * ROWS
    np.testing.assert_allclose(
        layer.centre.numpy(), alone.centre.numpy(), rtol=1e-5
    )
    assert_equal_on_all_ranks(states(layer)[:3])
    queues = [each.tolist() for each in hvd.allgather_object(states(layer)[3])]
    assert hvd.size() == 1 or queues[0] != queues[1]
    assert "set_aggregation" not in caplog.text


def test_a_function_merges_the_states_of_a_layer(caplog: Any) -> None:
    layer = Running()
    hvd.set_aggregation(layer, merged)
    trained(layer)
    x = rows()[0]
    variance = layer.m2.numpy() / layer.count.numpy()
    np.testing.assert_allclose(variance, x.var(0), rtol=1e-5)
    np.testing.assert_allclose(layer.mean.numpy(), x.mean(0), rtol=1e-5)
    assert float(layer.count.numpy()) == EPOCHS * ROWS
    assert_equal_on_all_ranks(states(layer))
    assert "set_aggregation" not in caplog.text


@needs_peers
def test_unknown_states_are_told_once_and_made_equal(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    layer = Stateful(seen="only_first_replica")
    trained(layer)
    assert_equal_on_all_ranks(states(layer))
    assert int(layer.seen.numpy()) == EPOCHS * ROWS // hvd.size()
    told = [r for r in caplog.records if "set_aggregation" in r.message]
    assert len(told) == (hvd.rank() == 0)
    for name in ("sums", "centre", "queue"):
        assert all(f"{name}' of layer" in each.message for each in told)
    assert all("(Stateful)" in each.message for each in told)


@needs_peers
def test_layers_of_keras_are_known(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    layer = keras.Sequential(
        [*layers, keras.layers.SpectralNormalization(keras.layers.Dense(3))]
    )
    trained(layer)
    assert_equal_on_all_ranks(states(layer))
    assert "set_aggregation" not in caplog.text


def test_own_states_are_not_broadcast() -> None:
    layer = Stateful()
    layer.build((None, 4))
    layer.trainable = False  # `call` is not in training then
    hvd.set_aggregation(layer, "own")
    layer.queue.assign(np.full((2, 4), hvd.rank()))
    model = trained(layer)
    hvd.assert_equal_on_all_ranks(model)


@pytest.mark.parametrize(
    ("target", "aggregation", "words"),
    [
        (lambda: keras.layers.Dense(1), "most", "one of mean, sum"),
        (lambda: "centre", "sum", "a variable or a layer"),
        (lambda: keras.Variable([1.0]), "mean", "register_local_var"),
        (
            lambda: keras.Variable([1.0], trainable=False),
            merged,
            "all states of a layer",
        ),
    ],
)
def test_wrong_arguments_are_named(target, aggregation, words) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        hvd.set_aggregation(target(), aggregation)


def untracked_layer() -> Any:
    """Returns a layer that remembers where Keras does not look."""
    backend = keras.backend.backend()

    class Hidden(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            if backend == "tensorflow":
                import tensorflow as tf

                self.parts = {"memory": tf.Variable(tf.zeros([4]))}
            else:
                import torch

                self.register_buffer("memory", torch.zeros(4))

        def call(self, x: Any, training: bool = False) -> Any:
            memory: Any = (
                self.parts["memory"] if backend == "tensorflow" else self.memory
            )
            if training and backend == "tensorflow":
                memory.assign(ops.mean(x, axis=0))
            elif training:
                memory.copy_(ops.mean(x, axis=0).detach())
            return x + ops.stop_gradient(memory)

    return Hidden()


@needs_peers
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="a step has no other state"
)
@pytest.mark.parametrize("is_own", [False, True])
def test_untracked_states_are_named(is_own: bool, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    layer = untracked_layer()
    if is_own:
        hvd.set_aggregation(layer, "own")
    trained(layer)
    told = [r for r in caplog.records if "does not track" in r.message]
    assert len(told) == (hvd.rank() == 0 and not is_own)
    assert all("memory" in each.message for each in told)
    assert all(repr(layer.name) in each.message for each in told)


class Holder:
    """An object of a class that neither Keras nor TensorFlow knows."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)


def tensor(value: Any) -> Any:
    return ops.convert_to_tensor(np.asarray(value, "float32"))


def hidden(kind: str, number: float) -> dict[str, Any]:
    """Returns attributes of a layer, with a value that Keras does not track."""
    if kind == "array":
        return {"table": np.full(4, number)}
    if kind == "array in an object":
        return {"helper": Holder(tables=[{"table": np.full(4, number)}])}
    if kind == "tensor":
        return {"table": tensor([number] * 4)}
    if kind == "tensor in an object":
        return {"_helper": Holder(table=tensor([number] * 4))}
    import tensorflow as tf

    return {"helper": Holder(table=tf.Variable([number] * 4))}


class Holding(keras.layers.Layer):
    def __init__(self, members: dict[str, Any]) -> None:
        super().__init__()
        vars(self).update(members)
        # These are no states of the model.
        self.metric = OfRank()
        self.start, self.seed = [float(hvd.rank())], hvd.rank()
        self.optimizer = keras.optimizers.SGD(0.1 + hvd.rank())

    def call(self, x: Any) -> Any:
        return x


class OfRank(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__()
        self.own = self.add_weight(shape=(), initializer="zeros")
        self.own.assign(hvd.rank())

    def update_state(self, *_: Any) -> None: ...

    def result(self) -> Any:
        return self.own.value


@needs_peers
@pytest.mark.parametrize("differs", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        "array",
        "array in an object",
        "tensor",
        "tensor in an object",
        "variable in an object",
    ],
)
def test_held_values_are_named(kind: str, differs: bool, caplog: Any) -> None:
    if kind.startswith("variable") and keras.backend.backend() != "tensorflow":
        pytest.skip("needs TensorFlow")
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    layer = Holding(hidden(kind, hvd.rank() if differs else 1))
    trained(layer)
    told = [r.message for r in caplog.records if "does not track" in r.message]
    assert len(told) == (hvd.rank() == 0 and differs), told
    assert all("table' in layer" in each for each in told)
    assert all(repr(layer.name) in each for each in told)
