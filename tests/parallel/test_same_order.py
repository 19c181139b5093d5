"""Ranks that read data in unequal orders are told; nothing is read for that."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import order_cases
import pytest
import tensorflow as tf
from order_cases import (  # noqa: F401
    needs_peers,
    test_a_look_at_the_data_changes_nothing,
    test_a_new_process_goes_on_with_the_orders,
    test_a_py_dataset_of_own_rows_is_told,
    test_caches_of_batches_are_no_orders,
    test_epochs_of_few_steps_go_on_with_the_same_order,
    test_equal_draws_of_rows_are_told,
    test_equal_orders_outside_of_attributes_pass,
    test_equal_shuffles_of_a_py_dataset_pass,
    test_evaluate_alone_is_compared,
    test_fit_does_not_shuffle_batches,
    test_orders_outside_of_attributes_are_told,
    test_unequal_shuffles_of_a_py_dataset_are_told,
    test_validation_is_compared,
)

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(order_cases.rows())


def in_any_order() -> tf.data.Dataset:
    def wait(x: Any) -> Any:
        if x[0] > 0.5:  # not in the first steps
            time.sleep(random.SystemRandom().random() / 50)
        return x

    def slow(x: tf.Tensor, y: tf.Tensor) -> Any:
        slowed = tf.numpy_function(wait, [x], tf.float32)
        return tf.ensure_shape(slowed, [2]), y

    return dataset().map(slow, num_parallel_calls=8, deterministic=False)


def shuffled_by_rank() -> tf.data.Dataset:
    """Returns what no description tells: rows are the same at first."""
    first, rest = dataset().take(48), dataset().skip(48)
    order = tf.data.Dataset.from_tensors(0).flat_map(
        lambda _: rest.shuffle(48, seed=hvd.rank())
    )
    return first.concatenate(order)


@needs_peers
@pytest.mark.parametrize("make", [in_any_order, shuffled_by_rank])
@pytest.mark.parametrize("steps", [1, 4])
def test_rows_in_another_order_are_told(make: Any, steps: int) -> None:
    data = hvd.shard(make(), batch_size=4)
    model = order_cases.model()
    model.steps_per_execution = steps
    for _ in range(2):
        with pytest.raises(hvd.MismatchError) as raised:
            order_cases.weights_after_fit(data, 2, model)
    text = str(raised.value)
    assert "of epoch 2, rows that begin with " in text
    assert "shuffle(buffer_size, seed=1)" in text
    assert "`deterministic=True`" in text


@needs_peers
def test_an_own_look_at_what_is_shuffled_is_told() -> None:
    data = hvd.shard(dataset().shuffle(96, seed=1), batch_size=4)
    if hvd.rank() == 0:
        next(iter(data))
    with pytest.raises(hvd.MismatchError, match="on all ranks or on none"):
        order_cases.weights_after_fit(data)


@needs_peers
def test_an_epoch_of_some_steps_is_compared() -> None:
    data = hvd.shard(shuffled_by_rank().repeat(), batch_size=4)
    with pytest.raises(hvd.MismatchError, match="rows that begin with"):
        order_cases.weights_after_fit(data, 8, steps_per_epoch=3)


@needs_peers
def test_predict_compares_the_order() -> None:
    model = order_cases.model()
    with pytest.raises(hvd.MismatchError, match="rows that begin with"):
        hvd.predict(model, shuffled_by_rank().batch(8), batch_size=4, verbose=0)


@pytest.mark.parametrize("batched", [False, True])
def test_equal_orders_pass(batched: bool) -> None:
    data = dataset().shuffle(96, seed=1).filter(lambda x, y: x[0] > 0.1)
    if batched:
        data = data.batch(7)
    share = hvd.shard(data, batch_size=4, batched=batched)
    held_out = hvd.shard(dataset(), batch_size=4)
    weights = order_cases.weights_after_fit(share, validation_data=held_out)
    assert np.isfinite(weights).all()


def once() -> tf.data.Dataset:
    """Returns data that can be read only once."""
    left = iter(zip(*order_cases.rows(), strict=True))

    def rows() -> Iterator[Any]:
        yield from left

    specs = tf.TensorSpec([2]), tf.TensorSpec([1])
    return tf.data.Dataset.from_generator(rows, output_signature=specs)


def test_data_that_can_be_read_once_are_complete() -> None:
    share = hvd.shard(once(), batch_size=4)
    own = [float(x) for batch in share for x in batch[1][:, 0]]
    found = np.concatenate(hvd.allgather_object(own))
    np.testing.assert_allclose(np.sort(found), order_cases.rows()[1][:, 0])


def test_data_that_can_be_read_once_are_all_predicted() -> None:
    model = order_cases.model()
    expected = model.predict(order_cases.rows()[0], verbose=0)
    found = hvd.predict(model, once().batch(8), batch_size=4, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@needs_peers
@pytest.mark.parametrize("kind", ["shard", "skip"])
def test_a_share_by_stages_is_no_data_to_share(kind: str) -> None:
    data = (
        dataset().shard(hvd.size(), hvd.rank())
        if kind == "shard"
        else dataset().map(lambda x, y: (x * 2, y)).skip(8 * hvd.rank())
    )
    text = f"dataset.shard({hvd.size()}, 1)` on rank 1"
    if kind == "skip":
        text = "dataset.skip(8)` on rank 1"
    with pytest.raises(hvd.MismatchError, match=re.escape(text)) as error:
        hvd.shard(data.batch(8), batched=True)
    assert "Pass all the data on each rank" in str(error.value)
