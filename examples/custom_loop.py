"""A custom training loop: a `tf.function` that reduces its gradients.

    hvdrun -np 2 python examples/custom_loop.py

It does without Keras's `fit` and works with any optimizer of Keras.
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
job.define_flags(epochs=10, batch_size=64)


def main(_: list[str]) -> None:
    hvd.init()
    job.batch_size_of_rank()  # raises without equal shares
    train, test = digit_data.load("digits")
    keras.utils.set_random_seed(hvd.rank())  # weights differ, until broadcast
    model = keras.Sequential(
        [
            keras.Input(train[0].shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        gradients = hvd.grouped_allreduce(gradients, name="gradients")
        optimizer.apply(gradients, variables)
        return hvd.allreduce(loss, name="loss")

    # Every process shuffles alike and takes its part of each batch.
    generator = np.random.default_rng(0)
    num_images = len(train[0])
    for epoch in range(FLAGS.epochs):
        order = generator.permutation(num_images)
        losses = []
        # Drop the last batch: it may not have a share for every rank.
        last = num_images - num_images % FLAGS.batch_size
        for first in range(0, last, FLAGS.batch_size):
            batch = order[first : first + FLAGS.batch_size]
            mine = batch[hvd.rank() :: hvd.size()]
            losses.append(float(step(train[0][mine], train[1][mine])))
        job.say(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    images, labels = (part[hvd.rank() :: hvd.size()] for part in test)
    guesses = np.argmax(model(images), axis=-1)
    counts = np.array([np.sum(guesses == labels), len(labels)])
    num_right, num_all = hvd.allreduce(counts, hvd.Sum, name="counts").numpy()
    job.say(f"test accuracy {num_right / num_all:.4f}, ranks: {hvd.size()}")


if __name__ == "__main__":
    app.run(main)
