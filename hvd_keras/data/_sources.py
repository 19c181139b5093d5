"""Puts off what a tf.data pipeline does to each row until rows are dealt.

Which row comes when depends on counts and seeds, not on what the rows hold. So
what orders rows runs on their numbers, and what reads and changes a row runs
on the rank that has it.

| Private name of TensorFlow | Used to |
|---|---|
| `Dataset._inputs`, class names | know the stages of a pipeline |
| `_tensors`, `_map_func`, `_batch_size`, `_drop_remainder`, `_buffer_size`, \
`_seed`, `_seed2`, `_reshuffle_each_iteration`, `_count`, `_batch_sizes`, \
`_num_shards`, `_index`, `_expected_cardinality`, `_num_parallel_calls` | run \
a stage on numbers, or later |
| `structure.to_tensor_list`, `from_compatible_tensor_list` | call a function \
of `map` |
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.dataset_kinds import kind_of
from hvd_keras._job import state
from hvd_keras.data import (
    _functions,
    _joined,
    _looks,
    _records,
    _remembered,
    _shuffles,
)
from hvd_keras.data._lengths import ENDLESS, Lengths, of_batches, of_rows
from hvd_keras.data._numbered import (
    Rows,
    is_dense,
    length_of,
    shaped,
)
from hvd_keras.data._tracing import unoptimized
from hvd_keras.process_set import ProcessSet

_MOST_LIGHT = 64  # bytes of a tensor


def prepare(dataset: tf.data.Dataset, process_set: ProcessSet) -> None:
    """Finds out what all ranks must know of a dataset; all call it.

    Raises:
        DamagedFileError: On all ranks: a file of records is not whole.
    """
    _records.prepare(dataset, _MAKERS, process_set)


def late_rows_of(
    dataset: tf.data.Dataset,
    *,
    batched: bool,
    is_fixed: bool,
    always: bool = False,
) -> Rows | None:
    """Returns the rows of a dataset if it is worth while to read them late.

    Args:
        dataset: Its elements are rows.
        batched: Whether they are batches.
        is_fixed: Whether it is that of all epochs. If not, nobody compares
            arrays that only numbers stand for.
        always: Returns them also where it is not worth while.
    """
    if not is_fixed and any(arrays_of(dataset)):
        return None
    if not is_dense(dataset.element_spec):
        return None
    rows = without_batches(dataset) if batched else dataset
    found = rows_of(dataset if rows is None else rows)
    if not (found.has_work or always):
        return None
    found = _without_wrapping(found, dataset.element_spec)
    if rows is None and batched:
        is_known = found.count is not None and found.lengths is not None
        return found if is_known else None
    # What stands for rows makes batches.
    specs = tf.nest.flatten(found.numbers.element_spec)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        return None
    return dataclasses.replace(found, count=None)


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """Returns the rows of each batch but the last one; None: unknown."""
    batching = _batching_of(dataset)
    return None if batching is None else int(batching._batch_size)


def _batching_of(dataset: Any) -> Any:
    """Returns the stage that has made the batches; None: they were changed."""
    while kind_of(dataset) in ("Prefetch", "Options", "Restructured") or (
        # As `unbatch` and `rebatch` put it before themselves.
        kind_of(dataset) == "Map"
        and _functions.passes_on(dataset._map_func.function)
    ):
        (dataset,) = dataset._inputs()
    is_batching = kind_of(dataset) in ("Batch", "ParallelBatch")
    return dataset if is_batching else None


def stage_of_batches(dataset: Any) -> Any:
    """Returns the stage whose batches, changed or not, are the elements.

    None: there is none, or what is behind it may have made rows again.
    """
    while kind_of(dataset) in _KEEPS_ELEMENTS:
        (dataset,) = dataset._inputs()
    return _batching_of(dataset)


_KEEPS_ELEMENTS = frozenset(
    ["AssertCardinality", "Cache", "Map", "Options", "ParallelMap", "Prefetch"]
)


def _without_wrapping(rows: Rows, spec: Any) -> Rows:
    """Returns rows that are no tuples of one part, nor what stands for them."""
    numbers, read, count = rows.numbers, rows.read, rows.count
    if not (_is_single(numbers.element_spec) or _is_single(spec)):
        return rows
    if _is_single(numbers.element_spec):
        numbers = numbers.map(unoptimized(lambda number: number))
        if count is not None:
            wrapped_count = count
            count = as_it_is(lambda number: wrapped_count((number,)))
        wrapped = read
        read = as_it_is(lambda number: wrapped((number,)))
    if _is_single(spec):
        whole = read
        read = as_it_is(lambda number: whole(number)[0])
    return dataclasses.replace(
        rows, numbers=numbers, read=read, count=count, read_many=None
    )


def _is_single(spec: Any) -> bool:
    return isinstance(spec, tuple) and len(spec) == 1


def arrays_of(dataset: Any) -> Iterator[list[tf.Tensor]]:
    """Yields arrays that rows are made of, though nobody passes them on."""
    spec = dataset.element_spec
    if kind_of(dataset) in ("Tensor", "TensorSlice") and is_dense(spec):
        if not _is_light(dataset):
            yield list(dataset._tensors)
    elif hasattr(dataset, "_map_func"):
        yield from _functions.arrays_of(dataset._map_func.function)
    for before in dataset._inputs():
        yield from arrays_of(before)


# By number of a dataset: it, and its elements.
Stages = dict[int, tuple[Any, Rows]]
# While the elements of one are found.
_known: contextvars.ContextVar[Stages | None] = contextvars.ContextVar(
    "known", default=None
)


def rows_of(dataset: tf.data.Dataset) -> Rows:
    """Returns the elements of a dataset, with as much put off as can be.

    A stage that several others have is one, as in tf.data: it shuffles anew
    for each of them.
    """
    known = _known.get()
    if known is None:
        with knowing({}):
            return rows_of(dataset)
    if id(dataset) not in known:
        make = _MAKERS.get(kind_of(dataset))
        made = make(dataset) if make is not None else None
        # With the dataset: another one may get the number of one that is gone.
        known[id(dataset)] = dataset, made or _as_it_comes(dataset)
    return known[id(dataset)][1]


@contextlib.contextmanager
def knowing(stages: Stages) -> Iterator[None]:
    """Takes the elements of stages from there, and notes new ones there."""
    token = _known.set(stages)
    try:
        yield
    finally:
        _known.reset(token)


def without_batches(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the rows of a dataset whose last stage makes batches of them.

    None if its elements are not what `batch` has made.
    """
    batching = _batching_of(dataset)
    if batching is None:
        return None
    (rows,) = batching._inputs()
    if bool(batching._drop_remainder):
        count, size = int(rows.cardinality()), int(batching._batch_size)
        if count < 0:
            return None
        rows = rows.take(count // size * size)
    return _of_structure(rows, dataset.element_spec)


def _of_structure(rows: tf.data.Dataset, structure: Any) -> tf.data.Dataset:
    """Returns rows whose tensors have another nested structure."""
    try:
        tf.nest.assert_same_structure(rows.element_spec, structure)
    except (TypeError, ValueError):
        return rows.map(
            unoptimized(
                lambda *row: tf.nest.pack_sequence_as(
                    structure, tf.nest.flatten(row)
                )
            )
        )
    return rows


def _as_it_comes(dataset: tf.data.Dataset) -> Rows:
    """Elements that stand for themselves: all ranks read them all."""
    return Rows(
        dataset,
        _itself,
        read_many=_itself,
        is_light=_is_light(dataset),
        blocked_by=_name_of(dataset) if _has_work(dataset) else "",
    )


def _itself(row: Any) -> Any:
    return row


def _has_work(dataset: Any) -> bool:
    """Whether a function changes rows in a dataset, at some cost."""
    if _functions.changes_rows(dataset) or kind_of(dataset) == "Files":
        return True
    return any(map(_has_work, dataset._inputs()))


def _name_of(dataset: Any) -> str:
    """Returns the name of a stage, as users write it."""
    kind = kind_of(dataset).removeprefix("Parallel")
    if kind == "Map":
        return "a `map` that draws random numbers or calls Python"
    function = getattr(getattr(dataset, "_map_func", None), "_func", None)
    if "_from_generator." in getattr(function, "__qualname__", ""):
        return "a generator"
    if kind == "DirectedInterleave":
        return "`sample_from_datasets` or `choose_from_datasets`"
    return f"`{re.sub('(?<!^)(?=[A-Z])', '_', kind).lower()}`"


def last_stage_of(dataset: Any) -> str:
    """Returns the name of the last stage that changes elements."""
    while kind_of(dataset) in ("Options", "Prefetch", "Restructured"):
        (dataset,) = dataset._inputs()
    is_map = kind_of(dataset) in ("Map", "ParallelMap")
    return "`map`" if is_map else _name_of(dataset)


def _of_slices(dataset: Any) -> Rows | None:
    spec, tensors = dataset.element_spec, list(dataset._tensors)
    if _is_light(dataset) or not is_dense(spec):
        return None

    def read(number: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(
            spec, [tf.gather(tensor, number) for tensor in tensors]
        )

    count = int(dataset.cardinality())
    return Rows(
        tf.data.Dataset.range(count),
        read,
        read_many=read,
        is_light=True,
        lengths=of_rows(count),
    )


def _of_tensors(dataset: Any) -> Rows | None:
    spec, tensors = dataset.element_spec, list(dataset._tensors)
    if _is_light(dataset) or not is_dense(spec):
        return None

    def read(_: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(spec, list(map(tf.identity, tensors)))

    return Rows(
        tf.data.Dataset.range(1), read, is_light=True, lengths=of_rows(1)
    )


def from_row(dataset: tf.data.Dataset, first: tf.Tensor) -> tf.data.Dataset:
    """Returns elements from one on, in a graph.

    What `map` at its end does is done for them alone, not for those before.
    """
    found = before_maps(dataset)
    left = found.numbers.skip(first)
    return left if found.read is _itself else found.changed_all(left)


def before_maps(dataset: Any) -> Rows:
    """Returns the elements; what stands for them is before `map` at the end."""
    made, kind = None, kind_of(dataset)
    if kind in ("Map", "ParallelMap"):
        made = _of_map(dataset, before_maps)
    elif kind in ("Options", "Prefetch"):
        made = before_maps(*dataset._inputs())
    return made if made is not None else _as_it_comes(dataset)


def _of_map(
    dataset: Any, rows_of: Callable[[Any], Rows] = rows_of
) -> Rows | None:
    from tensorflow.python.data.util import structure

    function = dataset._map_func
    is_stateful = _functions.is_stateful(function.function)
    if is_stateful and not (
        _looks.are_redrawn()
        and _shuffles.reshuffling(dataset)
        and _functions.calls_python(function.function)
    ):
        return None
    (before,) = dataset._inputs()
    below = rows_of(before)

    def change(element: Any) -> Any:
        given = structure.to_tensor_list(before.element_spec, element)
        made = tf.nest.flatten(function.function(*given))
        return structure.from_compatible_tensor_list(
            function.output_structure, made
        )

    if is_stateful:  # all ranks call it for all rows, in order
        whole = below.one_by_one()
        each = whole.for_elements(lambda number: change(whole.read(number)))
        whole = dataclasses.replace(whole, num_calls=_num_calls_of(dataset))
        return _as_it_comes(whole.changed(whole.numbers, each))
    return dataclasses.replace(
        below,
        read=lambda number: change(below.read(number)),
        read_many=None,
        has_work=below.has_work or not _functions.is_cheap(dataset),
        num_calls=_joined.more_calls(below.num_calls, _num_calls_of(dataset)),
    )


def _num_calls_of(dataset: Any) -> int:
    """Returns how many calls of a function of `map` may run at once."""
    told = getattr(dataset, "_num_parallel_calls", 1)
    count = tf.get_static_value(told)
    # None: a function of `interleave` computes it.
    return int(tf.data.AUTOTUNE if count is None else count)


def _of_shuffle(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    below = rows_of(before)
    if not below.is_light and below.read is not _itself:
        return None  # a buffer of rows that are not made yet may be larger

    is_anew = bool(dataset._reshuffle_each_iteration)
    # Of two shares, as of `take` and of `skip`, each pass draws the next order
    # for both. Ranks that have joined an elastic job begin with the first.
    is_kept = is_anew and not _looks.are_redrawn()
    generation = state.generation()

    def shuffled(numbers: tf.data.Dataset) -> tf.data.Dataset:
        known = getattr(dataset, "_hvd_stand_in", None)
        if is_kept and known is not None and known[0] == generation:
            stand_in: tf.data.Dataset = known[1]
            return stand_in
        # `shuffle` would mix the global seed of now into a seed.
        variant = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=numbers._variant_tensor,
            buffer_size=dataset._buffer_size,
            seed=dataset._seed,
            seed2=dataset._seed2,
            seed_generator=tf.raw_ops.DummySeedGenerator(),
            reshuffle_each_iteration=is_anew,
            # Not `_common_args`: datasets of files have no name.
            **numbers._flat_structure,
        )
        made = tf.data.experimental.from_variant(variant, numbers.element_spec)
        # TensorFlow drops functions of a dataset that Python has dropped.
        made._hvd_input = numbers
        if is_anew:
            _looks.follow(dataset, made)
        if is_kept:
            dataset._hvd_stand_in = generation, made
        return made

    lengths = below.lengths
    return below.ordered(
        shuffled, None if lengths is None else lengths.shuffled()
    )


def _of_batch(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    return _batches_of(before, dataset, int(dataset._batch_size))


def _of_rebatch(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    rows, sizes = without_batches(before), dataset._batch_sizes.numpy()
    if rows is None or sizes.size != 1:
        return None
    return _batches_of(rows, dataset, int(sizes.reshape(-1)[0]))


def _batches_of(rows: Any, dataset: Any, size: int) -> Rows | None:
    """Returns the batches that a dataset has made of rows."""
    below, spec = rows_of(rows), dataset.element_spec
    if not (below.is_light and is_dense(spec)):
        return None
    drops_rest = bool(dataset._drop_remainder)

    def read(numbers: Any) -> Any:
        return shaped(below.read_batch(numbers), spec)

    count, lengths = int(rows.cardinality()), None
    if count == tf.data.UNKNOWN_CARDINALITY and below.count is None:
        count = count if below.lengths is None else below.lengths.num_rows
    if count == tf.data.INFINITE_CARDINALITY:
        lengths = Lengths(((ENDLESS, size),))
    elif count >= 0:
        lengths = of_batches(count, size, drops_rest=drops_rest)
    return dataclasses.replace(
        below.ordered(
            lambda numbers: numbers.batch(size, drop_remainder=drops_rest),
            lengths,
        ),
        read=read,
        read_many=None,
        fetch=None,
        num_calls=1,
        count=lambda numbers: length_of(tf.nest.flatten(numbers)[0]),
    )


def _of_unbatch(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    rows = without_batches(before)
    return None if rows is None else rows_of(rows)


def _of_cache(dataset: Any) -> Rows | None:
    return _remembered.of_cache(dataset, rows_of)


def _of_zip(dataset: Any) -> Rows:
    return _joined.of_zip(dataset, rows_of)


def _of_concatenate(dataset: Any) -> Rows | None:
    return _joined.of_concatenate(dataset, rows_of)


def _of_choice(dataset: Any) -> Rows | None:
    return _joined.of_choice(dataset, rows_of)


def _counted(name: str) -> Callable[[Any], Rows]:
    """Returns the maker of a stage that counts elements."""

    def make(dataset: Any) -> Rows:
        (before,) = dataset._inputs()
        below = rows_of(before)
        # None: a function of `interleave` computes it.
        count, lengths = tf.get_static_value(dataset._count), None
        if below.lengths is not None and count is not None:
            lengths = getattr(below.lengths, name)(int(count))
        return below.ordered(
            lambda numbers: getattr(numbers, name)(dataset._count), lengths
        )

    return make


def _of_shard(dataset: Any) -> Rows:
    (before,) = dataset._inputs()
    return rows_of(before).ordered(
        lambda numbers: numbers.shard(dataset._num_shards, dataset._index)
    )


def _of_asserted(dataset: Any) -> Rows:
    (before,) = dataset._inputs()
    below, count = rows_of(before), int(dataset._expected_cardinality)
    return below.ordered(
        lambda numbers: numbers.apply(
            tf.data.experimental.assert_cardinality(count)
        ),
        below.lengths,
    )


def _of_input(dataset: Any) -> Rows:
    (before,) = dataset._inputs()
    return rows_of(before)


def _of_records(dataset: Any) -> Rows | None:
    return _records.rows_of_records(dataset, rows_of)


def _of_files(dataset: Any) -> Rows | None:
    return _records.rows_of_files(dataset, rows_of)


# By class, without what is around its name.
_MAKERS: dict[str, Callable[[Any], Rows | None]] = {
    "AssertCardinality": _of_asserted,
    "Batch": _of_batch,
    "Cache": _of_cache,
    "Concatenate": _of_concatenate,
    "DirectedInterleave": _of_choice,
    "FlatMap": _of_files,
    "Interleave": _of_files,
    "Map": _of_map,
    "Options": _of_input,
    "ParallelBatch": _of_batch,
    "ParallelInterleave": _of_files,
    "ParallelMap": _of_map,
    "Prefetch": _of_input,
    "Rebatch": _of_rebatch,
    "Records": lambda dataset: dataset.rows,
    "Restructured": _of_input,
    "Repeat": _counted("repeat"),
    "Shard": _of_shard,
    "Shuffle": _of_shuffle,
    "Skip": _counted("skip"),
    "TFRecord": _of_records,
    "Take": _counted("take"),
    "Tensor": _of_tensors,
    "TensorSlice": _of_slices,
    "Unbatch": _of_unbatch,
    "Zip": _of_zip,
}


def _is_light(dataset: Any) -> bool:
    """Whether elements may wait in their order before work is done."""

    def is_small(spec: tf.TensorSpec) -> bool:
        if spec.dtype == tf.string:  # a record is no larger than its row
            return bool(spec.shape.rank == 0)
        count = spec.shape.num_elements()
        return count is not None and count * spec.dtype.size <= _MOST_LIGHT

    specs = tf.nest.flatten(dataset.element_spec)
    return is_dense(specs) and all(map(is_small, specs))
