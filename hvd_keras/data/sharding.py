"""Gives each rank its share of the data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._keras import advice
from hvd_keras._keras import fit as keras_fit
from hvd_keras._values import agreement
from hvd_keras._values.members import members_of
from hvd_keras.data._counts import Counts, mark, source_of
from hvd_keras.data._deal import POLICIES, Deal
from hvd_keras.data._py_dataset import ShardedPyDataset
from hvd_keras.data._structures import has_targets
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set


def shard(
    data: Any,
    *,
    batch_size: int | None = None,
    policy: str = "split",
    shuffle: bool = False,
    seed: int = 0,
    batched: bool = False,
    autotune: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns this rank's batches of `data`, for `fit`, `evaluate`, `predict`.

    Every rank calls this with all the data and the same arguments; the ranks
    compare both. A *global batch* is `batch_size` rows times the number of
    ranks. Each rank gets its part of every global batch, in order of rank: N
    ranks do what one process does with batches N times as large. All ranks take
    the same number of steps (except with `policy="join"`), and an epoch has
    each row once. One rank gets `data`, in batches.

    The last rows may be too few for a global batch. `policy` decides about
    them:

    - "split": the ranks share them as evenly as possible. So the last batch is
      smaller, and some ranks have a row more than others. A rank without a row
      gets a copy of one.
    - "pad": every batch has `batch_size` rows; copies of rows fill the last
      batches. Use it for fixed shapes.
    - "drop": they are dropped. With `shuffle`, each epoch drops others.
    - "join": as "split", but ranks without a last row end a step before the
      others. Use it in your own loops that call `hvd.join()` then.

    Copies that fill a batch have a weight of -0.0. If there may be some, `data`
    must be a tuple (x, y) or (x, y, sample_weight), and all batches have
    weights: 1 for other rows, or yours. `fit` and `evaluate` then leave the
    copies out of losses and metrics. (Layers that look at the whole batch, such
    as `BatchNormalization`, see them.) If `data` has no targets, "split" adds
    fewer rows than ranks to the step before.

    With a `DistributedOptimizer`, losses and gradients are those of one process
    on the global batch: each row counts once in each mean.

    Args:
        data: An array, or a structure of arrays of equal length (NumPy arrays,
            tensors, lists of numbers; tuples and dicts of them); a
            `tf.data.Dataset` of dense, ragged or sparse tensors; or a
            `keras.utils.PyDataset`.
        batch_size: Rows of a batch of *each rank*. None for a `PyDataset`,
            which makes batches itself: they are dealt out one by one.
        policy: "split", "pad", "drop" or "join", see above.
        shuffle: Whether arrays, or the batches of a `PyDataset`, come in
            another order in each epoch, the same on all ranks. An iteration
            over the result is an epoch: ranks must iterate equally often.
            With several `workers`, `fit` shuffles the batches of a `PyDataset`
            itself, differently on each rank, unless it gets `shuffle=False`.
            False for a `tf.data.Dataset`: shuffle it before, with the same
            seeds on all ranks.
        seed: Decides on the orders, together with the number of the epoch.
        batched: Whether the elements of a `tf.data.Dataset` are batches; they
            are cut anew.
        autotune: Whether tf.data may tune the result and the
            `tf.data.Dataset` behind it. Its tuner may overlook the end of an
            epoch and delay it by as long as the epoch took, up to a minute
            (seen in TF 2.21, in a third of all cases). If N ranks wait for the
            slowest, that is nearly every epoch. With False, `AUTOTUNE` means a
            fixed number of threads.
        process_set: The ranks that share the data, including this one.

    Returns:
        A `tf.data.Dataset`, whose length is known if that of `data` is. Or a
        `PyDataset`: for a `PyDataset`, and for arrays if Keras does not run on
        TensorFlow. A list in `data` becomes a tuple.

    Every rank reads all of a `tf.data.Dataset` and takes its part of each
    global batch. So the work before `shard` is done N times. Do cheap work
    before (names of files) and expensive work after:
    `hvd.shard(names, batch_size=32).map(load_batch)`. The ranks end together
    without asking each other, also if the length is unknown. All must read the
    same elements in the same order; they compare the first global batch.

    Raises:
        TypeError: `data` is none of these.
        ValueError: An argument cannot be honoured, or there are too few rows
            for a step.
        MismatchError: On all ranks: ranks have different data or arguments.

    Example:

    >>> train = hvd.shard((x, y), batch_size=32, shuffle=True)
    >>> held_out = hvd.shard((x_test, y_test), batch_size=256)
    >>> model.fit(train, validation_data=held_out, epochs=10)
    """
    members_of(process_set, "shard")
    is_py_dataset = isinstance(data, keras.utils.PyDataset)
    tf = sys.modules.get("tensorflow")  # without it there are no datasets
    is_dataset = tf is not None and isinstance(data, tf.data.Dataset)
    check_data(data)
    _check_arguments(batch_size, policy, seed)
    _check_kind(is_py_dataset, is_dataset, batch_size, shuffle, batched)
    batch = data.element_spec if is_dataset else data
    deal = Deal(
        rank=process_set.rank() or 0,
        size=process_set.size() or 1,
        batch_size=batch_size or 1,
        policy=policy,
        has_weights=is_py_dataset or has_targets(batch),
    )
    make = _make_of_arrays
    if is_py_dataset:
        make = _make_of_py_dataset
    elif is_dataset:
        make = _make_of_dataset
    num_rows, described, finish = make(
        data, deal, shuffle=shuffle, seed=seed, batched=batched
    )
    arguments = {
        "batch_size": batch_size,
        "policy": policy,
        "shuffle": bool(shuffle),
        "seed": seed,
        "batched": bool(batched),
    }
    _agree({**arguments, "data": described}, process_set)
    _check_length(num_rows, deal, is_py_dataset)
    result = finish()
    if not isinstance(result, keras.utils.PyDataset):
        from hvd_keras.data import _datasets

        if not autotune:
            result = _datasets.without_tuner(result)
        result = _datasets.as_sharded(result)
    if deal.size > 1 and deal.rank == 0:
        keras_fit.call_at_train_begin(_advise)
    return mark(
        result,
        Counts(
            num_ranks=deal.size,
            batch_size=deal.batch_size,
            rest=None if is_py_dataset else deal.rest_of(num_rows),
            may_fill=deal.may_fill(num_rows),
            adds_weights=deal.has_weights
            and not is_py_dataset
            and len(batch) == 2,
        ),
    )


