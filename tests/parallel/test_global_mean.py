"""The mean over all ranks' entries, for loops of one's own."""

from __future__ import annotations

import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd


@pytest.mark.parametrize("by_weights", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_mean_of_the_ranks_is_that_of_all_entries(
    by_weights: bool, compiled: bool
) -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=(20, 4)).astype(np.float32)
    weights = generator.uniform(size=(20, 4)).astype(np.float32)
    mask = np.arange(4) < generator.integers(0, 5, (20, 1))
    count = (weights * mask).sum() if by_weights else mask.sum()
    expected = (values * weights * mask).sum() / count
    own = kt.uneven_share(len(values))
    scale = tf.Variable(1.0)

    @tf.function(jit_compile=compiled)
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = hvd.global_mean(
                scale * values[own],
                weights[own],
                mask=mask[own],
                by_weights=by_weights,
            )
        return loss, tape.gradient(loss, scale)

    loss, gradient = step()
    mean = hvd.allreduce(loss)
    np.testing.assert_allclose([mean, gradient], expected, rtol=1e-5)


def test_no_entry_anywhere_gives_zero() -> None:
    mean = hvd.global_mean(tf.ones([3]), mask=tf.zeros([3], tf.bool))
    assert float(mean) == 0.0
