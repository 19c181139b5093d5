"""All ranks start from one rank's state and have the same plan."""

from __future__ import annotations

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback

pytestmark = pytest.mark.thorough(1, 4)

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


def differing(make_model) -> keras.Model:
    keras.utils.set_random_seed(100 + hvd.rank())
    return make_model()


def state(model: keras.Model) -> list[np.ndarray]:
    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(variable.numpy()) for variable in variables]


class StateBeforeFirstStep(keras.callbacks.Callback):
    def on_train_begin(self, logs=None) -> None:
        self.state = state(self.model)

    def on_train_batch_begin(self, batch, logs=None) -> None:
        if batch == 0:
            self.state = state(self.model)


def with_normalization() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.BatchNormalization()(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@pytest.mark.thorough(4)
@pytest.mark.parametrize("root_rank", [0, hvd.size() - 1])
@pytest.mark.parametrize("builders", ["none", "root", "all"])
def test_built_models_are_equal_before_the_first_step(
    root_rank: int, builders: str
) -> None:
    model = differing(with_normalization)
    own = [weight.copy() for weight in model.get_weights()]
    optimizer = keras.optimizers.Adam(0.1 * (hvd.rank() + 1))
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    if builders == "all" or (builders == "root" and hvd.rank() == root_rank):
        optimizer.build(model.trainable_variables)
    before = StateBeforeFirstStep()
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback(root_rank), before],
    )
    # 6 weights, step, rate, and 2 slots for each of 4 trainable weights.
    num_slots = 0 if builders == "none" else 2 * 4
    assert len(before.state) == 6 + 2 + num_slots
    kt.assert_equal_on_all_ranks(before.state)
    kept = all(
        (ours == theirs).all()
        for ours, theirs in zip(own, before.state, strict=False)
    )
    assert kept == (hvd.rank() == root_rank)
    rate = float(model.optimizer.learning_rate.numpy())
    assert rate == pytest.approx(0.1 * (root_rank + 1))
    kt.assert_equal_on_all_ranks(state(model))


@pytest.mark.thorough(4)
@pytest.mark.parametrize("steps_per_epoch", [1, 3])
@pytest.mark.parametrize("validate", [False, True])
def test_other_models_are_equal_after_the_first_batch(
    steps_per_epoch: int, validate: bool
) -> None:
    model = differing(kt.SubclassedModel)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        "mse",
    )
    data = kt.shares(*kt.regression_data())
    model.fit(
        data.repeat(),
        epochs=2,
        steps_per_epoch=steps_per_epoch,
        validation_data=data if validate else None,
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    kt.assert_equal_on_all_ranks(state(model))


def test_a_model_that_some_ranks_have_built_is_equal_after_fit() -> None:
    model = differing(kt.SubclassedModel)
    if hvd.rank() == 0:
        model(np.zeros((1, kt.NUM_FEATURES), np.float32))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    kt.assert_equal_on_all_ranks(state(model))


def test_seed_states_are_made_different_once() -> None:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.Dropout(0.5, seed=3)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    callback = BroadcastGlobalVariablesCallback()
    data = kt.shares(*kt.regression_data())

    def seeds() -> list[int]:
        generator = model.layers[1].seed_generator
        return hvd.allgather_object(int(generator.state.numpy()[0]))

    model.fit(data, verbose=0, callbacks=[callback])
    first = seeds()
    assert first[0] == 3
    assert len(set(first)) == hvd.size()
    model.fit(data, verbose=0, callbacks=[callback])
    assert seeds() == first


def test_accumulated_gradients_stay_on_their_rank() -> None:
    model = differing(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=4
        ),
        "mse",
    )
    # 4 batches make a step; 3 batches leave sums of 3 gradients.
    data = kt.shares(*kt.regression_data())
    callback = BroadcastGlobalVariablesCallback()
    model.fit(data.take(3), verbose=0, callbacks=[callback])
    sums = [
        variable.numpy()
        for variable in model.optimizer.variables
        if "gradient_accumulator" in variable.path
    ]
    assert len(sums) == 4
    after = StateBeforeFirstStep()
    model.fit(data.take(1), verbose=0, callbacks=[callback, after])
    for value in sums:
        assert any(
            value.shape == other.shape and (value == other).all()
            for other in after.state
        )


@needs_peers
@pytest.mark.parametrize("what", ["steps", "epochs"])
def test_unequal_plans_are_an_error_on_all_ranks(what: str) -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    weights = model.get_weights()
    x, y = kt.regression_data()
    num_rows = 32 if what == "epochs" else 8 * (hvd.rank() + 4)
    epochs = 2 + hvd.rank() if what == "epochs" else 2
    with pytest.raises(hvd.MismatchError, match=what):
        model.fit(
            x[:num_rows],
            y[:num_rows],
            batch_size=8,
            epochs=epochs,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback()],
        )
    for now, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, before)


@needs_peers
def test_different_models_are_an_error_on_all_ranks() -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.Dense(4 + hvd.rank(), name="odd")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    words = r"layer 'odd' \(Dense\)\.units=4 on rank 0;"
    with pytest.raises(hvd.MismatchError, match=words):
        model.fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback()],
        )


