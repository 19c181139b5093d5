"""Metrics over uneven shards equal those of one process on all samples."""

from __future__ import annotations

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from metric_models import (
    NUM_ROWS,
    assert_logs_close,
    classification_data,
    classifier,
    compiled,
    metrics,
)

import hvd_keras as hvd
from hvd_keras.callbacks import MetricAverageCallback

pytestmark = pytest.mark.thorough(1, 4)


def test_evaluate_equals_one_process() -> None:
    x, y = classification_data()
    model = compiled()
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    rows = kt.uneven_share(NUM_ROWS)
    callback = MetricAverageCallback()
    logs = model.evaluate(
        x[rows],
        y[rows],
        batch_size=4,
        verbose=0,
        return_dict=True,
        callbacks=[callback],
    )
    assert_logs_close(logs, expected)
    # Without the callback each rank gets its own value again.
    alone = model.evaluate(x[rows], y[rows], verbose=0, return_dict=True)
    own = hvd.allgather_object(alone["loss"])
    assert hvd.size() == 1 or len(set(own)) > 1


@pytest.mark.ranks(2)
def test_evaluate_returns_a_list_too() -> None:
    x, y = classification_data()
    model = compiled()
    expected = model.evaluate(x, y, verbose=0)
    rows = kt.uneven_share(NUM_ROWS)
    values = model.evaluate(
        x[rows], y[rows], verbose=0, callbacks=[MetricAverageCallback()]
    )
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5)


def test_fit_logs_equal_one_process_in_every_callback() -> None:
    # A rate of 0 lets each rank do its own number of batches.
    x, y = classification_data()
    expected = compiled().fit(
        x, y, verbose=0, epochs=2, validation_data=(x, y), shuffle=False
    )
    seen: list[dict] = []
    first = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(dict(logs))
    )
    rows = kt.uneven_share(NUM_ROWS)
    history = compiled().fit(
        x[rows],
        y[rows],
        batch_size=5,
        verbose=0,
        epochs=2,
        validation_data=(x[rows], y[rows]),
        callbacks=[first, MetricAverageCallback()],
    )
    assert len(history.history) == 14
    assert_logs_close(history.history, expected.history)
    for epoch, logs in enumerate(seen):
        wanted = {k: v[epoch] for k, v in expected.history.items()}
        assert_logs_close(logs, wanted)


def test_early_stopping_ends_all_ranks_in_the_same_epoch() -> None:
    x, y = classification_data()
    rows = kt.uneven_share(NUM_ROWS)
    model = compiled(learning_rate=0.0)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    history = model.fit(
        x[rows],
        y[rows],
        epochs=9,
        verbose=0,
        validation_data=(x[rows], y[rows]),
        callbacks=[stopping, MetricAverageCallback()],
    )
    lengths = hvd.allgather_object(len(history.history["loss"]))
    assert len(set(lengths)) == 1
    assert lengths[0] < 9


@pytest.mark.ranks(2)
def test_two_callbacks_sum_once() -> None:
    x, y = classification_data()
    model = compiled()
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    rows = kt.uneven_share(NUM_ROWS)
    logs = model.evaluate(
        x[rows],
        y[rows],
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback(), MetricAverageCallback()],
    )
    assert_logs_close(logs, expected)


