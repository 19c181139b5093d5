"""Trains on handwritten digits on two workers of Ray.

    python examples/ray_digits.py --num_workers=2

It starts a Ray of its own unless RAY_ADDRESS names one.
"""

from __future__ import annotations

import pathlib
from typing import Any

import ray
import ray.train
from absl import app, flags

from hvd_keras.ray import KerasTrainer

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_workers", 2, "Number of workers.", lower_bound=1)
flags.DEFINE_integer("epochs", 12, "Passes over the data.", lower_bound=1)
_HERE = str(pathlib.Path(__file__).parent)


def train(config: dict[str, Any]) -> None:
    """Trains on each worker, from the last checkpoint if there is one."""
    import digit_data
    import keras

    import hvd_keras as hvd
    from hvd_keras.ray import ReportCallback, restored

    hvd.init()
    keras.utils.set_random_seed(1)
    images, test = digit_data.load("digits")
    model, initial_epoch = restored() or (make_model(), 0)
    model.fit(
        hvd.shard(images, batch_size=64 // hvd.size(), shuffle=True, seed=1),
        initial_epoch=initial_epoch,
        epochs=config["epochs"],
        validation_data=hvd.shard(test, batch_size=64),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            ReportCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


def make_model() -> Any:
    import keras

    import hvd_keras as hvd

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
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
    return model


def main(_: list[str]) -> None:
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": _HERE}})
    trainer = KerasTrainer(
        train,
        train_loop_config={"epochs": FLAGS.epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=FLAGS.num_workers),
        run_config=ray.train.RunConfig(
            failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    )
    metrics = trainer.fit().metrics
    print(f"test accuracy {metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    app.run(main)
