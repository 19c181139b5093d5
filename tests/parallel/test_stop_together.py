"""All ranks end together when one stops or runs out of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    StepsGuard,
    SyncEarlyStopping,
)

pytestmark = pytest.mark.thorough(1, 4)

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
LAST = hvd.size() - 1


def compiled(optimizer: Any = None) -> keras.Model:
    model = kt.build(kt.functional_model)
    optimizer = optimizer or keras.optimizers.SGD(0.01)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    return model


class Steps(keras.callbacks.Callback):
    """Counts the epochs and batches of a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.num_epochs = 0
        self.num_batches = 0

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.num_epochs += 1

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.num_batches += 1


def assert_ended_together(model: keras.Model, steps: Steps) -> None:
    mine = (
        steps.num_epochs,
        steps.num_batches,
        int(model.optimizer.iterations.numpy()),
    )
    assert len(set(hvd.allgather_object(mine))) == 1
    kt.assert_equal_on_all_ranks(model.get_weights())


class StopAt(keras.callbacks.Callback):
    """Stops the last rank in a given hook."""

    def __init__(self, hook: str, at: int) -> None:
        super().__init__()

        def stop(number: int = at, logs: Any = None) -> None:
            if hvd.rank() == LAST and number == at:
                self.model.stop_training = True

        setattr(self, hook, stop)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("hook", "at", "num_epochs", "num_batches"),
    [
        ("on_epoch_end", 1, 2, 16),
        ("on_epoch_begin", 1, 2, 9),
        ("on_train_batch_begin", 3, 1, 4),
        ("on_train_batch_end", 3, 1, 4),
    ],
)
def test_all_ranks_stop_where_one_does(
    is_first: bool, hook: str, at: int, num_epochs: int, num_batches: int
) -> None:
    model, steps = compiled(), Steps()
    ours = [BroadcastGlobalVariablesCallback(), MetricAverageCallback()]
    stop = [StopAt(hook, at)]
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=4,
        verbose=0,
        validation_data=kt.regression_data(16),
        callbacks=[*stop, *ours, steps] if is_first else [*ours, steps, *stop],
    )
    assert (steps.num_epochs, steps.num_batches) == (num_epochs, num_batches)
    assert_ended_together(model, steps)


def test_early_stopping_without_averaged_metrics() -> None:
    # Each rank alone would stop in a different epoch.
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1 + hvd.rank()
    )
    model, history = compiled(), keras.callbacks.History()
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=6,
        verbose=0,
        callbacks=[SyncEarlyStopping(), stopping, history],
    )
    assert set(hvd.allgather_object(len(history.epoch))) == {2}
    kt.assert_equal_on_all_ranks(model.get_weights())


def test_nan_on_one_rank_ends_all_after_that_batch() -> None:
    x, y = kt.regression_data()
    rows = kt.BATCH * 2  # the third batch; the last rank has the row
    y[rows + kt.BATCH - 1] = np.nan
    model, steps = compiled(), Steps()
    model.fit(
        kt.shares(x, y),
        epochs=2,
        verbose=0,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            BroadcastGlobalVariablesCallback(),
            steps,
        ],
    )
    assert (steps.num_epochs, steps.num_batches) == (1, 3)
    assert_ended_together(model, steps)


def test_a_callback_on_one_rank_alone_stops_all() -> None:
    # Keras calls the others' `on_train_batch_end` in a thread of its own.
    model = compiled()
    stop = [StopAt("on_train_batch_end", 2)] if hvd.rank() == LAST else []
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback(), *stop],
    )
    assert int(model.optimizer.iterations.numpy()) == 3
    kt.assert_equal_on_all_ranks(model.get_weights())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_step_stops_all_ranks(is_first: bool) -> None:
    class Model(keras.Model):
        num_steps = 0

        def train_step(self, data: Any) -> dict[str, Any]:
            self.num_steps += 1
            if hvd.rank() == LAST and self.num_steps == 3:
                self.stop_training = True
            return super().train_step(data)

    inputs = keras.Input((kt.NUM_FEATURES,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        "mse",
        run_eagerly=True,
    )
    ours = [SyncEarlyStopping(each_batch=True)]
    other = [BroadcastGlobalVariablesCallback()]
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[*ours, *other] if is_first else [*other, *ours],
    )
    assert model.num_steps == 3
    kt.assert_equal_on_all_ranks(model.get_weights())


