"""Trains on handwritten digits while processes may die, leave or come.

    hvdrun -np 4 --min-np 2 --max-restarts 8 python examples/elastic_digits.py

End a process with `kill -9`: the others go on within a second or two, and
hvdrun starts another one, which joins them. `kill -TERM` makes one leave.
"""

from __future__ import annotations

import digit_data
import keras
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
flags.DEFINE_enum("data", "digits", digit_data.NAMES, "What to train on.")
flags.DEFINE_string(
    "data_dir", digit_data.FASHION_MNIST_DIR, "Where fashion-mnist is."
)
flags.DEFINE_integer("epochs", 15, "Passes over the data.", lower_bound=1)
flags.DEFINE_string("commits", None, "Keep commits in this directory too.")


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
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
    train, test = digit_data.load(FLAGS.data, FLAGS.data_dir)
    model = make_model(train[0].shape[1:])
    average = hvd.callbacks.MetricAverageCallback()
    tell = keras.callbacks.LambdaCallback(
        # The rank may change.
        on_epoch_end=lambda epoch, logs: (
            hvd.rank() == 0
            and print(
                f"epoch {epoch + 1}, ranks: {hvd.size()}, loss "
                f"{logs['loss']:.4f}, val_accuracy {logs['val_accuracy']:.4f}",
                flush=True,
            )
        )
    )
    hvd.elastic.fit(
        model,
        hvd.shard(train, batch_size=16, shuffle=True),
        validation_data=hvd.shard(test, batch_size=64),
        epochs=FLAGS.epochs,
        callbacks=[average, tell],
        commit_seconds=5,
        directory=FLAGS.commits,
        verbose=0,
    )


if __name__ == "__main__":
    app.run(main)
