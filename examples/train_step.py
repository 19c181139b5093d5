"""A `train_step` of your own: training on images that deceive the model.

    hvdrun -np 2 python examples/train_step.py

The step makes each image worse by its own gradient (FGSM) and trains on both.
It applies gradients by `self.optimizer.apply`, where the distributed optimizer
reduces them: nothing in the step knows of ranks, except the mean of the loss.
"""

from __future__ import annotations

from typing import Any

import digit_data
import job
import keras
import tensorflow as tf
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=15, batch_size=64)
flags.DEFINE_float("strength", 0.1, "How much worse each pixel becomes.")
flags.DEFINE_bool("plain", False, "Train on the images alone, to compare.")


class Robust(keras.Sequential):
    """A model that trains on images and on worse ones."""

    def worsened(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = self.compute_loss(y=labels, y_pred=self(images))
        return images + FLAGS.strength * tf.sign(tape.gradient(loss, images))

    def train_step(self, data: Any) -> dict[str, Any]:
        if FLAGS.plain:
            return super().train_step(data)
        images, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        both = tf.concat([images, self.worsened(images, labels)], axis=0)
        labels = tf.concat([labels, labels], axis=0)
        if weights is not None:
            weights = tf.concat([weights, weights], axis=0)
        with tf.GradientTape() as tape:
            outputs = self(both, training=True)
            loss = self.compute_loss(
                y=labels, y_pred=outputs, sample_weight=weights
            )
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, outputs, sample_weight=weights)
        return self.get_metrics_result()


def make_model(image_shape: tuple[int, ...]) -> Robust:
    layers = keras.layers
    model = Robust(
        [
            keras.Input(image_shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    train, (images, labels) = digit_data.load("digits")
    model = make_model(images.shape[1:])
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(
        hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    worse = model.worsened(tf.constant(images), labels).numpy()
    accuracies = [
        model.evaluate(
            hvd.shard((inputs, labels), batch_size=64),
            verbose=0,
            callbacks=[average],
            return_dict=True,
        )["accuracy"]
        for inputs in (images, worse)
    ]
    job.say(
        f"test accuracy {accuracies[0]:.4f}, on images that are worse "
        f"{accuracies[1]:.4f}"
    )


if __name__ == "__main__":
    app.run(main)
