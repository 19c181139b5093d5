"""Gives each rank its share of the data."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common import log, training_signs, verification
from hvd_keras._job import membership
from hvd_keras._keras import advice, callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._values import arrays_behind, row_samples
from hvd_keras._values.members import members_of
from hvd_keras.data import (
    _arguments,
    _comparison,
    _loaded,
    _verified,
    position,
)
from hvd_keras.data._counts import Counts, mark, source_of
from hvd_keras.data._deal import Deal
from hvd_keras.data._own_loops import OwnLoop
from hvd_keras.data._pass import Shuffle
from hvd_keras.data._py_dataset import ShardedPyDataset
from hvd_keras.data._readers import reader_of
from hvd_keras.data._structures import has_targets
from hvd_keras.data._taken import Taken
from hvd_keras.data.position import Form, Handle
from hvd_keras.process_set import ProcessSet, global_process_set


def shard(
    data: Any,
    *others: Any,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    policy: str = "split",
    shuffle: bool = False,
    seed: int = 0,
    batched: bool = False,
    autotune: bool = False,
    collate: Callable[[Any], Any] | None = None,
    elastic: bool | None = None,
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
            `tf.data.Dataset` of dense, ragged or sparse tensors, or a function
            that makes that of an epoch from its number; a
            `keras.utils.PyDataset`; a `DataLoader` of torch with a map-style
            dataset; a `datasets.Dataset` of Hugging Face, whose batches are
            dicts of columns; or a `MapDataset` or `DataLoader` of Grain. The
            ranks deal out the numbers of the rows of the last three, which
            then read them by their own workers. A loader that shuffles is
            shuffled by `seed`.
        *others: None: inputs and targets are one tuple in `data`.
        batch_size: Rows of a batch of *each rank*. None for a `PyDataset`,
            which makes batches itself: they are dealt out one by one. None for
            a `DataLoader` of torch means its own.
        global_batch_size: Rows of a global batch, in place of `batch_size`:
            any number of ranks then takes the same steps. If it does not
            divide by the ranks, some have a row more than others.
        policy: "split", "pad", "drop" or "join", see above.
        shuffle: Whether arrays, or the batches of a `PyDataset`, come in
            another order in each epoch, the same on all ranks. An iteration
            over the result is an epoch: ranks must iterate equally often.
            `fit` does not shuffle the result.
            False for a `tf.data.Dataset`: shuffle it before, with the same
            seeds on all ranks.
        seed: Decides on the orders, together with the number of the epoch.
        batched: Whether the elements of a `tf.data.Dataset` are batches. With
            a batch size they are cut anew; without one each is a global batch,
            and so is each batch of a `PyDataset`. Those whose rows may have
            other lengths than those of the next, as from `padded_batch` and
            `bucket_by_sequence_length`, are cut each by itself: a step has no
            rows of two of them.
        autotune: Whether tf.data may tune the result and the
            `tf.data.Dataset` behind it. Its tuner may overlook the end of an
            epoch and delay it by as long as the epoch took, up to a minute
            (seen in TF 2.21, in a third of all cases). If N ranks wait for the
            slowest, that is nearly every epoch. With False, `AUTOTUNE` means a
            fixed number of threads.
        collate: Makes a batch of what a loader reads: of a list of rows (torch,
            Grain) or of a dict of columns (Hugging Face). A tuple (x, y) has
            targets. None: as torch's loader does; Grain's rows are stacked.
        elastic: Whether the number of ranks may change in the middle of an
            epoch. Then the result has a form that suits all numbers: no fixed
            shapes (except with "pad" and "drop"), weights if there are
            targets, and a `tf.data.Dataset` of unknown length. The ranks do
            not compare data and arguments, for a rank that joins calls this
            alone. None: as `hvdrun` runs the job.
        process_set: The ranks that share the data, including this one.

    Returns:
        A `tf.data.Dataset`, whose length is known if that of `data` is. Or a
        `PyDataset`: for a `PyDataset`, for data of torch, Hugging Face and
        Grain, and for arrays if Keras does not run on TensorFlow. A list in
        `data` becomes a tuple.

    What a `tf.data.Dataset` does to each row by itself (`map`, reading files,
    and records of `TFRecordDataset`) is done on the rank that has the row; what
    orders rows runs on all ranks.
    Stages that need the rows themselves, such as `filter`, run on all ranks
    with all that stands before them: put expensive work behind `shard` then,
    `hvd.shard(names, batch_size=32).map(load_batch)`. The ranks end together
    without asking each other, also if the length is unknown. All must read the
    same elements in the same order. `fit` compares what passes through the
    ranks, in its first steps and at the end of each epoch. Of a `PyDataset` it
    compares what may be an order, and the targets of batches that all ranks
    read: what changes inputs at random may differ by rank. Nothing is read for
    that, so data that can be read only once are complete.

    Raises:
        TypeError: `data` is none of these.
        ValueError: An argument cannot be honoured, or there are too few rows
            for a step.
        MismatchError: On all ranks: ranks have different data or arguments.
        DamagedFileError: On all ranks: a TFRecord file is not whole.

    Example:

    >>> train = hvd.shard((x, y), batch_size=32, shuffle=True)
    >>> held_out = hvd.shard((x_test, y_test), batch_size=256)
    >>> model.fit(train, validation_data=held_out, epochs=10)
    """
    _arguments.check_is_alone(others)
    _arguments.check_is_whole(data)
    data = _verified.prepared(
        data, batch_size, global_batch_size, batched, process_set
    )
    is_py_dataset = isinstance(data, keras.utils.PyDataset)
    reader = reader_of(data, collate)
    if reader is not None:
        if global_batch_size is None:
            batch_size = batch_size or reader.batch_size
        shuffle = shuffle or reader.shuffle
    tf = sys.modules.get("tensorflow")  # without it there are no datasets
    sample: Any = data if reader is None else ()
    if callable(data) and not hasattr(data, "__next__"):
        sample = _arguments.dataset_of_epoch(data, 0)
    is_dataset = tf is not None and isinstance(sample, tf.data.Dataset)
    _arguments.check_data(sample)
    _arguments.check_collate(collate, reader is not None)
    _arguments.check_arguments(batch_size, global_batch_size, policy, seed)
    if batched and not (batch_size or global_batch_size) and is_dataset:
        found = _size_of_batches(sample)
        # Of fewer rows than ranks, each batch is kept.
        is_few = (found or 0) < (process_set.size() or 1)
        if not is_few or policy != "split":
            global_batch_size = found
    if is_dataset and not batched and (batch_size or global_batch_size):
        _arguments.check_no_batches(sample)
    rows_of_batch = batch_size or global_batch_size
    keeps = batched and rows_of_batch is None
    if keeps:
        _arguments.check_keeps(policy)
        rows_of_batch = 1 if is_dataset else None
    _arguments.check_kind(
        is_py_dataset, is_dataset, rows_of_batch, shuffle, batched
    )
    batch = sample.element_spec if is_dataset else data
    if reader is not None:
        batch = reader.first_rows
    is_elastic = membership.is_elastic() if elastic is None else bool(elastic)
    has_weights = is_py_dataset or has_targets(batch)
    is_uneven = is_dataset and not batched and _is_of_files(data)
    if is_uneven:
        _arguments.check_whole_files(policy)

    def deal_now() -> Deal:
        members_of(process_set, "shard")
        num_merged = verification.num_merged()
        size = process_set.size() or 1
        if keeps:  # positions count batches
            return Deal(
                process_set.rank() or 0,
                size,
                1,
                policy,
                has_weights=has_weights,
                is_elastic=is_elastic,
                num_global=1,
                keeps_batches=True,
            )
        return Deal.of_global(
            global_batch_size or (batch_size or 1) * num_merged * size,
            rank=process_set.rank() or 0,
            size=size,
            policy=policy,
            has_weights=has_weights,
            is_elastic=is_elastic,
            num_merged=num_merged,
            is_uneven=is_uneven,
            can_be_few=not (is_dataset or is_py_dataset or is_elastic),
        )

    deal = deal_now()
    is_own_call = _comparison.caller() == "shard"
    is_whole = is_py_dataset and not batched and is_own_call
    if is_whole and deal.size > 1 and deal.rank == 0:
        _tell_of_whole_batches(deal.size)
    # A rank that joins calls this alone.
    if is_dataset and not is_elastic and not membership.is_waiting():
        _prepare(sample, process_set)
    make = _maker_of(is_py_dataset, is_dataset, reader)
    num_rows, described, finish = make(
        reader or data, deal, shuffle=shuffle, seed=seed, batched=batched
    )
    arguments = {
        "batch_size": batch_size,
        "global_batch_size": global_batch_size,
        "policy": policy,
        "shuffle": bool(shuffle),
        "seed": seed,
        "batched": bool(batched),
    }

    compares = is_py_dataset and deal.size > 1 and not is_elastic
    held = arrays_behind.rows_held(data) if compares else {}
    attributes = {name: row_samples.sum_of(held[name]) for name in held}

    def check_equal() -> None:
        _comparison.check_equal(
            _kind_of(is_py_dataset, is_dataset, reader, data),
            arguments,
            described,
            process_set,
            attributes,
        )

    if not is_elastic:
        check_equal()
    _arguments.check_length(num_rows, deal, is_py_dataset)
    has_specs = reader is None and (
        is_dataset or keras.backend.backend() == "tensorflow"
    )
    form = Form(
        is_static=deal.is_static(num_rows) and has_specs,
        has_weights=deal.may_fill(num_rows),
    )
    is_free = is_py_dataset and policy != "pad"
    handle = Handle(
        deal_now,
        num_rows,
        check_equal,
        None if is_free else form,
        taken=Taken(process_set),
        own_loop=OwnLoop(process_set, has_rows=not is_py_dataset),
    )
    handle.taken.is_shuffled = bool(shuffle)
    handle.is_of_arrays = not (is_dataset or is_py_dataset or reader)
    result = _ready(finish(handle), handle, autotune)
    callback_lists.at_train_begin.add(_note_share)
    if deal.size > 1 and deal.rank == 0:
        callback_lists.at_train_begin.add(_advise)
        keras_calls.at_end.add(_advise_at_end)
    position.serve_fits()
    keras_calls.at_begin_of_fit.add(_arguments.check_fit)
    position.attach(result, handle)
    counts = Counts(
        num_ranks=deal.size,
        batch_size=deal.batch_size,
        rest=None
        if is_py_dataset or deal.keeps_batches or deal.is_few
        else deal.rest_of(num_rows),
        may_fill=deal.may_fill(num_rows),
        adds_weights=has_weights and not is_py_dataset and len(batch) == 2,
        fills_in_part=policy == "pad" and not is_py_dataset,
        ends_together=policy != "join",
        joined=0 if is_py_dataset else deal.num_joined(num_rows),
        is_uneven=bool(deal.num_global),
        deals_rows=not is_py_dataset or bool(batched),
    )
    return mark(result, counts)


