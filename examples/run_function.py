"""Trains on handwritten digits, on ranks that this process starts.

    python examples/run_function.py --np=2

The function would look the same in a cell of a notebook.
"""

from __future__ import annotations

from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Number of ranks.", lower_bound=1)
flags.DEFINE_integer("epochs", 15, "Passes over the data.", lower_bound=1)


def train(epochs: int) -> float:
    """Trains on all ranks; returns the accuracy on images for the test."""
    import digit_data
    import keras

    import hvd_keras as hvd

    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = digit_data.load("digits")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(train[0].shape[1:]),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = hvd.callbacks.MetricAverageCallback()
    batch_size = 64 // hvd.size()
    model.fit(
        hvd.shard(train, batch_size=batch_size, shuffle=True, seed=1),
        epochs=epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    results = model.evaluate(
        hvd.shard(test, batch_size=64),
        verbose=0,
        callbacks=[average],
        return_dict=True,
    )
    return float(results["accuracy"])


def main(_: list[str]) -> None:
    accuracies = hvd.run(train, (FLAGS.epochs,), np=FLAGS.np)
    for rank, accuracy in enumerate(accuracies):
        print(f"rank {rank}: test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    app.run(main)
