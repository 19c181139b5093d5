"""What the tests train on Ray's workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def train(config: dict[str, Any]) -> None:
    import digit_data
    import keras

    import hvd_keras as hvd
    from hvd_keras.ray import ReportCallback, restored

    hvd.init()
    folder = Path(config.get("folder", "/nowhere"))
    if folder.exists():
        name = f"start.{hvd.rank()}.{os.getpid()}"
        (folder / name).write_text(str(time.time()))
    keras.utils.set_random_seed(1)
    (images, labels), test = digit_data.load("digits")
    found = restored()
    if found is None:
        model, initial_epoch = make_model(config.get("rate", 3e-3)), 0
    else:
        model, initial_epoch = found
    average = hvd.callbacks.MetricAverageCallback()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        average,
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _: _die(config, epoch, found is None)
        ),
        ReportCallback(save_every=config.get("save_every", 1)),
    ]
    model.fit(
        hvd.shard((images, labels), batch_size=32, shuffle=True, seed=1),
        initial_epoch=initial_epoch,
        epochs=config.get("epochs", 12),
        validation_data=hvd.shard(test, batch_size=64),
        callbacks=callbacks,
        verbose=0,
    )


def make_model(rate: float) -> Any:
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
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _die(config: dict[str, Any], epoch: int, is_first: bool) -> None:
    import hvd_keras as hvd

    if is_first and epoch == config.get("dies_at") and hvd.rank() == 1:
        (Path(config["folder"]) / "died").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