def _ready(result: Any, handle: Handle, autotune: bool) -> Any:
    """Returns a share with the options that it needs."""
    if isinstance(result, keras.utils.PyDataset):
        return result
    from hvd_keras.data import _datasets, _keras_passes

    # Keras means the default of `fit`, but `hvd.shard` has an argument like it.
    warnings.filterwarnings(
        "ignore", "`shuffle=True` was passed, but will be ignored"
    )
    if not autotune:
        result = _datasets.without_tuner(result)
    return _keras_passes.as_share(_datasets.as_sharded(result), handle)


def _note_share(callback_list: Any) -> None:
    fit = keras_calls.running_fit()
    source = None if fit is None else source_of(fit.data)
    if source is not None and source.deals_rows:
        training_signs.trains_on_share = True


def _advise(callback_list: Any) -> None:
    """Warns of a `fit` on a share that does not train as one process would."""
    fit, model = keras_calls.running_fit(), callback_list.model
    source = None if fit is None else source_of(fit.data)
    if source is None:
        return
    if source.joined:
        advice.tell_of_joined_rest(model, source.joined, source.num_ranks)
    if not advice.has_own_train_step(model) and not advice.any_reduces(model):
        advice.tell_of_plain_optimizer(model)


def _advise_at_end(call: keras_calls.Call) -> None:
    """Warns of results that are those of a rank's own rows."""
    if source_of(call.data) is None or sys.exc_info()[0] is not None:
        return
    if call.method == "evaluate" and not call.sums_metrics:
        in_fit = keras_calls.running_fit() is not None
        advice.tell_of_own_metrics(call.model, in_fit=in_fit)
    is_own_fit = call.method == "fit" and not call.sums_metrics
    if is_own_fit and advice.any_reduces(call.model):
        advice.tell_of_own_logs(call.model, call.callbacks)
    handle = position.handle_of(call.data)
    # `hvd.predict` watches, and gathers the others' rows.
    if call.method == "predict" and handle and not handle.taken.is_watched:
        advice.tell_of_own_predictions(call.model)


