"""Batch normalization with the statistics of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import basics, process_set
from hvd_keras._gradients.batch import rows_in_step
from hvd_keras._keras import normalization, saved_forms
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.layers._moments import global_moments
from hvd_keras.process_set import ProcessSet, global_process_set


@keras.saving.register_keras_serializable("hvd_keras")
class SyncBatchNormalization(normalization.BatchNormalization):
    """`keras.layers.BatchNormalization` over the batches of all ranks.

    In training, mean and variance are those of all ranks' batches together,
    weighted by the number of values of each. The moving statistics are too, and
    stay equal on all ranks. The ranks may have shares of different sizes, and
    masks: the layer and its gradient do what one process does on the whole
    batch. All ranks run the layer in each step of training: one allreduce
    forward (two on JAX without float64) and one backward.

    In Keras's own training step, rows that `hvd.shard` has added to fill a
    batch do not count.

    Under mixed precision, statistics are taken in float32. Inference uses the
    moving statistics, as always, and no other rank.

    `keras.layers.BatchNormalization(synchronized=True)` does the same over all
    ranks once there is an `hvd.DistributedOptimizer`. On JAX and torch, Keras
    accepts that argument after `hvd.init()`. In the scope of a
    `tf.distribute.Strategy`, the strategy does it instead.

    A saved model loads without hvd_keras, with a `BatchNormalization` in place
    of this layer; where hvd_keras has been imported, with this layer.

    Args:
        *args: As for `keras.layers.BatchNormalization`.
        process_set: The ranks whose batches count. Ranks outside of it use
            their own. A saved file keeps the ranks; register a set of these
            ranks before you train the loaded model.
        **kw: As for `keras.layers.BatchNormalization`.

    Raises:
        TypeError: `process_set` is not a `ProcessSet`.
        NotInitializedError: In training, if `init()` was not called.
        InvalidArgumentError: In training, if `process_set` is not
            registered.

    Example:

    >>> layer = hvd.SyncBatchNormalization(momentum=0.9)
    >>> outputs = layer(inputs, training=True)
    """

    def __init__(
        self,
        *args: Any,
        process_set: ProcessSet = global_process_set,
        **kw: Any,
    ) -> None:
        super().__init__(*args, **kw)
        if not isinstance(process_set, ProcessSet):
            raise TypeError(
                "`process_set` must be a ProcessSet. Received: "
                f"process_set={process_set!r} (layer {self.name!r})."
            )
        self.process_set = process_set

    def hvd_moments(self, inputs: Any, mask: Any, axes: Any) -> Any:
        basics.size()  # raises before `init()`
        size = self.process_set.size()
        if size is None:
            raise InvalidArgumentError(
                "`process_set` must be registered, by `init` or "
                f"`add_process_set`. Received: {self.process_set} (layer "
                f"{self.name!r}, rank {basics.rank()})."
            )
        if not self.process_set.included():
            return None
        if size == 1 and rows_in_step() is None:
            return None
        return global_moments(
            inputs, mask, axes, layer=self, process_set=self.process_set
        )

    def __repr__(self) -> str:
        return f"<Sync{super().__repr__()[1:]}"

    def get_config(self) -> dict[str, Any]:
        ranks = None
        if self.process_set.process_set_id != 0:
            ranks = self.process_set.ranks
        return {**super().get_config(), "process_set": ranks}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SyncBatchNormalization:
        config = dict(config)
        ranks = config.pop("process_set", None)
        if ranks is not None:
            config["process_set"] = process_set.with_ranks(ranks)
        layer: SyncBatchNormalization = super().from_config(config)
        return layer


# Keras names a layer's weights in a file by this, and so would find them
# without hvd_keras.
SyncBatchNormalization.__name__ = "BatchNormalization"


def _plain_form(
    layer: SyncBatchNormalization, config: dict[str, Any]
) -> dict[str, Any]:
    if type(layer) is not SyncBatchNormalization:
        return {}  # a user's class needs hvd_keras anyway
    config = {**config, "synchronized": False}  # for all backends
    del config["process_set"]
    return saved_forms.saved_as(keras.layers.BatchNormalization, config)


saved_forms.save_as(SyncBatchNormalization, _plain_form)
