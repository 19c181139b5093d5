"""Tracks a training with MLflow or with Weights & Biases.

    hvdrun -np 2 python examples/tracking.py --tracker=mlflow

The callback of the tracker is on rank 0 alone. `MetricAverageCallback` makes
the metrics that it sees those of all ranks. MLflow writes into a folder here,
and Weights & Biases is offline; nothing leaves this machine. Install `mlflow`
(`mlflow-skinny` lacks what its callback needs) or `wandb`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import digit_data
import job
import keras
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=10, batch_size=64)
flags.DEFINE_enum("tracker", "mlflow", ["mlflow", "wandb"], "What tracks.")
flags.DEFINE_string("folder", "tracking", "Where it writes.")


@contextlib.contextmanager
def mlflow_run() -> Iterator[Any]:
    """Yields a callback that writes into a run of MLflow."""
    import mlflow
    import mlflow.keras

    mlflow.set_tracking_uri(f"file:{FLAGS.folder}")
    mlflow.set_experiment("digits")
    with mlflow.start_run() as run:
        mlflow.log_params({"ranks": hvd.size(), "epochs": FLAGS.epochs})
        yield mlflow.keras.MlflowCallback()
    mlflow.flush_async_logging()
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    job.say(f"MLflow has val_accuracy {metrics['val_accuracy']:.4f}")


@contextlib.contextmanager
def wandb_run() -> Iterator[Any]:
    """Yields a callback that writes into a run of Weights & Biases."""
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    with wandb.init(
        project="digits",
        config={"ranks": hvd.size(), "epochs": FLAGS.epochs},
        dir=FLAGS.folder,
        mode="offline",
    ) as run:
        yield WandbMetricsLogger()
        value = run.summary["epoch/val_accuracy"]
        job.say(f"Weights & Biases has val_accuracy {value:.4f}")


def make_model(image_shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(image_shape),
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
    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = digit_data.load("digits")
    model = make_model(train[0].shape[1:])
    start = {"mlflow": mlflow_run, "wandb": wandb_run}[FLAGS.tracker]
    with contextlib.ExitStack() as stack:
        tracker = []
        if hvd.rank() == 0:
            tracker = [stack.enter_context(start())]
        history = model.fit(
            hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
            epochs=FLAGS.epochs,
            validation_data=hvd.shard(test, batch_size=64),
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                *tracker,
            ],
            verbose=0,
        ).history
    job.say(f"test accuracy {history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    app.run(main)