def test_a_rank_without_samples_gets_the_values_of_all() -> None:
    x, y = classification_data()
    model = compiled()
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    rows = slice(0, NUM_ROWS if hvd.rank() == 0 else 0)
    share = tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(8)
    logs = model.evaluate(
        share,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    assert_logs_close(logs, expected)


def test_logs_without_a_metric_are_averaged() -> None:
    class Model(keras.Model):
        def test_step(self, data):
            return {"rank": keras.ops.convert_to_tensor(float(hvd.rank()))}

    inputs = keras.Input((kt.NUM_FEATURES,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(loss="mse")
    x, y = kt.regression_data(8)
    logs = model.evaluate(
        x,
        y,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    assert logs["rank"] == pytest.approx((hvd.size() - 1) / 2)


def test_a_metric_that_cannot_be_summed_is_averaged_by_samples() -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_variable(
                (), "zeros", aggregation="none", name="value"
            )

        def update_state(self, y_true, y_pred, sample_weight=None):
            largest = keras.ops.max(y_true)
            self.value.assign(keras.ops.maximum(self.value, largest))

        def result(self):
            return self.value

    model = kt.build(classifier)
    model.compile(loss="binary_crossentropy", metrics=[Largest(), *metrics()])
    x, y = classification_data()
    y = y * 0
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    rows = kt.uneven_share(NUM_ROWS)
    mine = y[rows] + float(hvd.rank())
    logs = model.evaluate(
        x[rows],
        mine,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    counts = hvd.allgather_object(len(mine))
    wanted = sum(rank * count for rank, count in enumerate(counts))
    assert logs["largest"] == pytest.approx(wanted / NUM_ROWS)
    if hvd.size() == 1:
        assert_logs_close(logs, expected)
    kt.assert_equal_on_all_ranks([np.asarray(value) for value in logs.values()])


class GuideModel(keras.Model):
    """Writes its steps as Keras's guides do, with an extra value."""

    def train_step(self, data):
        x, y = data
        y_pred = self(x, training=True)
        self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(self.compute_loss(y=y, y_pred=y_pred))
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        extra = keras.ops.convert_to_tensor(float(hvd.rank()))
        return {**super().test_step(data), "extra": extra}


def guide_model() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    outputs = keras.layers.Dense(1, activation="sigmoid")(inputs)
    model = GuideModel(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=metrics()
    )
    return model


@pytest.mark.ranks(2)
def test_nested_metrics_of_a_train_step_are_over_all_samples() -> None:
    x, y = classification_data()
    expected = compiled().fit(x, y, verbose=0).history
    rows = kt.uneven_share(NUM_ROWS)
    history = (
        kt.build(guide_model)
        .fit(
            x[rows],
            y[rows],
            batch_size=5,
            verbose=0,
            callbacks=[MetricAverageCallback()],
        )
        .history
    )
    for name in ("recall", "precision", "auc", "f1", "r2", "rmse"):
        np.testing.assert_allclose(
            history[name], expected[name], rtol=2e-5, err_msg=name
        )


@pytest.mark.ranks(2)
def test_an_extra_log_leaves_the_metrics_exact() -> None:
    x, y = classification_data()
    expected = compiled().evaluate(x, y, verbose=0, return_dict=True)
    rows = kt.uneven_share(NUM_ROWS)
    logs = kt.build(guide_model).evaluate(
        x[rows],
        y[rows],
        batch_size=4,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    counts = hvd.allgather_object(rows.stop - rows.start)
    extra = sum(rank * count for rank, count in enumerate(counts)) / NUM_ROWS
    assert logs.pop("extra") == pytest.approx(extra)
    assert_logs_close(logs, expected)


@pytest.mark.ranks(2)
def test_metrics_of_the_model_keep_the_state_of_the_rank() -> None:
    x, y = classification_data()
    rows = kt.uneven_share(NUM_ROWS)

    def states(callbacks: list) -> list[np.ndarray]:
        model = compiled()
        model.evaluate(x[rows], y[rows], verbose=0, callbacks=callbacks)
        return [np.asarray(v.numpy()) for v in model.metrics_variables]

    alone = states([])
    assert len(alone) > 6
    for value, own in zip(
        states([MetricAverageCallback()]), alone, strict=True
    ):
        np.testing.assert_array_equal(value, own)
    numbers = [float(value) for value in alone if value.shape == ()]
    of_ranks = hvd.allgather_object(numbers)
    assert hvd.size() == 1 or of_ranks[0] != of_ranks[-1]


def test_a_rank_without_samples_has_no_weight_in_an_average() -> None:
    x, y = classification_data()
    rows = slice(0, NUM_ROWS if hvd.rank() == 0 else 0)
    share = tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(8)

    class Constant(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="constant")
            self.value = self.add_variable(
                (), "zeros", aggregation="none", name="value"
            )

        def update_state(self, y_true, y_pred, sample_weight=None):
            # Must depend on the batch, or it runs after the last one too.
            self.value.assign(3.0 + 0.0 * keras.ops.max(y_true))

        def result(self):
            return self.value

    model = kt.build(classifier)
    model.compile(loss="binary_crossentropy", metrics=[Constant()])
    # This builds the metric on a rank without a batch too.
    model.evaluate(x[:8], y[:8], verbose=0)
    logs = model.evaluate(
        share,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    assert logs["constant"] == pytest.approx(3.0)


class Interrupt(keras.callbacks.Callback):
    def __init__(self, where: str) -> None:
        super().__init__()
        setattr(self, where, self._raise)

    def _raise(self, *args, **kwargs) -> None:
        raise KeyboardInterrupt


@pytest.mark.ranks(2)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "where", ["on_train_batch_end", "on_test_batch_end", "on_epoch_end"]
)
def test_a_rank_evaluates_alone_after_an_interrupt(where: str) -> None:
    x, y = classification_data()
    rows = kt.uneven_share(NUM_ROWS)
    model = compiled()
    average = MetricAverageCallback()
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            x[rows],
            y[rows],
            verbose=0,
            validation_data=(x[rows], y[rows]),
            callbacks=[average, Interrupt(where)],
        )
    expected = compiled().evaluate(x, y, verbose=0, return_dict=True)
    if hvd.rank() == 0:
        alone = model.evaluate(x, y, verbose=0, return_dict=True)
        assert_logs_close(alone, expected)
    # Then all ranks evaluate together again.
    for callbacks in ([average], [MetricAverageCallback()]):
        logs = model.evaluate(
            x[rows], y[rows], verbose=0, return_dict=True, callbacks=callbacks
        )
        assert_logs_close(logs, expected)


@pytest.mark.ranks(2)
def test_a_rank_evaluates_alone_in_a_callback() -> None:
    x, y = classification_data()
    rows = kt.uneven_share(NUM_ROWS)
    expected = compiled().evaluate(x, y, verbose=0, return_dict=True)
    seen: list[dict] = []

    class Alone(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None) -> None:
            if hvd.rank() == 0:
                seen.append(
                    self.model.evaluate(x, y, verbose=0, return_dict=True)
                )

    history = compiled().fit(
        x[rows],
        y[rows],
        verbose=0,
        epochs=2,
        callbacks=[MetricAverageCallback(), Alone()],
    )
    assert len(seen) == (2 if hvd.rank() == 0 else 0)
    for logs in seen:
        assert_logs_close(logs, expected)
    for epoch in range(2):
        logs = {k: v[epoch] for k, v in history.history.items()}
        assert_logs_close(logs, expected)
