"""Ranks with shares of a batch end with the weights of one process.

Every rank also trains the reference: the plain model on whole batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)
optimizers = keras.optimizers


@dataclasses.dataclass(frozen=True)
class Case:
    optimizer: Callable[..., Any]
    model: Callable[[], keras.Model] = kt.functional_model
    passes: int = 1  # backward_passes_per_step
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)


def momentum(**options: Any) -> Any:
    return optimizers.SGD(0.05, momentum=0.9, **options)


def adam(**options: Any) -> Any:
    return optimizers.Adam(0.01, **options)


def adamw_ema(**options: Any) -> Any:
    return optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.9, **options
    )


def global_clipnorm(**options: Any) -> Any:
    return optimizers.SGD(0.1, global_clipnorm=0.3, **options)


def clipnorm(**options: Any) -> Any:
    return optimizers.Adam(0.01, clipnorm=0.1, **options)


def clipvalue(**options: Any) -> Any:
    return optimizers.SGD(0.1, clipvalue=0.05, **options)


def sgd(**options: Any) -> Any:
    return optimizers.SGD(0.1, **options)


def rmsprop(**options: Any) -> Any:
    return optimizers.RMSprop(0.01, momentum=0.5, **options)


def schedule(**options: Any) -> Any:
    rate = optimizers.schedules.PolynomialDecay(0.1, 3)
    return optimizers.SGD(rate, **options)


def ema_overwrite(**options: Any) -> Any:
    return optimizers.SGD(
        0.05,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
        **options,
    )


CASES = {
    "sgd_momentum": Case(momentum),
    "adam": Case(adam),
    "adamw_ema": Case(adamw_ema),
    "global_clipnorm": Case(global_clipnorm),
    "clipnorm": Case(clipnorm),
    "clipvalue": Case(clipvalue),
    "rmsprop": Case(rmsprop),
    "accumulate_sgd_momentum": Case(momentum, passes=4),
    "accumulate_adamw_ema": Case(adamw_ema, passes=4),
    "accumulate_global_clipnorm": Case(global_clipnorm, passes=4),
    "accumulate_steps_per_execution": Case(
        adam, passes=4, compile={"steps_per_execution": 4}
    ),
    "accumulate_schedule": Case(schedule, passes=4),
    "accumulate_ema_overwrite": Case(ema_overwrite, passes=4),
    "steps_per_execution": Case(adam, compile={"steps_per_execution": 4}),
    "eager": Case(clipnorm, compile={"run_eagerly": True}),
    "eager_accumulate": Case(adam, passes=4, compile={"run_eagerly": True}),
    "subclassed": Case(adam, kt.SubclassedModel),
    "custom_train_step": Case(momentum, kt.custom_step_model),
    "embedding_sgd": Case(momentum, kt.embedding_model),
    "embedding_adam": Case(adam, kt.embedding_model),
    "embedding_global_clipnorm": Case(global_clipnorm, kt.embedding_model),
    "embedding_eager": Case(
        adam, kt.embedding_model, compile={"run_eagerly": True}
    ),
    # Plain SGD: with slots Keras treats rows without a gradient differently.
    "embedding_as_dense": Case(
        sgd, kt.embedding_model, options={"sparse_as_dense": True}
    ),
    "embedding_accumulate": Case(adam, kt.embedding_model, passes=4),
}


def reference(case: Case, epochs: int = 2) -> keras.Model:
    """Trains plain Keras on whole batches; accumulated ones become one."""
    model = kt.build(case.model)
    num_rows = kt.BATCH
    options, compile_options = {}, case.compile
    if case.model is kt.embedding_model and case.passes > 1:
        # Keras makes accumulated slices dense; slots treat those differently.
        options = {"gradient_accumulation_steps": case.passes}
    elif case.passes > 1:
        num_rows *= case.passes
        compile_options = {}
    model.compile(case.optimizer(**options), "mse", **compile_options)
    data = kt.whole_batches(*kt.regression_data(), num_rows)
    model.fit(data, epochs=epochs, verbose=0)
    return model


def distributed(case: Case, epochs: int = 2) -> keras.Model:
    model = kt.build(case.model)
    optimizer = hvd.DistributedOptimizer(
        case.optimizer(), backward_passes_per_step=case.passes, **case.options
    )
    model.compile(optimizer, "mse", **case.compile)
    model.fit(kt.shares(*kt.regression_data()), epochs=epochs, verbose=0)
    return model


def check(case: Case, expected: keras.Model, epochs: int = 2) -> None:
    """Trains on all ranks; checks that they end like `expected`, bits equal."""
    model = distributed(case, epochs)
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    slots = [variable.numpy() for variable in model.optimizer.variables]
    # Accumulated gradients are the rank's own until the step.
    if case.passes == 1:
        kt.assert_equal_on_all_ranks(slots)
    kt.assert_equal_on_all_ranks(model.get_weights())
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)


@pytest.mark.parametrize(
    "name",
    thorough_except(
        CASES,
        "adam",
        "accumulate_adamw_ema",
        "accumulate_steps_per_execution",
        "custom_train_step",
        "embedding_global_clipnorm",
    ),
)
def test_ranks_end_with_the_weights_of_one_process(name: str) -> None:
    case = CASES[name]
    check(case, reference(case))


def test_accumulated_gradients_can_be_summed() -> None:
    # A sum of 4 gradients is 4 times their mean.
    expected = kt.build(kt.functional_model)
    expected.compile(optimizers.SGD(0.04, gradient_accumulation_steps=4), "mse")
    data = kt.regression_data()
    expected.fit(kt.whole_batches(*data), verbose=0)

    model = kt.build(kt.functional_model)
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.01),
        backward_passes_per_step=4,
        average_aggregated_gradients=False,
    )
    model.compile(optimizer, "mse")
    model.fit(kt.shares(*data), verbose=0)
    kt.assert_close(model.get_weights(), expected.get_weights(), 1e-5)


def test_a_schedule_can_count_batches() -> None:
    expected = kt.build(kt.functional_model)
    expected.compile(schedule(gradient_accumulation_steps=2), "mse")
    expected.fit(kt.whole_batches(*kt.regression_data()), verbose=0)
    model = distributed(
        Case(schedule, passes=2, options={"schedule_counts_batches": True}),
        epochs=1,
    )
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    assert float(model.optimizer.learning_rate) == float(
        expected.optimizer.learning_rate
    )


def test_gradients_can_be_summed_over_ranks() -> None:
    expected = reference(Case(lambda **options: optimizers.SGD(0.08)))
    model = distributed(
        Case(
            lambda **options: optimizers.SGD(0.08 / hvd.size()),
            options={"op": hvd.Sum},
        )
    )
    kt.assert_close(model.get_weights(), expected.get_weights(), 1e-5)


@pytest.mark.usefixtures("bucket_of_each")
def test_many_buckets_equal_one_process() -> None:
    case = CASES["adam"]
    model = distributed(case)
    kt.assert_close(model.get_weights(), reference(case).get_weights(), 2e-5)


def float16_data() -> tuple[np.ndarray, np.ndarray]:
    """Returns data with one row, on the last rank, too large for float16."""
    x, y = kt.regression_data()
    # Small values, so that no gradient overflows at the first scale: an
    # overflow would depend on the number of rows of a rank.
    x, y = np.round(x * 2) / 16, np.round(y * 2) / 16
    # The row is in the third batch.
    y[3 * kt.BATCH - 1] = 1e30
    return x, y


@pytest.mark.parametrize(
    "wrap", thorough_except(["by_compile", "by_user"], "by_user")
)
def test_loss_scaling_skips_a_step_on_all_ranks(wrap: str) -> None:
    check_loss_scaling(wrap)


def check_loss_scaling(wrap: str, **compile_options: Any) -> None:
    data = float16_data()

    def make(is_distributed: bool) -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = kt.build(kt.functional_model)
        finally:
            keras.config.set_dtype_policy("float32")
        optimizer = optimizers.Adam(0.01, global_clipnorm=1.0)
        if wrap == "by_user":
            optimizer = optimizers.LossScaleOptimizer(
                optimizer, initial_scale=1024.0
            )
        if is_distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        options = compile_options if is_distributed else {}
        model.compile(optimizer, "mse", **options)
        return model

    expected = make(is_distributed=False)
    expected.fit(kt.whole_batches(*data), verbose=0)
    model = make(is_distributed=True)
    model.fit(kt.shares(*data), verbose=0)

    assert isinstance(model.optimizer, optimizers.LossScaleOptimizer)
    for optimizer in (expected.optimizer, model.optimizer):
        scale = float(optimizer.dynamic_scale.numpy())
        assert scale == optimizer.initial_scale / 2
        iterations = optimizer.inner_optimizer.iterations
        assert int(iterations) == kt.NUM_BATCHES - 1
    # In float16 products and sums depend on the number of rows.
    kt.assert_close(model.get_weights(), expected.get_weights(), 5e-3)
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_equal_on_all_ranks(
        [variable.numpy() for variable in model.optimizer.variables]
    )


def test_train_on_batch_equals_one_process() -> None:
    case = CASES["adam"]
    x, y = kt.regression_data()
    expected = kt.build(case.model)
    expected.compile(case.optimizer(), "mse")
    model = kt.build(case.model)
    model.compile(hvd.DistributedOptimizer(case.optimizer()), "mse")
    share = kt.BATCH // hvd.size()
    for first in range(0, len(x), kt.BATCH):
        batch = slice(first, first + kt.BATCH)
        expected.train_on_batch(x[batch], y[batch])
        begin = first + hvd.rank() * share
        rows = slice(begin, begin + share)
        model.train_on_batch(x[rows], y[rows])
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)


def test_data_of_unknown_length_equal_one_process() -> None:
    def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.filter(lambda x, y: True)

    data = kt.regression_data()
    case = CASES["sgd_momentum"]

    def make() -> keras.Model:
        model = kt.build(case.model)
        model.layers[1].kernel_regularizer = keras.regularizers.L2(0.01)
        return model

    expected = make()
    expected.compile(case.optimizer(), "mse")
    expected.fit(endless(kt.whole_batches(*data)), epochs=3, verbose=0)
    model = make()
    model.compile(hvd.DistributedOptimizer(case.optimizer()), "mse")
    model.fit(endless(kt.shares(*data)), epochs=3, verbose=0)
    kt.assert_close(model.get_weights(), expected.get_weights(), 2e-5)
    kt.assert_equal_on_all_ranks(model.get_weights())
