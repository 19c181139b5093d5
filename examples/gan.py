"""Trains a GAN on handwritten digits: two networks, two optimizers.

    hvdrun -np 2 python examples/gan.py

Both optimizers are distributed; `train_step` calls one after the other.
"""

from __future__ import annotations

from typing import Any

import digit_data
import job
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=10, batch_size=64)

NOISE = 16


def make_network(inputs: int, outputs: int, activation: str | None) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(128),
            layers.LeakyReLU(0.2),
            layers.Dense(128),
            layers.LeakyReLU(0.2),
            layers.Dense(outputs, activation=activation),
        ]
    )


class Gan(keras.Model):
    """A generator that learns to deceive a critic, and the critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = make_network(NOISE, 64, "sigmoid")
        self.critic = make_network(64, 1, None)
        self.noise = keras.random.SeedGenerator(1)  # each rank draws its own
        self.is_real = keras.losses.BinaryCrossentropy(from_logits=True)
        self.built = True

    def compile(self, critic_optimizer: Any, generator_optimizer: Any) -> None:
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer

    def draw(self, num_images: Any) -> tf.Tensor:
        noise = keras.random.normal((num_images, NOISE), seed=self.noise)
        return self.generator(noise, training=True)

    def train_step(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        num_images = tf.shape(images)[0]
        ones, zeros = tf.ones((num_images, 1)), tf.zeros((num_images, 1))
        with tf.GradientTape() as tape:
            critic_loss = self.is_real(ones, self.critic(images))
            drawn = tf.stop_gradient(self.draw(num_images))
            critic_loss += self.is_real(zeros, self.critic(drawn))
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply(
            tape.gradient(critic_loss, weights), weights
        )
        with tf.GradientTape() as tape:
            loss = self.is_real(ones, self.critic(self.draw(num_images)))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(loss, weights), weights)
        return {"critic_loss": critic_loss, "generator_loss": loss}


def main(_argv: list[str]) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    hvd.init()
    keras.utils.set_random_seed(1)
    (train, _), (test, test_labels) = digit_data.load("digits")
    train, test = train.reshape(-1, 64), test.reshape(-1, 64)
    many = np.tile(train, (15, 1))  # for fewer, longer epochs
    model = Gan()
    model.compile(
        *[
            hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5))
            for _ in range(2)
        ]
    )
    model.fit(
        hvd.shard(many, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    hvd.assert_equal_on_all_ranks(model)  # both networks, both optimizers

    # Of the real images that no network has seen: how far is the nearest?
    judge = KNeighborsClassifier(1).fit(test, test_labels)
    drawn = np.asarray(model.draw(500))
    noise = np.random.default_rng(0).permuted(test, axis=0)  # pixel by pixel
    far, far_noise, far_real = (
        judge.kneighbors(images)[0].mean() for images in (drawn, noise, train)
    )
    num_digits = len(np.unique(judge.predict(drawn)))
    job.say(
        f"distance to a real image: drawn {far:.3f}, noise {far_noise:.3f}, "
        f"other real ones {far_real:.3f}; {num_digits} of 10 digits were drawn"
    )


if __name__ == "__main__":
    app.run(main)
