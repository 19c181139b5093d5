"""States of layers after training are what the user says they are."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
from stateful_layers import trained
from states_of_layers import (  # noqa: F401
    test_a_function_merges_the_states_of_a_layer,
    test_held_values_are_named,
    test_layers_of_keras_are_known,
    test_own_states_are_not_broadcast,
    test_states_are_what_the_user_says,
    test_unknown_states_are_told_once_and_made_equal,
    test_untracked_states_are_named,
    test_wrong_arguments_are_named,
)

import hvd_keras as hvd

ops = keras.ops


class Codebook(keras.layers.Layer):
    """Learns codes by moving averages of the rows next to them, as a VQ-VAE.

    Args:
        reduce: Adds up over the ranks; None in one process.
    """

    def __init__(self, reduce: Any = None) -> None:
        super().__init__()
        self.reduce = reduce or (lambda tensor: tensor)

    def build(self, shape: Any) -> None:
        options: dict[str, Any] = {"trainable": False}
        codes = np.random.default_rng(1).normal(size=(3, shape[-1]))
        start = keras.initializers.Constant(codes)
        self.counts = self.add_weight((3,), "ones", name="counts", **options)
        self.sums = self.add_weight(codes.shape, start, name="sums", **options)

    def call(self, x: Any, training: bool = False) -> Any:
        codes = self.sums / self.counts[:, None]
        distances = ops.sum((x[:, None] - codes) ** 2, axis=-1)
        nearest = ops.one_hot(ops.argmin(distances, axis=-1), 3)
        if training:
            counts = self.reduce(ops.sum(nearest, axis=0))
            sums = self.reduce(ops.matmul(ops.transpose(nearest), x))
            self.counts.assign(0.9 * self.counts + 0.1 * counts)
            self.sums.assign(0.9 * self.sums + 0.1 * sums)
        return x + ops.stop_gradient(ops.matmul(nearest, codes) - x)


def test_a_codebook_that_adds_up_in_the_layer_is_exact(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    model = trained(Codebook(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum)))
    alone = trained(Codebook(), alone=True)
    for value, expected in zip(
        model.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    assert "set_aggregation" not in caplog.text
