"""Checks the arguments of `shard`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._common import log, user_code
from hvd_keras.data._deal import POLICIES, Deal
from hvd_keras.data.position import handle_of

_OF_GENERATORS = (
    "Make a dataset of what it yields, "
    "`tf.data.Dataset.from_generator(make, output_signature=...)`, or a "
    "`keras.utils.PyDataset`, which works without TensorFlow."
)
_OF_ROWS = (
    "Its rows come one by one: pass a `keras.utils.PyDataset` that makes "
    "batches of them, or `torch.utils.data.DataLoader(data, batch_size=32)`."
)


def dataset_of_epoch(make_dataset: Callable[[int], Any], epoch: int) -> Any:
    """Returns what a function makes for an epoch.

    Raises:
        TypeError: The function does not take an epoch, or makes no dataset.
    """
    tf = sys.modules.get("tensorflow")
    if inspect.isgeneratorfunction(make_dataset):
        raise TypeError(
            "A function as `data` must return a tf.data.Dataset. Received: "
            f"{make_dataset.__qualname__}, which yields. {_OF_GENERATORS}"
        )
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


def is_read_once(data: Any) -> bool:
    """Whether what is read of data is gone.

    `ImageDataGenerator.flow` gives a `PyDataset` that is an iterator, too.
    """
    is_batches = isinstance(data, keras.utils.PyDataset)
    return hasattr(data, "__next__") and not is_batches


def check_data(data: Any) -> None:
    """Raises TypeError if `shard` does not take data of this type."""
    tf = sys.modules.get("tensorflow")
    if is_read_once(data):
        cure = _OF_GENERATORS
    elif tf is not None and isinstance(data, tf.distribute.DistributedDataset):
        cure = "Pass the `tf.data.Dataset` of which it was made."
    elif hasattr(data, "collate_fn"):  # of torch, with an iterable dataset
        cure = "Pass it to `hvd.shard` with a dataset that has `__getitem__`."
    elif data is None or callable(data):
        cure = ""
    elif _yields_only(data):
        cure = _OF_GENERATORS
    elif _has_rows_alone(data):
        cure = _OF_ROWS
    else:
        return
    raise TypeError(
        "`data` must be arrays, a tf.data.Dataset, a keras.utils.PyDataset, or "
        "data of torch, Hugging Face or Grain. Received: "
        f"{type(data).__name__}. {cure}".rstrip()
    )


def _yields_only(data: Any) -> bool:
    """Whether data can be iterated, and nothing else."""
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(data, tf.data.Dataset):
        return False
    # torch gives its own a `__getitem__` that raises.
    names = {each.__name__ for each in type(data).__mro__}
    has_rows = hasattr(data, "__getitem__") and "IterableDataset" not in names
    return hasattr(data, "__iter__") and not has_rows


def _has_rows_alone(data: Any) -> bool:
    """Whether data are an object of the user's whose rows have numbers."""
    known = (list, tuple, dict, str, range, keras.utils.PyDataset)
    is_array = hasattr(data, "shape") or hasattr(data, "__array__")
    has_rows = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return has_rows and not is_array and not isinstance(data, known)


def check_is_alone(others: tuple[Any, ...]) -> None:
    """Raises TypeError if inputs and targets are not one structure."""
    if len(others) == 1 and isinstance(others[0], int):
        raise TypeError(
            "The batch size must be named: `hvd.shard(data, "
            f"batch_size={others[0]})` for that of each rank, or "
            "`global_batch_size=`. Received: a second argument without a name."
        )
    if others:
        raise TypeError(
            "`data` must be one argument: pass inputs and targets as a tuple, "
            "`hvd.shard((x, y), batch_size=32)`. Received: "
            f"{1 + len(others)} arguments."
        )


def check_is_whole(data: Any) -> None:
    """Raises ValueError if `shard` has dealt the data already."""
    if handle_of(data) is not None:
        raise ValueError(
            "`data` must be the whole data, the same on all ranks. Received: "
            "what `hvd.shard` has returned. Call it once."
        )


