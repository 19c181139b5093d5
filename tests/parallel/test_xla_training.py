"""Ranks that train with XLA end like one process without it."""

from __future__ import annotations

import dataclasses

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
import test_keras_equality as equality
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)

optimizers = keras.optimizers

# XLA takes seconds to compile a step, and one rank reduces nothing.
on_two_ranks = pytest.mark.ranks(2)

NAMES = [
    "sgd_momentum",
    "adamw_ema",
    "global_clipnorm",
    "accumulate_adamw_ema",
    "steps_per_execution",  # Adam
    "custom_train_step",
    "embedding_adam",
]


def with_xla(case: equality.Case, jit_compile: bool = True) -> equality.Case:
    options = {**case.compile, "jit_compile": jit_compile}
    return dataclasses.replace(case, compile=options)


@on_two_ranks
@pytest.mark.parametrize(
    "name",
    thorough_except(NAMES, "accumulate_adamw_ema"),
)
def test_ranks_end_with_the_weights_of_one_process(name: str) -> None:
    case = equality.CASES[name]
    expected = equality.reference(case, epochs=1)
    equality.check(with_xla(case), expected, epochs=1)


@pytest.mark.ranks(2, 4)
def test_ranks_with_and_without_xla_train_together(rank: int) -> None:
    case = equality.CASES["embedding_global_clipnorm"]
    expected = equality.reference(case, epochs=1)
    model = equality.distributed(with_xla(case, rank % 2 == 0), epochs=1)
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)


@pytest.mark.thorough
@pytest.mark.ranks(2, 4)
def test_loss_scaling_skips_a_step_on_all_ranks() -> None:
    equality.check_loss_scaling("by_compile", jit_compile=True)


@on_two_ranks
@pytest.mark.usefixtures("bucket_of_each")
def test_a_tape_with_many_buckets_equals_one_process() -> None:
    def train(
        batches: tf.data.Dataset, jit_compile: bool, wrap: bool
    ) -> list[np.ndarray]:
        model = kt.build(kt.embedding_model)
        optimizer = optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=jit_compile)
        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            if wrap:
                tape = hvd.DistributedGradientTape(tape)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))

        for x, y in batches:
            step(x, y)
        return model.get_weights()

    data = kt.regression_data()
    expected = train(kt.whole_batches(*data), jit_compile=False, wrap=False)
    weights = train(kt.shares(*data), jit_compile=True, wrap=True)
    kt.assert_close(weights, expected, 2e-5)
    kt.assert_equal_on_all_ranks(weights)


@on_two_ranks
def test_embeddings_of_uneven_batches_raise_and_name_the_cure(
    rank: int,
) -> None:
    x, y = kt.regression_data(5)
    batches = kt.whole_batches(x[: 4 + rank], y[: 4 + rank])
    model = kt.build(kt.embedding_model)
    model.compile(
        hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse", jit_compile=True
    )
    text = "(?s)the shape of tensor 0.*sparse_as_dense=True.*jit_compile=False"
    path = model.trainable_variables[0].path
    text += f".* is the gradient of '{path}'"
    with pytest.raises(hvd.MismatchError, match=text):
        model.fit(batches, verbose=0)


@on_two_ranks
def test_slices_need_a_fixed_number_of_rows() -> None:
    variable = keras.Variable(np.zeros([5, 3], "float32"), name="table")
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.5))
    optimizer.build([variable])

    def step(x: tf.Tensor, rows: tf.Tensor) -> None:
        slices = tf.IndexedSlices(tf.gather(x, rows), rows)
        optimizer.apply([slices], [variable])

    x = tf.reshape(tf.range(12.0), [4, 3])
    tf.function(lambda x: step(x, tf.constant([3, 0])), jit_compile=True)(x)
    expected = -0.5 * np.array([x[0], 0 * x[0], 0 * x[0], x[3], 0 * x[0]])
    np.testing.assert_array_equal(variable.numpy(), expected)
    text = "(?s)fixed number of rows.* is the gradient of '.*table'"
    with pytest.raises(NotImplementedError, match=text):
        tf.function(
            lambda x: step(x, tf.where(x[:, 0] > 2.0)[:, 0]), jit_compile=True
        )(x)


@on_two_ranks
def test_callbacks_act_as_without_xla() -> None:
    x, y = kt.regression_data()

    def fit(jit_compile: bool) -> tuple[dict[str, list[float]], keras.Model]:
        model = kt.build(kt.functional_model)
        if hvd.rank() > 0:
            model.set_weights([w + 1.0 for w in model.get_weights()])
        model.compile(
            hvd.DistributedOptimizer(optimizers.SGD(0.01, momentum=0.9)),
            "mse",
            metrics=["mae"],
            jit_compile=jit_compile,
        )
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(
                initial_lr=0.01, warmup_epochs=2
            ),
        ]
        part = kt.uneven_share(len(x))
        history = model.fit(
            kt.shares(x, y),
            validation_data=(x[part], y[part]),
            epochs=2,
            callbacks=callbacks,
            verbose=0,
        )
        return history.history, model

    expected, plain = fit(jit_compile=False)
    history, model = fit(jit_compile=True)
    assert history.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-4)
    kt.assert_close(model.get_weights(), plain.get_weights(), 1e-4)


@on_two_ranks
@pytest.mark.usefixtures("bucket_of_each")
def test_only_the_end_of_a_collective_reads_its_start() -> None:
    """On a GPU the results are ready only after the end."""
    variables = [keras.Variable(np.ones(3, "float32")) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.1), compression=hvd.Compression.fp16
    )
    optimizer.build(variables)

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> None:
        optimizer.apply([x, 2.0 * x], variables)

    graph = step.get_concrete_function(tf.TensorSpec([3])).graph
    starts = [
        op
        for op in graph.get_operations()
        if op.type == "XlaCallModule"
        and b"has_together = 1" in op.get_attr("module")
    ]
    assert len(starts) == 2
    ends = {end for op in starts for end in readers(op.outputs[0])}
    assert len(ends) == 1
    (end,) = ends
    assert b"@hvd_together" in end.get_attr("module")


def readers(tensor: tf.Tensor) -> list[tf.Operation]:
    found = []
    for op in tensor.consumers():
        if op.type in ("Identity", "IdentityN", "StopGradient"):
            index = [source is tensor for source in op.inputs].index(True)
            found += readers(op.outputs[index])
        else:
            found.append(op)
    return found
