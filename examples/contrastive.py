"""Trains two towers to find the other half of an image.

    hvdrun -np 2 python examples/contrastive.py

A tower sees the left half of a digit, the other one the right half. Each half
is compared with the halves of all ranks, so N ranks have as many negatives as
one process with the whole batch, and the same loss.
"""

from __future__ import annotations

import digit_data
import job
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=50, batch_size=256)


def make_tower() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 4, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(32),
            layers.UnitNormalization(),
        ]
    )


def make_model() -> keras.Model:
    """Returns a model of both halves: their vectors, (n, 2, 32)."""
    left, right = keras.Input((8, 4, 1)), keras.Input((8, 4, 1))
    vectors = [make_tower()(left), make_tower()(right)]
    return keras.Model([left, right], keras.ops.stack(vectors, axis=1))


def matching_loss(_: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Compares this rank's rows, (n, 2, 32), with those of all ranks."""
    every = hvd.allgather(own, name="vectors")  # has a gradient
    num_rows = tf.shape(own)[0]
    labels = hvd.rank() * num_rows + tf.range(num_rows)  # where its rows are
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, tf.matmul(own[:, i], every[:, 1 - i], transpose_b=True) * 10
        )
        for i in range(2)
    ]
    return tf.reduce_mean(losses)


def halves(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images[:, :, :4], images[:, :, 4:]


def main(_argv: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    (images, labels), (test_images, _) = digit_data.load("digits")
    model = make_model()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3)), matching_loss
    )
    history = model.fit(
        hvd.shard(
            (halves(images), labels),
            batch_size=job.batch_size_of_rank(),
            policy="drop",  # each rank has equally many rows in each step
            shuffle=True,
        ),
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    ).history
    job.say(
        f"each half was compared with {FLAGS.batch_size} halves, of which "
        f"{job.batch_size_of_rank()} were of its rank: loss "
        f"{history['loss'][-1]:.4f}"
    )
    vectors = hvd.predict(model, halves(test_images), batch_size=64, verbose=0)
    scores = vectors[:, 0] @ vectors[:, 1].T
    better = np.sum(scores > np.diag(scores)[:, None], axis=1)
    job.say(
        f"the right half was among the first 5 of {len(scores)} for "
        f"{np.mean(better < 5):.3f} of the left ones, by chance "
        f"{5 / len(scores):.3f}"
    )


if __name__ == "__main__":
    app.run(main)
