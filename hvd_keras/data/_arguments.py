"""Checks the arguments of `shard`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from hvd_keras.data._deal import POLICIES, Deal


def dataset_of_epoch(make_dataset: Callable[[int], Any], epoch: int) -> Any:
    """Returns what a function makes for an epoch.

    Raises:
        TypeError: The function does not take an epoch, or makes no dataset.
    """
    tf = sys.modules.get("tensorflow")
    try:
        inspect.signature(make_dataset).bind(epoch)
    except TypeError as error:
        dataset: Any = error
    else:
        dataset = make_dataset(epoch)
    if tf is None or not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "A function as `data` must take the number of an epoch and return "
            f"a tf.data.Dataset. Received: {make_dataset!r}, which gives "
            f"{dataset!r}."
        )
    return dataset


def check_data(data: Any) -> None:
    """Raises TypeError if `shard` does not take data of this type."""
    is_iterator = hasattr(data, "__next__") or callable(data)
    tf = sys.modules.get("tensorflow")
    is_distributed = tf is not None and isinstance(
        data, tf.distribute.DistributedDataset
    )
    is_loader = hasattr(data, "collate_fn")  # of torch
    if data is None or is_iterator or is_distributed or is_loader:
        remedy = "; give it to `hvd.shard`" if is_loader else ""
        raise TypeError(
            "`data` must be arrays, a tf.data.Dataset or a "
            f"keras.utils.PyDataset. Received: {type(data).__name__}{remedy}."
        )


def check_arguments(
    batch_size: Any, global_batch_size: Any, policy: Any, seed: Any
) -> None:
    for name, value, what in (
        ("batch_size", batch_size, "each rank"),
        ("global_batch_size", global_batch_size, "all ranks together"),
    ):
        is_size = type(value) is int and value >= 1
        if value is not None and not is_size:
            raise ValueError(
                f"`{name}` must be an integer >= 1, the rows of {what}. "
                f"Received: {name}={value!r}."
            )
    if None not in (batch_size, global_batch_size):
        raise ValueError(
            "Only one of `batch_size` and `global_batch_size` may be given. "
            f"Received: batch_size={batch_size}, "
            f"global_batch_size={global_batch_size}."
        )
    if policy not in POLICIES:
        raise ValueError(
            f"`policy` must be one of {', '.join(POLICIES)}. Received: "
            f"policy={policy!r}."
        )
    if type(seed) is not int or seed < 0:
        raise ValueError(
            f"`seed` must be an integer >= 0. Received: seed={seed!r}."
        )


def check_collate(collate: Any, is_loaded: bool) -> None:
    if collate is not None and not (is_loaded and callable(collate)):
        raise ValueError(
            "`collate` must be a function, and None except for data of torch, "
            f"Hugging Face and Grain. Received: collate={collate!r}."
        )


def check_kind(
    is_py_dataset: bool,
    is_dataset: bool,
    batch_size: int | None,
    shuffle: bool,
    batched: bool,
) -> None:
    if is_dataset and batch_size is None:
        raise ValueError(
            "`batch_size` or `global_batch_size` must be given: the rows of a "
            "batch of each rank, or of all ranks together. "
            "Received: batch_size=None. A dataset that makes batches itself "
            "needs `batched=True`, too."
        )
    if is_py_dataset != (batch_size is None):
        raise ValueError(
            "`batch_size` must be given, except for a PyDataset, which makes "
            f"batches itself. Received: batch_size={batch_size}."
        )
    if is_dataset and shuffle:
        raise ValueError(
            "A tf.data.Dataset must be shuffled before it is sharded, with "
            "the same seed on all ranks: `dataset.shuffle(buffer_size, "
            "seed=...)`; a `tf.random.set_seed`, if any, must be equal too. "
            f"Received: shuffle={shuffle!r}."
        )
    if batched and not (is_dataset or is_py_dataset):
        raise ValueError(
            "`batched` must be False, except for a tf.data.Dataset and a "
            f"PyDataset. Received: batched={batched!r}."
        )


def check_keeps(policy: str) -> None:
    if policy != "split":
        raise ValueError(
            "`policy` must be 'split' where each batch of the data is a global "
            "batch, and may have other rows than the next. Received: "
            f"policy={policy!r}; pass a batch size, too."
        )


def check_whole_files(policy: str) -> None:
    if policy not in ("split", "drop"):
        raise ValueError(
            "`policy` must be 'split' or 'drop' for `hvd.data.files`: ranks "
            f"have unequally many rows. Received: policy={policy!r}."
        )


def check_length(num_rows: int | None, deal: Deal, is_py_dataset: bool) -> None:
    if num_rows is None:
        return
    # A PyDataset splits the rows of its last batches, which nobody knows yet.
    is_split = is_py_dataset and deal.policy == "split"
    if num_rows >= 1 and (is_split or deal.num_global_steps(num_rows) >= 1):
        return
    unit = "batches" if is_py_dataset else "rows"
    raise ValueError(
        f"`data` must have enough {unit} for a step of all {deal.size} ranks. "
        f"Received: {num_rows} {unit}, batch_size={deal.batch_size}, "
        f"policy={deal.policy!r}."
    )
