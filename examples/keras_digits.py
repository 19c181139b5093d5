"""Trains a small convolutional network on handwritten digits, on N processes.

    hvdrun -np 2 python examples/keras_digits.py

The data are real and come with scikit-learn. Any number of processes shares the
same batches in the same order, and begins with the same weights. So loss and
accuracy are the same in every epoch, to rounding. `--data=fashion-mnist` takes
Debian's package dataset-fashion-mnist. Keras runs on TensorFlow, or on the
KERAS_BACKEND jax or torch.
"""

from __future__ import annotations

from typing import Any

import digit_data
import job
import keras
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
flags.DEFINE_enum("data", "digits", digit_data.NAMES, "What to train on.")
flags.DEFINE_string(
    "data_dir", digit_data.FASHION_MNIST_DIR, "Where fashion-mnist is."
)
job.define_flags(epochs=15, batch_size=64)
flags.DEFINE_integer(
    "max_images", None, "Most images to train on.", lower_bound=1
)
flags.DEFINE_float("learning_rate", 2e-3, "Rate after the warm-up.")
flags.DEFINE_integer("seed", 1, "Seed of the weights and of the image order.")
flags.DEFINE_string("save", None, "Where rank 0 saves the model (.keras).")


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def share_of_batches(images: digit_data.Images) -> Any:
    """Returns this rank's part of every batch that one process would have."""
    # The order is the same on all ranks, and new in each epoch.
    return hvd.shard(
        images,
        batch_size=job.batch_size_of_rank(),
        policy="drop",
        shuffle=True,
        seed=FLAGS.seed,
    )


def main(_: list[str]) -> None:
    hvd.init()  # 1
    keras.utils.set_random_seed(FLAGS.seed)
    train, test = digit_data.load(FLAGS.data, FLAGS.data_dir)
    train = (train[0][: FLAGS.max_images], train[1][: FLAGS.max_images])

    model = make_model(train[0].shape[1:])
    optimizer = keras.optimizers.Adam(FLAGS.learning_rate)
    model.compile(
        hvd.DistributedOptimizer(optimizer),  # 2
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = hvd.callbacks.MetricAverageCallback()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),  # 3
        average,  # 4
        # The global batch does not grow with the number of processes, so the
        # rates must not either.
        hvd.callbacks.LearningRateWarmupCallback(
            FLAGS.learning_rate, warmup_epochs=1, start_multiplier=0.1
        ),
        hvd.callbacks.LearningRateScheduleCallback(
            FLAGS.learning_rate,
            multiplier=lambda epoch: 0.2,
            start_epoch=max(1, FLAGS.epochs * 2 // 3),
        ),
    ]
    held_out = hvd.shard(test, batch_size=64)
    is_first = hvd.rank() == 0
    model.fit(
        share_of_batches(train),
        epochs=FLAGS.epochs,
        validation_data=held_out,
        callbacks=callbacks,
        verbose=2 if is_first else 0,
    )
    # Every rank tests its share; the callback combines the results.
    results = model.evaluate(
        held_out, verbose=0, callbacks=[average], return_dict=True
    )
    job.say(
        f"test accuracy {results['accuracy']:.4f}, test loss "
        f"{results['loss']:.4f}, ranks: {hvd.size()}"
    )
    if is_first and FLAGS.save:
        model.save(FLAGS.save)


if __name__ == "__main__":
    app.run(main)
