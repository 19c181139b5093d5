"""Means over the samples of all ranks, for losses of your own."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._gradients.batch import count_dtype, mean_over_ranks
from hvd_keras._job import state
from hvd_keras._keras.steps import running_batch
from hvd_keras.data import _own_loops
from hvd_keras.process_set import ProcessSet, global_process_set


def global_mean(
    values: Any,
    sample_weight: Any = None,
    *,
    mask: Any = None,
    by_weights: bool = False,
    name: str = "global_mean",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns this rank's part of the mean of `values` over all ranks.

    The results of the ranks differ; their mean is the mean of all entries,
    however many each rank has. So it is the loss to use in a training loop
    of your own, where a distributed optimizer or tape averages the gradients:
    N ranks then get the gradient that one process gets on the whole batch.
    (The mean that a rank takes by itself is right only if all ranks have
    equally many entries.) In `fit` and `evaluate`, the losses of `compile` are
    such means already.

      result_r = sum over this rank of value * weight
                 / (sum over all ranks of the count / number of ranks)

    Args:
        values: A tensor of floats of any shape, the first dimension being the
            rows of this rank's batch. It may have no rows.
        sample_weight: A tensor that multiplies the values, of the same shape
            or one that broadcasts to it; None for 1.
        mask: A tensor of booleans of the shape of `values`, or one that
            broadcasts to it. Only entries where it is true count.
        by_weights: Whether the count is the sum of the weights. Otherwise it
            is the number of entries.
        name: Pairs the call across ranks. Two losses of a step need two names.
        process_set: The ranks that share the batch, including this one.

    Returns:
        A scalar tensor of the dtype of `values`. 0 if no rank has an entry.
        Gradients flow to `values` and `sample_weight`, but not through the
        count.

    Raises:
        StalledError: Another rank does not call it.

    Example:

    >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    ...     losses = keras.losses.mse(y, model(x))
    ...     loss = hvd.global_mean(losses, mask=is_valid)
    """
    values = keras.ops.convert_to_tensor(values)
    weights = keras.ops.ones_like(values)
    if mask is not None:
        weights = weights * keras.ops.cast(mask, values.dtype)
    count = weights
    if sample_weight is not None:
        weights = weights * keras.ops.cast(sample_weight, values.dtype)
        count = weights if by_weights else count
    total = keras.ops.sum(values * weights)
    # float16 would overflow.
    own = keras.ops.sum(keras.ops.cast(count, count_dtype()))
    # In a step of `fit`, a rank's loss gets the weight of its rows later.
    batch = running_batch()
    if batch is not None and batch.process_set is process_set:
        total, own = batch.sums(values * weights, count)
        ratio = keras.ops.divide_no_nan(keras.ops.ones_like(own), own)
        return total * keras.ops.cast(ratio, total.dtype)
    _own_loops.note_exact_loss()
    if process_set.size() != 1:
        full_name = f"{name}@{state.generation()}"
        own = mean_over_ranks(own, full_name, process_set, [])
    ratio = keras.ops.divide_no_nan(keras.ops.ones_like(own), own)
    return total * keras.ops.cast(ratio, total.dtype)
