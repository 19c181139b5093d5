"""XLA runs the collectives of a program in one order on all ranks.

Here ranks compute different things before their calls, so XLA schedules their
programs differently. Without a common order they would deadlock.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = [pytest.mark.ranks(2, 4), pytest.mark.thorough(4)]
Tensors = tuple[tf.Tensor, tf.Tensor]


def late(x: tf.Tensor, this_rank: bool) -> tf.Tensor:
    """Returns zeros, which take a while on `this_rank`."""
    zeros = x * 0.0
    for _ in range(6 if this_rank else 0):
        zeros = tf.tanh(zeros @ x)
    return zeros


def branches(x: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> Tensors:
    flag = x[0, 0] > 0.0
    return (
        tf.cond(flag, lambda: hvd.allreduce(p + 1.0, hvd.Sum), lambda: x),
        tf.cond(flag, lambda: hvd.allreduce(q + 9.0, hvd.Sum), lambda: x),
    )


def loops(x: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> Tensors:
    def loop(start: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, x: i < 3,
            lambda i, x: (i + 1, hvd.allreduce(x)),
            [0, start],
        )[1]

    return loop(p + 1.0), loop(q + 9.0)


def outside_and_inside(x: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> Tensors:
    before = hvd.allreduce(q + 9.0, hvd.Sum)
    inside = tf.cond(
        x[0, 0] > 0.0, lambda: hvd.allreduce(p + 1.0, hvd.Sum), lambda: x
    )
    after = hvd.allreduce(q + 7.0, hvd.Sum)
    return before + after, inside


def function_twice(x: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> Tensors:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, hvd.Sum)

    return inner(p + 1.0), inner(q + 9.0)


@pytest.mark.parametrize(
    "case", [branches, loops, outside_and_inside, function_twice]
)
def test_calls_in_parts_of_a_program_run_in_one_order(
    case: Callable[..., Tensors], rank: int
) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def compiled(x: tf.Tensor) -> Tensors:
        return case(x, late(x, rank == 0), late(x, rank != 0))

    x = tf.ones([128, 128])
    expected = [value.numpy() for value in case(x, x * 0.0, x * 0.0)]
    for _ in range(5):
        for value, wanted in zip(compiled(x), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