@needs_peers
@pytest.mark.parametrize("last", [False, True])
def test_unequal_initial_epochs_are_an_error_on_all_ranks(last: bool) -> None:
    # In the last case rank 1 has no epoch left and ends at once.
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    weights = model.get_weights()
    with pytest.raises(hvd.MismatchError, match="initial_epoch"):
        model.fit(
            kt.shares(*kt.regression_data()),
            initial_epoch=min(hvd.rank() * (3 if last else 1), 3),
            epochs=3,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback()],
        )
    for now, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, before)


def test_equal_initial_epochs_are_fine() -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callback = BroadcastGlobalVariablesCallback()
    for initial_epoch in (2, 3):
        history = model.fit(
            kt.shares(*kt.regression_data()),
            initial_epoch=initial_epoch,
            epochs=3,
            verbose=0,
            callbacks=[callback],
        )
        assert len(history.epoch) == 3 - initial_epoch


class LazyModel(kt.SubclassedModel):
    """Claims to be built before its layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.built = True


def test_a_model_that_claims_to_be_built_is_equal_after_fit() -> None:
    model = differing(LazyModel)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    assert len(model.weights) == 4
    kt.assert_equal_on_all_ranks(state(model))


def test_a_trained_variable_outside_the_model_is_equal_after_fit() -> None:
    scale = keras.Variable(1.0)

    class Model(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                error = self(x, training=True) * scale.value - y
                loss = tf.reduce_mean(error**2)
            variables = [*self.trainable_variables, scale]
            gradients = tape.gradient(loss, [v.value for v in variables])
            self.optimizer.apply(gradients, variables)
            return {"loss": loss}

    def make_model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        return Model(inputs, keras.layers.Dense(1)(inputs))

    model = differing(make_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    callback = BroadcastGlobalVariablesCallback()
    data = kt.shares(*kt.regression_data())
    for _ in range(2):
        model.fit(data, verbose=0, callbacks=[callback])
    assert scale.numpy() != 1.0
    kt.assert_equal_on_all_ranks([*state(model), np.asarray(scale.numpy())])


class WeightsWhenValidated(keras.callbacks.Callback):
    def on_test_begin(self, logs=None) -> None:
        self.weights = self.model.get_weights()


def test_moving_statistics_are_equal_and_the_mean_over_the_ranks() -> None:
    x, y = kt.regression_data()
    data = kt.shares(x, y)
    model = differing(with_normalization)
    model.layers[2].trainable = False
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    seen = WeightsWhenValidated()
    model.fit(
        data,
        epochs=2,
        verbose=0,
        validation_data=data,
        callbacks=[BroadcastGlobalVariablesCallback(), seen],
    )
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_equal_on_all_ranks(seen.weights)
    for now, then in zip(model.get_weights(), seen.weights, strict=True):
        np.testing.assert_array_equal(now, then)
    layer = model.layers[1]
    mean, variance = np.zeros(kt.NUM_FEATURES), np.ones(kt.NUM_FEATURES)
    for _ in range(2):
        for start in range(0, len(x), kt.BATCH):
            parts = np.split(x[start : start + kt.BATCH], hvd.size())
            mean = 0.99 * mean + 0.01 * np.mean([p.mean(0) for p in parts], 0)
            variance = 0.99 * variance + 0.01 * np.mean(
                [p.var(0) for p in parts], 0
            )
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), mean, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        layer.moving_variance.numpy(), variance, rtol=1e-4
    )


def test_statistics_are_equal_without_validation_and_in_half_precision() -> (
    None
):
    def make_model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        hidden = keras.layers.BatchNormalization(dtype="bfloat16")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    model = differing(make_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback()],
    )
    values = [np.asarray(w.numpy()) for w in model.weights]
    kt.assert_equal_on_all_ranks([value.astype(np.float32) for value in values])


@needs_peers
@pytest.mark.parametrize("by", ["callback", "optimizer"])
def test_local_statistics_are_neither_broadcast_nor_averaged(by: str) -> None:
    x, y = kt.regression_data()
    model = differing(with_normalization)
    layer = model.layers[1]
    layer.moving_mean.assign(np.full(kt.NUM_FEATURES, float(hvd.rank())))
    local_variables, local_layers = None, None
    if by == "callback":
        local_variables = layer.non_trainable_weights
    else:
        local_layers = layer
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=local_layers
    )
    model.compile(optimizer, "mse")
    broadcast = BroadcastGlobalVariablesCallback(
        local_variables=local_variables
    )
    model.fit(kt.shares(x, y), epochs=2, verbose=0, callbacks=[broadcast])
    mean = np.full(kt.NUM_FEATURES, float(hvd.rank()))
    for _ in range(2):
        for batch, _ in kt.shares(x, y):
            mean = 0.99 * mean + 0.01 * np.mean(batch, axis=0)
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), mean, rtol=1e-4, atol=1e-6
    )
    kt.assert_equal_on_all_ranks(model.layers[2].get_weights())
