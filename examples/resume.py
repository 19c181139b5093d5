"""Goes on after a kill, and ends as if there had been none.

    hvdrun -np 2 python examples/resume.py --backup=/tmp/backup

Kill it at any time (`kill -9`, SIGTERM, Ctrl-C), and run it again, with another
number of processes if you like. With the same number, it ends with the weights
of an undisturbed run, bit for bit: it prints their checksum.
"""

from __future__ import annotations

import hashlib

import digit_data
import job
import keras
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=15, batch_size=64)
flags.DEFINE_string("backup", None, "Folder of the backup.", required=True)


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def checksum(model: keras.Model) -> str:
    digest = hashlib.sha256()
    for value in model.get_weights():
        digest.update(value.tobytes())
    return digest.hexdigest()[:16]


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())  # dropout differs by rank
    train, test = digit_data.load("digits")
    model = make_model(train[0].shape[1:])
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(
        hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            average,
            hvd.callbacks.BackupAndRestore(FLAGS.backup, save_freq=10),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: job.say(
                    f"epoch {epoch + 1}: loss {logs['loss']:.4f}"
                )
            ),
        ],
        verbose=0,
    )
    results = model.evaluate(
        hvd.shard(test, batch_size=64),
        verbose=0,
        callbacks=[average],
        return_dict=True,
    )
    job.say(
        f"test accuracy {results['accuracy']:.4f}, weights {checksum(model)}"
    )


if __name__ == "__main__":
    app.run(main)
