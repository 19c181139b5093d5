"""A loop of one's own on unequal shares is told what to do."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from unequal_loops import (  # noqa: F401
    Lines,
    Loop,
    is_told,
    lines,
    needs_peers,
    rows,
    test_a_loop_on_equal_rows_is_told_nothing,
    test_a_loop_on_unequal_rows_is_told_once,
    test_a_loop_with_a_global_mean_is_exact,
    test_a_share_that_is_only_looked_at_is_told_nothing,
    test_batches_of_a_py_dataset_of_other_lengths_are_told,
    test_keras_itself_is_told_nothing,
    test_last_batches_that_are_cut_are_told,
)

import hvd_keras as hvd

pytestmark = needs_peers


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_dataset_of_unknown_length_is_told(
    lines: Lines,  # noqa: F811
    is_exact: bool,
) -> None:
    size = hvd.size()
    data = tf.data.Dataset.from_tensor_slices(rows(4 * size + size + 1))
    data = data.filter(lambda x, y: True)
    Loop(is_exact=is_exact).run(hvd.shard(data, batch_size=4))
    words = f"2 rows on rank {size - 1}, 1 row on rank 0"
    assert is_told(lines, words) != is_exact


@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_loop_that_tensorflow_runs_is_told(
    lines: Lines,  # noqa: F811
    rest: int,
    by_hand: bool,
) -> None:
    size = hvd.size()
    share = hvd.shard(rows(4 * size + size + rest), batch_size=4)
    loop = Loop()

    @tf.function
    def epoch() -> None:
        for x, y in share:
            loop.step(x, y)

    @tf.function
    def step(batches: Any) -> None:
        loop.step(*next(batches))

    if by_hand:
        step(iter(share))
    else:
        epoch()
    assert is_told(lines) == bool(rest)


def test_a_tape_that_reduces_is_told(
    lines: Lines,  # noqa: F811
) -> None:
    share = hvd.shard(rows(4 * hvd.size() + hvd.size() + 1), batch_size=4)
    loop = Loop()
    plain = tf.keras.optimizers.SGD(0.1)
    variables = loop.model.trainable_variables
    for x, y in share:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loop.loss(y, loop.model(x))
        plain.apply(tape.gradient(loss, variables), variables)
    assert is_told(lines, "1 row on rank 0")


def test_sums_are_told_nothing(
    lines: Lines,  # noqa: F811
) -> None:
    share = hvd.shard(rows(4 * hvd.size() + hvd.size() + 1), batch_size=4)
    loop = Loop()
    for x, y in share:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.reduce_sum((y - loop.model(x)) ** 2) / (4 * hvd.size())
        tape.gradient(loss, loop.model.trainable_variables)
    assert lines.everywhere() == [[]] * hvd.size()
