"""Transfer learning on images: a frozen base, then all of it, compiled again.

    hvdrun -np 2 python examples/two_phases.py

The base has learnt the digits 0 to 4, on all ranks. A new top learns all ten on
the frozen base; then the base is unfrozen and learns on, at a lower rate.
"""

from __future__ import annotations

import digit_data
import job
import keras
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=8, batch_size=64)


def make_base(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
        ],
        name="base",
    )


def fit(
    model: keras.Model,
    images: digit_data.Images,
    rate: float,
    epochs: int,
    initial_epoch: int = 0,
) -> None:
    """Compiles the model with a new optimizer, and trains it."""
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        hvd.shard(images, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=epochs,
        initial_epoch=initial_epoch,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    (images, labels), test = digit_data.load("digits")
    base = make_base(images.shape[1:])
    hvd.convert_sync_batch_normalization(base)
    known = labels < 5
    first = keras.Sequential([base, keras.layers.Dense(5)])
    fit(first, (images[known], labels[known]), rate=3e-3, epochs=2)

    base.trainable = False
    model = keras.Sequential([base, keras.layers.Dense(10)])
    half = FLAGS.epochs // 2
    fit(model, (images, labels), rate=3e-3, epochs=half)
    base.trainable = True
    fit(model, (images, labels), 1e-3, FLAGS.epochs, initial_epoch=half)

    results = model.evaluate(
        hvd.shard(test, batch_size=64),
        callbacks=[hvd.callbacks.MetricAverageCallback()],
        return_dict=True,
        verbose=0,
    )
    job.say(f"test accuracy {results['accuracy']:.4f} after both phases")


if __name__ == "__main__":
    app.run(main)
