"""Losses, steps and optimizers of the user's train as on one process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import cases, data, own_losses
from equality.check import assert_equals_one_process
from selection import thorough_except

import hvd_keras as hvd


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    "name",
    thorough_except(
        list(cases.OWN),
        *("atoms", "own_step_few", "vector_step_few", "class_weight"),
    ),
)
def test_training_equals_one_process(name: str) -> None:
    assert_equals_one_process(cases.OWN[name])


def _share(policy: str, num_rows: int = own_losses.UNEVEN) -> Any:
    x, y = data.rows(num_rows)
    batch_size = data.GLOBAL_BATCH // hvd.size()
    return hvd.shard((x, y), batch_size=batch_size, policy=policy)


def _model(cls: type) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = own_losses.own(cls)()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    return model


@pytest.mark.parametrize("cls", [own_losses.OwnMean, own_losses.OwnStep])
def test_a_mean_over_filled_batches_is_refused(cls: type) -> None:
    model = _model(cls)
    for _ in range(3):
        with pytest.raises(ValueError, match=f"{cls.__name__} with data dealt"):
            model.fit(_share("pad"), verbose=0)


def test_an_unknown_mean_over_unequal_rows_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _model(own_losses.OwnStep)
    for _ in range(2):
        model.fit(_share("split"), verbose=0)
    told = [r for r in caplog.records if "hvd.global_mean" in r.getMessage()]
    is_uneven = hvd.size() > 1 and own_losses.UNEVEN % data.GLOBAL_BATCH
    assert len(told) == int(bool(is_uneven and hvd.rank() == 0))


def test_global_mean_in_a_step_of_fit() -> None:
    class Masked(own_losses.OwnStep):
        def _mean(self, labels: Any, outputs: Any) -> Any:
            each = keras.ops.square(labels - outputs)
            return hvd.global_mean(each, mask=labels > -1.0)

    class Alone(own_losses.OwnStep):
        def _mean(self, labels: Any, outputs: Any) -> Any:
            each = keras.ops.square(labels - outputs)
            mask = keras.ops.cast(labels > -1.0, "float32")
            return keras.ops.sum(each * mask) / keras.ops.sum(mask)

    keras.utils.set_random_seed(3)
    alone = own_losses.own(Alone)()
    alone.compile(keras.optimizers.SGD(0.01))
    x, y = data.rows(own_losses.FEW + 1)
    alone.fit(x, y, data.GLOBAL_BATCH, shuffle=False, verbose=0)
    for policy in ("split", "pad"):
        model = _model(Masked)
        model.fit(_share(policy, len(x)), verbose=0)
        for mine, theirs in zip(
            model.get_weights(), alone.get_weights(), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_fits_of_the_same_kind_are_traced_once() -> None:
    traces = []

    class Counting(own_losses.OwnMean):
        def call(self, *args: Any, **kw: Any) -> Any:
            if tf.inside_function():
                traces.append(1)
            return super().call(*args, **kw)

    model = _model(Counting)
    uneven, even = _share("split"), _share("drop")
    model.fit(uneven, verbose=0)
    model.fit(even, verbose=0)
    count = len(traces)
    model.fit(uneven, verbose=0)
    model.fit(even, verbose=0)
    assert len(traces) == count
    # What it traced does not outlive what it was compiled for.
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    model.fit(uneven, verbose=0)
    assert len(traces) > count


def test_a_map_that_drops_the_marks_is_told() -> None:
    if hvd.size() < 2:
        pytest.skip("one rank fills nothing")
    model = _model(own_losses.OwnMean)
    share = _share("split", own_losses.FEW).map(lambda x, y, w: (x, y))
    with pytest.raises(ValueError, match="must keep the last entry"):
        model.fit(share, verbose=0)


def test_a_model_has_its_own_steps_after_fit() -> None:
    model = _model(own_losses.OwnStep)
    model.fit(_share("split"), verbose=0)
    assert "train_step" not in vars(model)
    assert "test_step" not in vars(model)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_data_of_unknown_length_take_no_step_more(
    steps_per_execution: int,
) -> None:
    x, y = data.rows(2 * data.GLOBAL_BATCH + 5)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True)
    model = data.dense_model()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam()),
        "mse",
        steps_per_execution=steps_per_execution,
    )
    share = hvd.shard(rows, batch_size=data.GLOBAL_BATCH // hvd.size())
    model.fit(share, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2 * 3