def check_fit(arguments: dict[str, Any]) -> None:
    """Raises ValueError if `fit` gets what a share cannot go with."""
    handle = handle_of(arguments.get("x"))
    if handle is None:
        return
    if (
        arguments.get("shuffle")  # its default is not among them
        and handle.is_of_arrays
        and not handle.taken.is_shuffled
        and basics.rank() == 0
    ):
        _tell_of_shuffle()
    given = [
        name
        for name in ("y", "sample_weight")
        if arguments.get(name) is not None
    ]
    if given:
        raise ValueError(
            "Inputs, targets and weights must be shared in one call, which "
            "keeps their rows together: `model.fit(hvd.shard((x, y), "
            "batch_size=32))`, or `hvd.shard((x, y, sample_weight), ...)`. "
            f"Received: a share as `x`, and `{'`, `'.join(given)}` beside it."
        )
    if (
        arguments.get("validation_split")
        and arguments.get("validation_data") is None
    ):
        raise ValueError(
            "`validation_split` must be 0 for what `hvd.shard` has dealt: each "
            "rank would hold out other rows than one process. Received: "
            f"validation_split={arguments['validation_split']!r}. Split the "
            "whole arrays, share both parts, and pass the second one as "
            "`validation_data`."
        )


@functools.cache  # said once
def _tell_of_shuffle() -> None:
    log.mistake(
        "`fit` does not shuffle what `hvd.shard` has dealt: pass "
        "`shuffle=True` to `hvd.shard`. Received: `shuffle=True` in `fit` at "
        f"{user_code.place()}, not in `hvd.shard`."
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
            cure = ""
            if isinstance(value, float) and name == "batch_size":
                cure = (
                    " For a batch size that does not divide, pass that of all "
                    "ranks as `global_batch_size`."
                )
            raise ValueError(
                f"`{name}` must be an integer >= 1, the rows of {what}. "
                f"Received: {name}={value!r}.{cure}"
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
    rows_of_batch: int | None,
    shuffle: bool,
    batched: bool,
) -> None:
    if is_dataset and rows_of_batch is None:
        raise ValueError(
            "`batch_size` or `global_batch_size` must be given to `hvd.shard`: "
            "the rows of a batch of each rank, or of all ranks together. "
            "Received: batch_size=None. A dataset that makes batches itself "
            "needs `batched=True`, too."
        )
    if is_py_dataset and rows_of_batch is not None:
        raise ValueError(
            "`batch_size` and `global_batch_size` must be None for a "
            "PyDataset, which makes batches itself. "
            f"Received: {rows_of_batch} rows."
        )
    if not is_py_dataset and rows_of_batch is None:
        raise ValueError(
            "`batch_size` or `global_batch_size` must be given to `hvd.shard`, "
            "and not to `fit`, except for a PyDataset, which makes batches "
            "itself. Received: neither."
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


def check_no_batches(dataset: Any) -> None:
    """Refuses a tf.data.Dataset of batches where its elements count as rows.

    Batches of one size may be rows, such as windows of a text. It only warns
    of these, and not at all if they are made of single numbers or texts.
    """
    from hvd_keras.data import _sources

    batching = _sources.stage_of_batches(dataset)
    if batching is None:
        return
    (rows,) = batching._inputs()
    size = int(batching._batch_size)
    cure = (
        "Pass `batched=True`, with which sizes count rows, or remove your "
        f"`.batch`. Received: elements made by `.batch({size})`."
    )
    spec = keras.tree.flatten(batching.element_spec)[0]
    if spec.shape.rank and spec.shape[0] is None:
        raise ValueError(
            "Each element of `data` must be a row where `batched` is False. "
            f"{cure}"
        )
    row = keras.tree.flatten(rows.element_spec)[0]
    if getattr(row, "shape", None) is not None and row.shape.rank:
        log.mistake(
            "`hvd.shard` takes each batch of `data` for one row, because "
            f"`batched` is False. {cure}"
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