def test_a_callback_list_may_be_called_by_hand() -> None:
    model = compiled()
    callbacks = keras.callbacks.CallbackList(
        [StopAt("on_epoch_end", 1), SyncEarlyStopping()], model=model
    )
    for _ in range(2):
        model.stop_training = False
        callbacks.on_train_begin()
        for epoch in range(4):
            callbacks.on_epoch_begin(epoch)
            callbacks.on_epoch_end(epoch)
            if model.stop_training:
                break
        callbacks.on_train_end()
        assert epoch == 1
        assert len(callbacks.callbacks) == 2


def generated(num_batches: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = kt.regression_data(8 * num_batches)
    for start in range(0, len(x), 8):
        yield x[start : start + 8], y[start : start + 8]


def filtered(num_batches: int) -> tf.data.Dataset:
    """Returns batches of unknown number; the last one is smaller."""
    x, y = kt.regression_data(8 * num_batches - 3)
    y = (y > 0.0).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return data.filter(lambda x, y: True)


@pytest.mark.thorough(4)
@pytest.mark.parametrize("make_data", [generated, filtered])
@pytest.mark.parametrize("steps_per_epoch", [None, 6])
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_data_of_unknown_length_end_together(
    make_data: Callable[[int], Any],
    steps_per_epoch: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, steps = compiled(), Steps()
    model.fit(
        make_data(3 + hvd.rank()),
        epochs=1 if make_data is generated else 2,
        steps_per_epoch=steps_per_epoch,
        class_weight={0: 1.0, 1: 2.0} if make_data is filtered else None,
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback(), steps],
    )
    assert steps.num_batches == 3 * steps.num_epochs
    if hvd.size() > 1:  # plain Keras counts one more step an epoch
        assert int(model.optimizer.iterations.numpy()) == steps.num_batches
    told = [r.message for r in caplog.records if "ended an epoch" in r.message]
    assert len(told) == int(hvd.rank() == 0 and hvd.size() > 1)
    for message in told:
        others = "rank 1" if hvd.size() == 2 else "ranks 1, "
        assert "after 3 batches, since the data of rank 0 end" in message
        assert f"Those of {others}" in message
    assert_ended_together(model, steps)
    # Another `fit`, on this rank alone, needs no other rank.
    plain = kt.build(kt.functional_model)
    plain.compile("sgd", "mse")
    plain.fit(filtered(1 + hvd.rank()), verbose=0)


@pytest.mark.thorough(4)
@needs_peers
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_data_of_equal_length_end_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled().fit(generated(3), verbose=0, callbacks=[StepsGuard()])
    assert "ended an epoch" not in caplog.text


@pytest.mark.thorough(4)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_executions_of_several_steps_end_together() -> None:
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        "mse",
        steps_per_execution=2,
    )
    model.fit(
        filtered(3 + 2 * hvd.rank()),
        verbose=0,
        callbacks=[StepsGuard(), MetricAverageCallback()],
    )
    assert int(model.optimizer.iterations.numpy()) == 3
    kt.assert_equal_on_all_ranks(model.get_weights())


@needs_peers
@pytest.mark.parametrize("kind", ["known", "mixed", "capped"])
def test_unequal_numbers_of_steps_are_an_error_before_the_first(
    kind: str,
) -> None:
    model, steps = compiled(), Steps()
    num_batches = 3 + hvd.rank()
    x, y = kt.regression_data(8 * num_batches)
    is_unknown = kind == "mixed" and hvd.rank() == LAST
    data = filtered(num_batches) if is_unknown else None
    counts = {
        "known": [3 + rank for rank in range(hvd.size())],
        "mixed": [*[3 + rank for rank in range(LAST)], "unknown"],
        "capped": [3 + rank for rank in range(hvd.size())],
    }[kind]
    with pytest.raises(hvd.MismatchError) as caught:
        model.fit(
            data or x,
            None if data else y,
            batch_size=None if data else 8,
            epochs=2,
            steps_per_epoch=3 if kind == "capped" else None,
            verbose=0,
            callbacks=[steps, StepsGuard()],
        )
    assert f"[{', '.join(map(str, counts))}]" in str(caught.value)
    assert steps.num_batches == 0


@needs_peers
def test_unequal_callbacks_of_ours_are_an_error() -> None:
    model = compiled()
    mine = [MetricAverageCallback()] if hvd.rank() == LAST else []
    with pytest.raises(hvd.MismatchError, match="same callbacks"):
        model.fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            callbacks=[StepsGuard(), *mine],
        )