@functools.cache  # said once
def _tell_of_blocker(blocker: str, caller: str) -> None:
    if caller == "shard":
        log.info(
            f"`hvd.shard` of a tf.data.Dataset: for {blocker}, each rank does "
            "the work on all rows that stands before. If it takes long, do it "
            "behind `hvd.shard`; see 'Who reads what' in docs/data.md."
        )
    else:
        log.info(
            f"`{caller}`: for {blocker}, each rank makes all rows, and takes "
            "its own. That is right, but may be slow; see 'Who reads what' in "
            "docs/data.md."
        )


@functools.cache  # said once
def _tell_of_whole_batches(size: int) -> None:
    log.info(
        "`hvd.shard` deals out whole batches of a PyDataset: a step of all "
        f"{size} ranks has {size} of them. For the steps of one process, "
        "divide its batch size by `hvd.size()`, or pass `batched=True`, which "
        "shares out the rows of each batch."
    )


def _is_of_files(data: Any) -> bool:
    from hvd_keras.data import _whole_files

    return not callable(data) and _whole_files.whole_files_of(data) is not None


def _size_of_batches(dataset: Any) -> int | None:
    from hvd_keras.data import _sources

    return _sources.batch_size_of(dataset)


# The number of rows, what must be equal on all ranks, and a function that makes
# the batches of this rank.
_Plan = tuple[int | None, list[Any], Callable[[Handle], Any]]


