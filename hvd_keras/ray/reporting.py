"""Reports metrics and checkpoints to Ray Train, and restores them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import keras
import ray.train

from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.saving import load_model

_MODEL, _POSITION = "model.keras", "position.json"


class ReportCallback(keras.callbacks.Callback):
    """Reports the logs of each epoch to Ray Train, with a checkpoint.

    Rank 0 saves the model with its optimizer. Put it behind
    `MetricAverageCallback`, so that it reports means over the ranks.
    """

    def __init__(self, save_every: int = 1) -> None:
        """Makes the callback.

        Args:
            save_every: Epochs between two checkpoints; 0: make none. Then the
                `metrics` of Ray's result are None, for Ray keeps those that
                came with a checkpoint.
        """
        super().__init__()
        if save_every < 0:
            raise InvalidArgumentError(
                f"`save_every` must be 0 or more. Received: {save_every}."
            )
        self._save_every = save_every

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        metrics["epoch"] = epoch
        saves = self._save_every and (epoch + 1) % self._save_every == 0
        if not saves or ray.train.get_context().get_world_rank() != 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(Path(folder) / _MODEL)
            position = {"initial_epoch": epoch + 1}
            (Path(folder) / _POSITION).write_text(json.dumps(position))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def restored(
    custom_objects: dict[str, Any] | None = None,
) -> tuple[keras.Model, int] | None:
    """Returns the model of the last checkpoint, on all ranks.

    Call it in the training function, after `hvd.init()`.

    Args:
        custom_objects: Classes of the model, by name, as Keras wants them.

    Returns:
        The compiled model with a distributed optimizer, and the epoch with
        which to go on (`initial_epoch` of `fit`); None if there is no
        checkpoint yet.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        position = json.loads((Path(folder) / _POSITION).read_text())
        path = str(Path(folder) / _MODEL)
        model = load_model(path, custom_objects=custom_objects)
    return model, int(position["initial_epoch"])
