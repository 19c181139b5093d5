"""Ranks that would train different models get an error at the start."""

from __future__ import annotations

from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback

pytestmark = pytest.mark.thorough(1, 4)

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


def model_of_rank(make_model: Any = kt.functional_model) -> keras.Model:
    keras.utils.set_random_seed(100 + hvd.rank())
    return make_model()


def sgd() -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


@needs_peers
@pytest.mark.parametrize(
    "make_model", [kt.functional_model, kt.SubclassedModel]
)
def test_fit_without_a_broadcast(make_model: Any) -> None:
    model = model_of_rank(make_model)
    model.compile(sgd(), "mse")
    data = kt.shares(*kt.regression_data())
    words = r"BroadcastGlobal.*dense.*kernel.*on rank 0"
    with pytest.raises(hvd.MismatchError, match=words):
        model.fit(data, verbose=0)


@needs_peers
def test_a_frozen_layer_is_compared() -> None:
    model = kt.build(kt.functional_model)
    model.layers[1].trainable = False
    model.layers[1].bias.assign(np.full(5, float(hvd.rank() == 1)))
    model.compile(sgd(), "mse")
    with pytest.raises(hvd.MismatchError, match="bias"):
        model.fit(kt.shares(*kt.regression_data()), verbose=0)


@needs_peers
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("built", [False, True])
def test_the_first_apply_of_a_loop(traced: bool, built: bool) -> None:
    make_model = kt.functional_model if built else kt.SubclassedModel
    model, optimizer = model_of_rank(make_model), sgd()
    x, y = kt.regression_data(8)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(step) if traced else step
    with pytest.raises(hvd.MismatchError, match="broadcast_variables"):
        run()
    hvd.broadcast_variables(model.weights)
    run = tf.function(step) if traced else step
    run()
    kt.assert_equal_on_all_ranks(model.get_weights())


def test_a_loop_that_broadcasts_is_compared_once() -> None:
    model, optimizer = model_of_rank(), sgd()
    hvd.broadcast_variables(model.weights)
    before = hvd.stats()["num_requests"]
    for _ in range(5):
        gradients = [tf.ones_like(v.value) for v in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)
    # One for each step; the name, the gradients and the weights once.
    assert hvd.stats()["num_requests"] - before <= 5 + 3


@needs_peers
def test_a_local_variable_may_differ() -> None:
    model = model_of_rank()
    hvd.broadcast_variables(model.layers[2].weights)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), local_layers=model.layers[1]
    )
    model.compile(optimizer, "mse")
    data = kt.shares(*kt.regression_data())
    for callbacks in ([], [BroadcastGlobalVariablesCallback()]):
        model.fit(data, verbose=0, callbacks=callbacks)
    kt.assert_equal_on_all_ranks(model.layers[2].get_weights())
    kernels = hvd.allgather_object(model.layers[1].get_weights()[0])
    assert not np.array_equal(kernels[0], kernels[1])
    momenta = [v.numpy() for v in optimizer.momentums]
    firsts = hvd.allgather_object(momenta[0])
    assert not np.array_equal(firsts[0], firsts[1])
    kt.assert_equal_on_all_ranks(momenta[2:])


def rows_of_rank(rows: Any) -> Any:
    return rows[hvd.rank() :: hvd.size()]


def test_statistics_adapted_on_a_share_are_used_everywhere() -> None:
    x, y = kt.regression_data()

    def make_model() -> keras.Model:
        layer = keras.layers.Normalization()
        layer.adapt(rows_of_rank(x))
        inputs = keras.Input((kt.NUM_FEATURES,))
        return keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))

    model = kt.build(make_model)
    model.compile(sgd(), "mse")
    model.predict(x[:4], verbose=0)
    for _ in range(2):
        callback = BroadcastGlobalVariablesCallback(hvd.size() - 1)
        model.fit(kt.shares(x, y), verbose=0, callbacks=[callback])
        kt.assert_equal_on_all_ranks([model.predict(x, verbose=0)])
        model.layers[1].adapt(rows_of_rank(x))


def bins(rows: Any) -> keras.Model:
    layer = keras.layers.Discretization(num_bins=4)
    layer.adapt(rows_of_rank(rows))
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.Embedding(4, 2)(layer(inputs))
    return keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    )


def words(rows: Any) -> keras.Model:
    layer = keras.layers.StringLookup()
    layer.adapt(rows_of_rank(np.array(["a", "b", "c", "a", "b", "d"])))
    inputs = keras.Input((kt.NUM_FEATURES,), dtype="string")
    hidden = keras.layers.Embedding(9, 2)(layer(inputs))
    return keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    )


@needs_peers
@pytest.mark.parametrize("make_model", [bins, words])
@pytest.mark.parametrize("callback", [False, True])
def test_what_layers_learnt_from_a_share_is_refused(
    make_model: Any, callback: bool
) -> None:
    x, y = kt.regression_data()
    model = kt.build(lambda: make_model(x))
    model.compile(sgd(), "mse")
    kind = {bins: "bin boundaries.*discretization", words: "vocab.*lookup"}
    callbacks = [BroadcastGlobalVariablesCallback()][: int(callback)]
    with pytest.raises(hvd.MismatchError, match=kind[make_model]):
        model.fit(
            kt.shares(x.astype(str) if make_model is words else x, y),
            verbose=0,
            callbacks=callbacks,
        )


@needs_peers
def test_the_check_by_hand() -> None:
    model = kt.build(kt.functional_model)
    model.compile(sgd(), "mse")
    hvd.assert_equal_on_all_ranks(model)
    hvd.assert_equal_on_all_ranks(model.optimizer)
    last = model.layers[2].bias
    last.assign(last + float(hvd.rank() == 1))
    hvd.assert_equal_on_all_ranks(model.layers[1])
    hvd.assert_equal_on_all_ranks(model, local_variables=[last])
    # Keras counts layers, and ranks may have made unequally many.
    for checked in (model, model.weights):
        with pytest.raises(
            hvd.MismatchError, match=r"'dense_?\d*/bias', whose"
        ):
            hvd.assert_equal_on_all_ranks(checked)
    with pytest.raises(hvd.InvalidArgumentError, match="int"):
        hvd.assert_equal_on_all_ranks(3)


def a_step_of_a_tape(model: keras.Model, optimizer: Any) -> None:
    x, y = kt.regression_data(8)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    variables = model.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


@needs_peers
def test_a_tape_may_broadcast_after_its_first_step_alone() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    model = model_of_rank()
    a_step_of_a_tape(model, optimizer)
    with pytest.raises(hvd.MismatchError, match=r"dense.*kernel.* on rank 0"):
        a_step_of_a_tape(model, optimizer)
    hvd.broadcast_variables(model.weights)
    a_step_of_a_tape(model, optimizer)
    kt.assert_equal_on_all_ranks(model.get_weights())


@needs_peers
def test_what_a_tape_has_met_is_compared_once() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    model = kt.build(kt.functional_model)
    a_step_of_a_tape(model, optimizer)
    before = hvd.stats()["num_requests"]
    for _ in range(5):
        a_step_of_a_tape(model, optimizer)
    assert hvd.stats()["num_requests"] == before + 5