def _advise(callback_list: Any) -> None:
    """Warns of a `fit` on a share of the data that trains this rank alone."""
    fit, model = keras_fit.running_fit(), callback_list.model
    if (
        fit is not None
        and source_of(fit.data) is not None
        and not advice.has_own_train_step(model)
        and not advice.any_reduces(model)
    ):
        advice.tell_of_plain_optimizer(model)


# The number of rows, what must be equal on all ranks, and a function that makes
# the batches of this rank.
_Plan = tuple[int | None, list[Any], Callable[[], Any]]


def _make_of_py_dataset(
    data: Any, deal: Deal, *, shuffle: bool, seed: int, batched: bool
) -> _Plan:
    def finish() -> Any:
        return ShardedPyDataset(data, deal, shuffle=shuffle, seed=seed)

    return data.num_batches, [["batches", data.num_batches]], finish


def _make_of_dataset(
    data: Any, deal: Deal, *, shuffle: bool, seed: int, batched: bool
) -> _Plan:
    from hvd_keras.data import _datasets

    _datasets.check_has_tensors(data)
    num_rows = _datasets.num_rows_of(data, batched=batched)
    batches = _datasets.global_batches(data, deal, batched=batched)
    described = [["rows", num_rows], *_datasets.describe(batches)]
    return (
        num_rows,
        described,
        lambda: _datasets.shard_dataset(batches, deal, num_rows),
    )


