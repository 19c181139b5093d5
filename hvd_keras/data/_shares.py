"""The share of some data that a rank predicts."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import keras
import numpy as np

from hvd_keras.data._arguments import check_data
from hvd_keras.data._counts import Counts, counts_of, source_of
from hvd_keras.data._deal import Deal
from hvd_keras.data._host_arrays import ShardedArrays
from hvd_keras.data._tracing import unoptimized
from hvd_keras.data.sharding import shard
from hvd_keras.process_set import ProcessSet

_BATCH_SIZE = 32  # Keras's
# What tf.data may do to a share so that its batches keep their rows.
_KEEPS_ROWS = (
    "AssertCardinality",
    "Cache",
    "Map",
    "Options",
    "ParallelMap",
    "Prefetch",
)


@dataclasses.dataclass(frozen=True)
class Share:
    """A rank's share: its part of each global batch, in order of rank.

    Args:
        data: Batches, for `model.predict`.
        num_steps: The number of batches; None if unknown.
        num_last: How many rows of the last batch count. Others fill it. None:
            all.
        whole: The dataset that this is a share of; None: no dataset.
    """

    data: Any
    num_steps: int | None = None
    num_last: int | None = None
    whole: Any = None

    def end_pass(self) -> None:
        """Begins as many passes over a dataset as Keras does over all of it.

        On TensorFlow, it makes an iterator more behind a pass whose batches are
        known. What shuffles anew in each pass is in another order then.
        """
        is_tensorflow = keras.backend.backend() == "tensorflow"
        if (
            self.whole is not None
            and is_tensorflow
            and (
                int(self.whole.cardinality()) > 0 > int(self.data.cardinality())
            )
        ):
            iter(self.whole)


def share_of(
    data: Any, batch_size: int | None, process_set: ProcessSet
) -> Share:
    """Returns this rank's share of data that all ranks have.

    Args:
        data: What `model.predict` takes, except generators; or what `shard`
            has returned.
        batch_size: Rows of a batch of each rank; None for 32.
        process_set: The ranks that share the data, including this one.
    """
    if source_of(data) is not None:
        return _share_of_sharded(data, batch_size, process_set)
    check_data(data)
    tf = sys.modules.get("tensorflow")
    options: dict[str, Any] = {"process_set": process_set}
    if tf is not None and _has_ragged(data, tf):
        data = tf.data.Dataset.from_tensor_slices((data,)).batch(_BATCH_SIZE)
    if tf is not None and isinstance(data, tf.data.Dataset):
        # Without targets, no rows fill batches.
        whole = data
        inputs = data.map(unoptimized(lambda *batch: (batch[0],)))
        options.update(batch_size=batch_size or _BATCH_SIZE, batched=True)
        inputs = shard(inputs, **options)
        # `shard` unpacks what stands alone; a tuple would look like targets.
        return Share(
            inputs.map(unoptimized(lambda *x: (x if len(x) > 1 else x[0],))),
            whole=whole,
        )
    if isinstance(data, keras.utils.PyDataset):
        if batch_size is not None:
            raise ValueError(
                "`batch_size` must be None for a PyDataset, which makes "
                f"batches itself. Received: batch_size={batch_size!r}."
            )
        num_batches = data.num_batches or process_set.size() or 1
        has_enough = num_batches >= (process_set.size() or 1)
        policy = "join" if has_enough else "split"
        return Share(shard(data, policy=policy, **options))
    # The second array makes `shard` fill the batch of a rank without a row.
    shapes = [getattr(part, "shape", ()) for part in keras.tree.flatten(data)]
    num_rows = shapes[0][0] if shapes and shapes[0] else 0
    pair = (data, np.arange(num_rows))
    pair = shard(pair, batch_size=batch_size or _BATCH_SIZE, **options)
    share = _share_of_sharded(pair, None, process_set)
    if isinstance(pair, ShardedArrays):
        pair.gives_inputs_alone = True
        return share
    # As `model.predict` gives the rows of arrays to a `predict_step`.
    inputs = pair.map(
        unoptimized(lambda x, *_: (x,) if isinstance(x, tuple) else x)
    )
    return dataclasses.replace(share, data=inputs)


def _has_ragged(data: Any, tf: Any) -> bool:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    return any(isinstance(part, kinds) for part in keras.tree.flatten(data))


def _share_of_sharded(
    data: Any, batch_size: int | None, process_set: ProcessSet
) -> Share:
    counts = counts_of(data) or kept_counts_of(data)
    if counts is None or counts.num_ranks != process_set.size():
        raise ValueError(
            "`data` must be all of the data, or what `hvd.shard` returned for "
            "the same ranks, with no more than `map`, `cache` and `prefetch` "
            f"after it. Received: {type(data).__name__}."
        )
    if batch_size is not None:
        raise ValueError(
            "`batch_size` must be None for data from `hvd.shard`, which are "
            f"in batches. Received: batch_size={batch_size!r}."
        )
    if not counts.may_fill:
        return Share(data)
    if counts.rest is None:
        raise ValueError(
            "`data` from `hvd.shard` must have a known number of rows if "
            "copies of rows may fill batches; or give all of the data. "
            f"Received: {type(data).__name__}."
        )
    deal = Deal(
        rank=process_set.rank() or 0,
        size=counts.num_ranks,
        batch_size=counts.batch_size,
        policy="split",
    )
    begin, end = deal.bounds(counts.rest)
    if isinstance(data, keras.utils.PyDataset):
        return Share(data, data.num_batches, end - begin)
    return Share(data, int(data.cardinality()), end - begin)


def kept_counts_of(data: Any) -> Counts | None:
    """Returns the counts of data whose batches have those of a share."""
    while counts_of(data) is None:
        name = type(data).__name__.lstrip("_").removesuffix("Dataset")
        inputs = data._inputs() if name in _KEEPS_ROWS else []
        if len(inputs) != 1:
            return None
        (data,) = inputs
    return counts_of(data)
