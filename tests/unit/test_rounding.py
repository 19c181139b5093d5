"""`--verify` leaves out no difference that it cannot explain."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras._verify.records import Event
from hvd_keras._verify.rounding import Rounding


def weights(value: float, step: int = 1) -> Event:
    arrays = {"w": np.array([1.0, value])}
    return Event("weights", "model", step, step, {}, arrays)


@pytest.mark.parametrize("gap", [np.nan, np.inf])
def test_rounding_explains_no_nan(gap: float) -> None:
    rounding = Rounding([[weights(2.0 + 1e-3)]], 1e-5)
    rounding.go_on_to(weights(2.0))
    assert rounding.explains("weights", "w", 1e-4)
    assert not rounding.explains("weights", "w", gap)


def test_rounding_of_later_steps_explains_nothing_before_them() -> None:
    rounding = Rounding([[weights(2.0 + 1e-6, 1), weights(2.1, 2)]], 1e-5)
    rounding.go_on_to(weights(2.0, 1))
    assert rounding.explains("weights", "w", 1e-6)
    assert not rounding.explains("weights", "w", 1e-2)
    rounding.go_on_to(weights(2.0, 2))
    assert rounding.explains("weights", "w", 1e-2)


def test_gradients_of_an_embedding_are_nudged_where_no_size_is_known() -> None:
    tf = pytest.importorskip("tensorflow")
    from hvd_keras._verify.session import _nudged

    table = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) ** 2)
        gradient = tape.gradient(loss, table)
        assert gradient.values.shape[0] is None
        nudged = _nudged(gradient, 1)
        return gradient.values, nudged.values

    plain, nudged = step(tf.constant([0, 1, 1]))
    gap = np.max(np.abs(plain - nudged)) / np.max(np.abs(plain))
    assert 0 < gap < 1e-4
    nothing = tf.zeros([2, 2])
    np.testing.assert_array_equal(_nudged(nothing, 1), nothing)
