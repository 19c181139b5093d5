"""Predictions of a model for data that the ranks share."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np

from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients.order_check import comparing_model
from hvd_keras._keras import models
from hvd_keras._keras import predictions as keras_predictions
from hvd_keras._values import object_exchange
from hvd_keras._values.agreement import together
from hvd_keras._values.members import members_of, to_root_rank
from hvd_keras._values.row_exchange import gather_rows
from hvd_keras.data._comparison import called_by
from hvd_keras.data._shares import Share, share_of
from hvd_keras.data._taken import comparing
from hvd_keras.data.position import handle_of
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set

Array = np.ndarray[Any, Any]


@as_it_is
def predict(
    model: Any,
    data: Any,
    *,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    root_rank: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns `model.predict(data)`; each rank predicts its share.

    Every rank calls this with an equal model, all the data and the same
    arguments; the ranks compare the data. Rows come back in the order of the
    data. The `call` of the model must not contain collectives.

    Args:
        model: A Keras model. Its weights must be equal on all ranks.
        data: Arrays, or a structure of arrays: the inputs of the model, without
            targets; a `tf.data.Dataset` of batches; or a
            `keras.utils.PyDataset`. As in `model.predict`, elements of the
            last two may have targets. Or what `hvd.shard` returned; the result
            then has the rows of all ranks.
        batch_size: Rows of a batch of *each rank*, 32 if it is None. A
            `tf.data.Dataset` is cut anew. None for a `PyDataset` and for data
            from `hvd.shard`.
        verbose: As in `model.predict`; the first rank shows progress.
        steps: The number of batches of each rank; None: all.
        callbacks: As in `model.predict`, on each rank.
        root_rank: The global rank that gets the result; the others get None.
            With None, all ranks get it.
        process_set: The ranks that share the data. Defaults to all.

    Returns:
        The arrays, or the structure of arrays, that `model.predict` returns,
        of shape (rows, ...) and the dtype of the model's outputs. The memory
        for all rows is taken on the ranks that get them.

    Raises:
        TypeError: `data` is none of these.
        ValueError: There are no rows; or an argument cannot be honoured.
        MismatchError: Ranks have other weights or different data, or the same
            rows in another order, or stopped after different steps.
        InvalidArgumentError: `root_rank` is not in `process_set`, or this rank
            is not.

    Example:

    >>> predictions = hvd.predict(model, x_test, batch_size=256)
    >>> predictions = hvd.predict(model, x_test, root_rank=0)
    """
    ranks = members_of(process_set, "predict")
    place = None
    if root_rank is not None:
        root_rank = to_root_rank(root_rank, process_set, "predict")
        place = ranks.index(root_rank)
    options = {
        "verbose": verbose if process_set.rank() == 0 else 0,
        "steps": steps,
    }
    if models.has_our_strategy(model):
        # Keras gathers there.
        options.update(batch_size=batch_size, callbacks=callbacks)
        outputs = model.predict(data, **options)
        return outputs if place in (None, process_set.rank()) else None
    together(
        "predict/model", [comparing_model(model, process_set)], process_set
    )
    with called_by("predict"):
        share = share_of(data, batch_size, process_set)
    options["callbacks"] = callbacks
    handle = handle_of(share.data)
    taken = None if handle is None else handle.taken
    if taken is not None:
        taken.watch()
    outputs, num_rows = _predict_share(model, share, options)
    if taken is not None:
        together("predict/order", [comparing(taken)], taken.process_set)
        taken.forget()
    has_stopped = bool(model.stop_predicting)
    if steps is None and not has_stopped:
        share.end_pass()
    of_ranks = _rows_of_ranks(num_rows, steps, has_stopped, process_set)
    whole = [
        _gathered(
            output,
            [each[:, number] for each in of_ranks],
            f"predict/output_{number}",
            place,
            process_set,
        )
        for number, output in enumerate(keras.tree.flatten(outputs))
    ]
    if place not in (None, process_set.rank()):
        return None
    return keras.tree.pack_sequence_as(outputs, whole)