def _maker_of(
    is_py_dataset: bool, is_dataset: bool, reader: Any
) -> Callable[..., _Plan]:
    if is_py_dataset:
        return _make_of_py_dataset
    if is_dataset:
        return _make_of_dataset
    return _make_of_arrays if reader is None else _make_of_reader


def _kind_of(
    is_py_dataset: bool, is_dataset: bool, reader: Any, data: Any
) -> str:
    """Says what the data are, in the words of `_comparison`."""
    if is_py_dataset:
        return "PyDataset"
    if is_dataset:
        return "function" if callable(data) else "tf.data.Dataset"
    return "arrays" if reader is None else "loader"


def _make_of_py_dataset(
    data: Any, deal: Deal, *, shuffle: Shuffle, seed: int, batched: bool
) -> _Plan:
    def finish(handle: Handle) -> Any:
        return ShardedPyDataset(data, handle, deal, shuffle=shuffle, seed=seed)

    return data.num_batches, [["batches", data.num_batches]], finish


def _make_of_reader(
    reader: Any, deal: Deal, *, shuffle: Shuffle, seed: int, batched: bool
) -> _Plan:
    def finish(handle: Handle) -> Any:
        return _loaded.LoadedRows(
            reader, handle, deal, shuffle=shuffle, seed=seed
        )

    described = [["rows", reader.num_rows], *_loaded.describe(reader)]
    return reader.num_rows, described, finish


def _prepare(dataset: Any, process_set: ProcessSet) -> None:
    from hvd_keras.data import _sources

    _sources.prepare(dataset, process_set)


def _make_of_dataset(
    data: Any, deal: Deal, *, shuffle: Shuffle, seed: int, batched: bool
) -> _Plan:
    from hvd_keras.data import _datasets, _keras_passes

    def of_epoch(epoch: int) -> Any:
        return data if is_fixed else _arguments.dataset_of_epoch(data, epoch)

    is_fixed = not callable(data)
    source = _datasets.Source(
        of_epoch, batched=batched, is_fixed=is_fixed, keeps=deal.keeps_batches
    )
    _datasets.check_has_tensors(source.first)
    if deal.size > 1 and deal.rank == 0:
        if source.whole_files is not None:
            source.whole_files[0].tell_of_order(deal.size)
        elif blocker := source.what_blocks():
            _tell_of_blocker(blocker, _comparison.caller())
    num_rows = _datasets.num_rows_of(source.first, batched=batched)
    described = [["rows", num_rows], *source.describe()]

    def finish(handle: Handle) -> Any:
        if num_rows is None:  # else the share is of known length
            handle.whole_steps = _keras_passes.num_steps_of(source, deal)
        return _datasets.shard_dataset(source, handle, deal, num_rows)

    return num_rows, described, finish


def _make_of_arrays(
    data: Any, deal: Deal, *, shuffle: Shuffle, seed: int, batched: bool
) -> _Plan:
    if keras.backend.backend() == "tensorflow":
        from hvd_keras.data import _arrays

        tensors = _arrays.to_tensors(data)
        num_rows = _arrays.num_rows_of(tensors)
        return (
            num_rows,
            [["rows", num_rows], *_arrays.describe(tensors)],
            lambda handle: _arrays.shard_arrays(
                tensors, handle, deal, shuffle=shuffle, seed=seed
            ),
        )
    from hvd_keras.data import _host_arrays

    arrays = _host_arrays.to_arrays(data)
    num_rows = _host_arrays.num_rows_of(arrays)
    return (
        num_rows,
        [["rows", num_rows], *_host_arrays.describe(arrays)],
        lambda handle: _host_arrays.ShardedArrays(
            arrays, handle, deal, shuffle=shuffle, seed=seed
        ),
    )