def _make_of_arrays(
    data: Any, deal: Deal, *, shuffle: bool, seed: int, batched: bool
) -> _Plan:
    if keras.backend.backend() == "tensorflow":
        from hvd_keras.data import _arrays

        tensors = _arrays.to_tensors(data)
        num_rows = _arrays.num_rows_of(tensors)
        return (
            num_rows,
            [["rows", num_rows], *_arrays.describe(tensors)],
            lambda: _arrays.shard_arrays(
                tensors, deal, shuffle=shuffle, seed=seed
            ),
        )
    from hvd_keras.data import _host_arrays

    arrays = _host_arrays.to_arrays(data)
    num_rows = _host_arrays.num_rows_of(arrays)
    return (
        num_rows,
        [["rows", num_rows], *_host_arrays.describe(arrays)],
        lambda: _host_arrays.ShardedArrays(
            arrays, deal, shuffle=shuffle, seed=seed
        ),
    )


def check_data(data: Any) -> None:
    """Raises TypeError if `shard` does not take data of this type."""
    is_iterator = hasattr(data, "__next__") or callable(data)
    tf = sys.modules.get("tensorflow")
    is_distributed = tf is not None and isinstance(
        data, tf.distribute.DistributedDataset
    )
    is_loader = hasattr(data, "collate_fn")  # of torch
    if data is None or is_iterator or is_distributed or is_loader:
        remedy = ""
        if is_loader:
            remedy = (
                "; give the loader a DistributedSampler of "
                "torch.utils.data, with `num_replicas=hvd.size()` and "
                "`rank=hvd.rank()`"
            )
        raise TypeError(
            "`data` must be arrays, a tf.data.Dataset or a "
            f"keras.utils.PyDataset. Received: {type(data).__name__}{remedy}."
        )


def _check_arguments(batch_size: Any, policy: Any, seed: Any) -> None:
    is_size = type(batch_size) is int and batch_size >= 1
    if batch_size is not None and not is_size:
        raise ValueError(
            "`batch_size` must be an integer >= 1, the rows of each rank. "
            f"Received: batch_size={batch_size!r}."
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


def _check_kind(
    is_py_dataset: bool,
    is_dataset: bool,
    batch_size: int | None,
    shuffle: bool,
    batched: bool,
) -> None:
    if is_py_dataset != (batch_size is None):
        raise ValueError(
            "`batch_size` must be given, except for a PyDataset, which makes "
            f"batches itself. Received: batch_size={batch_size}."
        )
    if is_dataset and shuffle:
        raise ValueError(
            "A tf.data.Dataset must be shuffled before it is sharded, with "
            "the same seeds on all ranks: `dataset.shuffle(buffer_size, "
            "seed=...)` and an equal `tf.random.set_seed`. Received: "
            f"shuffle={shuffle!r}."
        )
    if batched and not is_dataset:
        raise ValueError(
            "`batched` must be False, except for a tf.data.Dataset. Received: "
            f"batched={batched!r}."
        )


def _check_length(
    num_rows: int | None, deal: Deal, is_py_dataset: bool
) -> None:
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


def _agree(value: dict[str, Any], process_set: ProcessSet) -> None:
    values = agreement.disagreement("shard", value, process_set=process_set)
    if values is None:
        return
    each = [one for one, _ in values]
    key = next(
        key for key in value if any(v[key] != each[0][key] for v in each)
    )
    words = {
        "data": "data (length; type, shape and checksum of some rows)",
    }.get(key, f"`{key}`")
    raise MismatchError(
        "All ranks must shard the same data in the same way: all of it, in "
        f"the same order. Received: {words} {[one[key] for one in each]} on "
        f"ranks {process_set.ranks}."
    )