def _predict_share(
    model: Any, share: Share, options: dict[str, Any]
) -> tuple[Any, Array]:
    """Returns this rank's outputs, and their rows: [steps, outputs]."""
    with (
        keras_predictions.noting_rows(model) as noted,
        warnings.catch_warnings(),
    ):
        if options["steps"] is None:
            # Nobody knows how many batches a share of a dataset has.
            warnings.filterwarnings("ignore", "Your input ran out of data")
        try:
            outputs = model.predict(share.data, **options)
        except UnboundLocalError:
            if noted:
                raise
            outputs = []  # Keras knows no data without a batch
    num_rows = np.array(noted, np.int64)
    if share.num_last is not None and len(num_rows) == share.num_steps:
        num_rows[-1] = np.minimum(num_rows[-1], share.num_last)
        kept = [
            output[:count]
            for output, count in zip(
                keras.tree.flatten(outputs), num_rows.sum(axis=0), strict=True
            )
        ]
        outputs = keras.tree.pack_sequence_as(outputs, kept)
    return outputs, num_rows


def _rows_of_ranks(
    num_rows: Array,
    steps: int | None,
    has_stopped: bool,
    process_set: ProcessSet,
) -> list[Array]:
    """Returns each rank's rows: [steps, outputs]; checks that they match."""
    of_ranks = object_exchange.allgather(
        [num_rows, steps, has_stopped], "predict/rows", process_set
    )
    found = [each[0] for each in of_ranks]
    num_steps = [len(each) for each in found]
    where = f"on ranks {process_set.ranks}"
    if 0 in num_steps:
        raise ValueError(
            "`data` must have a batch for each rank. Received: "
            f"{num_steps} batches {where}."
        )
    # Where the data end, some ranks may have a step more than others.
    must_be_equal = any(each[2] for each in of_ranks)
    if (must_be_equal and len(set(num_steps)) > 1) or (
        len({each[1] for each in of_ranks}) > 1
    ):
        raise MismatchError(
            "All ranks must stop predicting after the same step. Received: "
            f"{num_steps} steps {where}."
        )
    if len({each.shape[1] for each in found}) > 1:
        raise MismatchError(
            "All ranks must predict with equal models. Received: "
            f"{[each.shape[1] for each in found]} outputs {where}."
        )
    return found


def _gathered(
    output: Any,
    num_rows: list[Array],
    name: str,
    root: int | None,
    process_set: ProcessSet,
) -> Any:
    """Returns an output of all ranks, in order; None where nobody asks.

    Args:
        output: That of this rank.
        num_rows: For each rank, the rows of its steps.
        name: Pairs the call across ranks.
        root: As for `gather_rows`.
        process_set: The ranks that have outputs.
    """
    order = _order(num_rows)
    if not hasattr(output, "nested_row_lengths"):
        rows = gather_rows(np.asarray(output), name, root, process_set)
        return None if rows is None else rows[order]
    import tensorflow as tf

    # Ragged tensors follow each other if all their parts do.
    parts = [
        gather_rows(part.numpy(), f"{name}/{number}", root, process_set)
        for number, part in enumerate(
            [output.flat_values, *output.nested_row_lengths()]
        )
    ]
    if parts[0] is None:
        return None
    whole = tf.RaggedTensor.from_nested_row_lengths(parts[0], parts[1:])
    return tf.gather(whole, order)


def _order(num_rows: list[Array]) -> Array:
    """Returns which gathered row comes where: step by step, rank by rank.

    Args:
        num_rows: For each rank, the rows of its steps.
    """
    rank = np.concatenate([np.full(len(n), r) for r, n in enumerate(num_rows)])
    step = np.concatenate([np.arange(len(n)) for n in num_rows])
    count = np.concatenate(num_rows)
    begin = np.cumsum(count) - count
    return np.concatenate(
        [
            np.arange(begin[part], begin[part] + count[part])
            for part in np.lexsort((rank, step))
        ]
    )
