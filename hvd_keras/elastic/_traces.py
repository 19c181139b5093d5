"""Whether the compiled steps of a model fit another number of ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, models
from hvd_keras.reduce_op import Average


def depends_on_size(model: Any) -> bool:
    """Whether steps that were traced hold the number of ranks, or may.

    The native ops take the mean over the ranks of the time at which they run.
    """
    return (
        models.has_our_strategy(model)  # Keras divides by the replicas
        or advice.has_own_train_step(model)
        or _gathers_in_xla(model)
        or any(
            _optimizer_depends_on_size(part)
            for optimizer in models.optimizers_of(model)
            for part in distributed_parts_of(optimizer)
        )
    )


def _gathers_in_xla(model: Any) -> bool:
    """Whether XLA may have compiled a gather of rows, whose shape is fixed."""
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return bool(is_tensorflow and model.jit_compile) and any(
        isinstance(layer, keras.layers.Embedding)
        for layer in models.layers_of(model)
    )


def _optimizer_depends_on_size(part: Any) -> bool:
    options = part.hvd_settings.reduce
    return (
        options.op != Average  # a sum is divided by the number of ranks
        or options.process_set.process_set_id != 0  # it gets another id
        or part.hvd_settings.local_updates is not None  # so do hosts
        or bool(part.hvd_local)  # their gradients are divided by it
        or part.hvd_watch is not None  # it has a flag for each rank
    )
