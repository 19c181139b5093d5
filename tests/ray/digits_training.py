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


def train_on_shard(config: dict[str, Any]) -> None:
    """Trains on what Ray Data deals out to this worker."""
    import digit_data
    import keras
    import numpy as np
    import ray.train

    import hvd_keras as hvd
    from hvd_keras.ray import ReportCallback

    hvd.init()
    keras.utils.set_random_seed(1)
    _, test = digit_data.load("digits")
    shard = ray.train.get_dataset_shard("train")
    batches = shard.iter_tf_batches(batch_size=32)
    own = np.concatenate([batch["number"].numpy() for batch in batches])
    every = hvd.allgather_object(own.tolist())
    model = make_model(config["rate"])
    model.fit(
        shard.to_tf("image", "digit", batch_size=32),
        epochs=config["epochs"],
        validation_data=hvd.shard(test, batch_size=64),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda _, logs: logs.update(
                    rows=sum(map(len, every)),
                    distinct_rows=len({n for one in every for n in one}),
                )
            ),
            ReportCallback(save_every=config["epochs"]),
        ],
        verbose=0,
    )
    hvd.assert_equal_on_all_ranks(model)


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
