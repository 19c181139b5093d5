"""Models that the first batch would build train as on one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback

pytestmark = pytest.mark.thorough(1, 4)


def sequential() -> keras.Model:
    return keras.Sequential(
        [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )


class Gan(keras.Model):
    """Has no `call`: its parts take turns, each with its optimizer."""

    def __init__(self, has_inputs: bool) -> None:
        super().__init__()
        begin = [keras.Input((kt.NUM_FEATURES,))] if has_inputs else []
        self.parts = [
            keras.Sequential([*begin, keras.layers.Dense(1)]) for _ in range(2)
        ]
        self.optimizers = {"first": None, "second": None}

    def set_optimizers(self, make: Callable[[], Any]) -> None:
        self.optimizers = {name: make() for name in self.optimizers}

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        for part, optimizer in zip(
            self.parts, self.optimizers.values(), strict=True
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(x) + part(-2 * x) - y) ** 2)
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.05)


def distributed() -> keras.optimizers.Optimizer:
    return hvd.DistributedOptimizer(adam())


def train(
    make_model: Callable[[], keras.Model],
    make_optimizer: Callable[[], Any],
    data: Any,
    seed: int,
    **options: Any,
) -> list[np.ndarray]:
    keras.utils.set_random_seed(seed)
    model = make_model()
    if isinstance(model, Gan):
        model.set_optimizers(make_optimizer)
        model.compile()
    else:
        model.compile(make_optimizer(), "mse")
    model.fit(data, epochs=2, verbose=0, **options)
    return model.get_weights()


def without_shapes(data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset whose batches alone say what their shapes are."""
    return tf.data.Dataset.from_generator(
        lambda: iter(data), output_types=(tf.float32, tf.float32)
    )


@pytest.mark.parametrize(
    ("make_model", "change"),
    [
        (kt.SubclassedModel, None),
        pytest.param(sequential, None, marks=pytest.mark.thorough),
        (sequential, without_shapes),
        pytest.param(
            lambda: Gan(has_inputs=True), None, marks=pytest.mark.thorough
        ),
        (lambda: Gan(has_inputs=False), None),
    ],
    ids=["subclass", "sequential", "no_shapes", "gan", "unbuilt_gan"],
)
def test_the_first_step_starts_from_the_weights_of_the_root(
    make_model: Callable[[], keras.Model], change: Any
) -> None:
    if change and hvd.size() == 1:
        pytest.skip("Keras refuses it in one process")
    x, y = kt.regression_data()
    expected = train(make_model, adam, kt.whole_batches(x, y), seed=100)
    data = kt.shares(x, y)
    weights = train(
        make_model,
        distributed,
        change(data) if change else data,
        seed=100 + hvd.rank(),
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    kt.assert_equal_on_all_ranks(weights)
    kt.assert_close(weights, expected, 1e-5)


def test_an_eager_model_is_built_by_a_call() -> None:
    class Eager(kt.SubclassedModel):
        def call(self, inputs: Any) -> Any:
            return super().call(inputs) + 0.0 * float(inputs.numpy()[0, 0])

    x, y = kt.regression_data(2 * kt.BATCH)
    arguments = {"run_eagerly": True}
    results = []
    for optimizer, data, seed, callbacks in (
        (adam(), kt.whole_batches(x, y), 100, []),
        (
            distributed(),
            kt.shares(x, y),
            100 + hvd.rank(),
            [BroadcastGlobalVariablesCallback()],
        ),
    ):
        keras.utils.set_random_seed(seed)
        model = Eager()
        model.compile(optimizer, "mse", **arguments)
        model.fit(data, verbose=0, callbacks=callbacks)
        results.append(model.get_weights())
    kt.assert_equal_on_all_ranks(results[1])
    kt.assert_close(results[1], results[0], 1e-5)


def test_all_optimizers_get_the_state_of_the_root() -> None:
    """Rank 0 goes on with a GAN; the others have a new one."""
    x, y = kt.regression_data()

    def train_gan(make_optimizer: Any, data: Any, **options: Any) -> Any:
        keras.utils.set_random_seed(100)
        model = Gan(has_inputs=True)
        model.set_optimizers(make_optimizer)
        model.compile()
        if hvd.rank() == 0 or not options:
            for part, optimizer in zip(
                model.parts, model.optimizers.values(), strict=True
            ):
                optimizer.build(part.trainable_variables)
                for slot in optimizer.variables[2:]:
                    slot.assign(np.full(slot.shape, 0.3))
        model.fit(data, verbose=0, **options)
        slots = [v for o in model.optimizers.values() for v in o.variables]
        return [np.asarray(v.numpy()) for v in [*model.weights, *slots]]

    expected = train_gan(adam, kt.whole_batches(x, y))
    values = train_gan(
        distributed,
        kt.shares(x, y),
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    kt.assert_equal_on_all_ranks(values)
    kt.assert_close(values, expected, 1e-5)
