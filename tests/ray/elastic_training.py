"""What the tests run on elastic ranks of Ray."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any


def train(folder: str, epochs: int, dies_at: int) -> dict[str, Any]:
    """Trains on digits; rank 1 kills itself once, at the start of an epoch.

    Each rank notes its batches in `folder`. A survivor that is alone trains
    slowly, so that another rank comes before the end.
    """
    import digit_data
    import keras
    from digits_training import make_model

    import hvd_keras as hvd

    hvd.init()
    keras.utils.set_random_seed(1)
    train, test = digit_data.load("digits")
    model = make_model(3e-3)
    death = Path(folder, "death")

    def die(epoch: int, logs: object = None) -> None:
        if epoch == dies_at and hvd.rank() == 1 and not death.exists():
            death.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    def note_batch(batch: int, logs: object = None) -> None:
        note(folder, hvd.rank(), hvd.size())
        if death.exists() and hvd.size() == 1:
            time.sleep(0.2)

    history = hvd.elastic.fit(
        model,
        hvd.shard(train, batch_size=32, shuffle=True, seed=1),
        validation_data=hvd.shard(test, batch_size=64),
        epochs=epochs,
        callbacks=[
            hvd.callbacks.MetricAverageCallback(),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=die, on_train_batch_end=note_batch
            ),
        ],
        verbose=0,
    ).history
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "pid": os.getpid(),
        "val_accuracy": float(history["val_accuracy"][-1]),
    }


def count(folder: str) -> tuple[int, int]:
    """Counts steps of all ranks until there is a file `stop`."""
    import numpy as np
    import tensorflow as tf

    import hvd_keras as hvd

    hvd.init()

    @hvd.elastic.run
    def steps(state: Any) -> None:
        stop = Path(folder, "stop")
        while not hvd.broadcast_object(stop.exists(), root_rank=0):
            size = int(hvd.allreduce(tf.constant(np.int32(1)), op=hvd.Sum))
            note(folder, hvd.rank(), size)
            state.step += 1
            state.commit()
            time.sleep(0.05)

    state = hvd.elastic.ObjectState(step=0)
    steps(state)
    return os.getpid(), state.step


def note(folder: str, rank: int, size: int) -> None:
    """Adds a line to what this process has done."""
    line = json.dumps([time.time(), rank, size])
    with Path(folder, f"steps.{os.getpid()}").open("a") as file:
        file.write(line + "\n")


def noted(folder: Path) -> dict[int, list[tuple[float, int, int]]]:
    """Returns time, rank and size of each step, by process."""
    return {
        int(path.suffix[1:]): [
            tuple(json.loads(line))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        for path in folder.glob("steps.*")
    }
