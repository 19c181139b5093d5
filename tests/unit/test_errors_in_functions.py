"""Errors keep their types where TensorFlow runs or traces Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.ops import _errors

KINDS = [
    hvd.InvalidArgumentError,
    hvd.MismatchError,
    hvd.PeerLostError,
    hvd.StalledError,
    _errors.MismatchError,
    _errors.PeerLostError,
]
ONES = tf.ones([2])


def in_function(fail: Callable[..., Any]) -> None:
    tf.function(fail)(ONES)


def in_xla(fail: Callable[..., Any]) -> None:
    tf.function(fail, jit_compile=True)(ONES)


def in_py_function(fail: Callable[..., Any]) -> None:
    tf.py_function(fail, [ONES], tf.float32)


def in_py_function_of_a_graph(fail: Callable[..., Any]) -> None:
    tf.function(lambda x: tf.py_function(fail, [x], tf.float32))(ONES)


def in_map(fail: Callable[..., Any]) -> None:
    list(tf.data.Dataset.range(2).map(fail))


def in_generator(fail: Callable[..., Any]) -> None:
    def rows() -> Any:
        yield 1.0
        fail()

    spec = tf.TensorSpec((), tf.float32)
    list(tf.data.Dataset.from_generator(rows, output_signature=spec))


def in_callback(fail: Callable[..., Any]) -> None:
    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            fail()

    _fit(_model(lambda x: x), [Failing()])


def in_layer(fail: Callable[..., Any]) -> None:
    _fit(_model(lambda x: fail()))


def in_train_step(fail: Callable[..., Any]) -> None:
    model = _model(lambda x: x)
    model.train_step = fail
    _fit(model)


def _model(call: Callable[[Any], Any]) -> Any:
    class Model(keras.Model):
        def call(self, x: Any) -> Any:
            return call(x)

    model = Model()
    model.compile("sgd", "mse")
    return model


def _fit(model: Any, callbacks: Any = None) -> None:
    rows = np.ones((4, 1))
    model.fit(rows, rows, callbacks=callbacks, verbose=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "run",
    [
        in_function,
        in_xla,
        in_py_function,
        in_py_function_of_a_graph,
        in_map,
        in_generator,
        in_callback,
        in_layer,
        in_train_step,
    ],
)
def test_an_error_of_ours_keeps_its_type(
    run: Callable[..., None], kind: type[Exception]
) -> None:
    def fail(*args: Any) -> Any:
        raise kind("text of ours")

    public = getattr(hvd, kind.__name__)
    with pytest.raises(public, match="text of ours"):
        run(fail)


@pytest.mark.parametrize("run", [in_py_function, in_generator])
def test_errors_of_others_stay_theirs(run: Callable[..., None]) -> None:
    class MismatchError(Exception):
        pass

    def fail(*args: Any) -> Any:
        raise MismatchError("hvd_keras.exceptions: text of others")

    with pytest.raises(tf.errors.UnknownError) as caught:
        run(fail)
    assert not isinstance(caught.value, hvd.HvdError)


def test_a_wrong_call_in_a_function_is_named() -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="must be one of"):
        in_function(lambda x: hvd.allreduce(x, 77))
