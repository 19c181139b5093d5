"""Puts off what a tf.data pipeline does to each row until rows are dealt.

Which row comes when depends on counts and seeds, not on what the rows hold. So
what orders rows runs on their numbers, and what reads and changes a row runs
on the rank that has it.

| Private name of TensorFlow | Used to |
|---|---|
| `Dataset._inputs`, class names | know the stages of a pipeline |
| `_tensors`, `_map_func`, `_batch_size`, `_drop_remainder`, `_buffer_size`, \
`_seed`, `_seed2`, `_reshuffle_each_iteration`, `_count`, `_filename`, \
`_num_parallel_calls` | run a stage on numbers, or later |
| `structure.to_tensor_list`, `from_compatible_tensor_list` | call a function \
of `map` |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.data import _functions, _records
from hvd_keras.data._numbered import Rows, kind_of, length_of, shaped
from hvd_keras.process_set import ProcessSet

_MOST_LIGHT = 64  # bytes of a tensor


def prepare(dataset: tf.data.Dataset, process_set: ProcessSet) -> None:
    """Finds out what all ranks must know of a dataset; all call it.

    Raises:
        DamagedFileError: On all ranks: a file of records is not whole.
    """
    _records.prepare(dataset, _MAKERS, process_set)


def late_rows_of(
    dataset: tf.data.Dataset, *, batched: bool, is_fixed: bool
) -> Rows | None:
    """Returns the rows of a dataset if it is worth while to read them late.

    Args:
        dataset: Its elements are rows.
        batched: Whether they are batches.
        is_fixed: Whether it is that of all epochs. If not, nobody compares
            arrays that only numbers stand for.
    """
    if not is_fixed and any(arrays_of(dataset)):
        return None
    if not _is_dense(dataset.element_spec):
        return None
    rows = without_batches(dataset) if batched else dataset
    found = rows_of(dataset if rows is None else rows)
    if not found.has_work:
        return None
    found = _without_wrapping(found, dataset.element_spec)
    if rows is None and batched:
        is_known = found.count is not None and found.num_rows is not None
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
    while kind_of(dataset) in ("Prefetch", "Options", "Restructured"):
        (dataset,) = dataset._inputs()
    is_batching = kind_of(dataset) in ("Batch", "ParallelBatch")
    return dataset if is_batching else None


def _without_wrapping(rows: Rows, spec: Any) -> Rows:
    """Returns rows that are no tuples of one part, nor what stands for them."""
    numbers, read, count = rows.numbers, rows.read, rows.count
    if _is_single(numbers.element_spec):
        numbers = numbers.map(as_it_is(lambda number: number))
        if count is not None:
            wrapped_count = count
            count = as_it_is(lambda number: wrapped_count((number,)))
        wrapped = read
        read = as_it_is(lambda number: wrapped((number,)))
    if _is_single(spec):
        whole = read
        read = as_it_is(lambda number: whole(number)[0])
    return dataclasses.replace(rows, numbers=numbers, read=read, count=count)


def _is_single(spec: Any) -> bool:
    return isinstance(spec, tuple) and len(spec) == 1


def arrays_of(dataset: Any) -> Iterator[list[tf.Tensor]]:
    """Yields arrays that rows are made of, though nobody passes them on."""
    spec = dataset.element_spec
    if kind_of(dataset) == "TensorSlice" and _is_dense(spec):
        if not _is_light(dataset):
            yield list(dataset._tensors)
    elif hasattr(dataset, "_map_func"):
        yield from _functions.arrays_of(dataset._map_func.function)
    for before in dataset._inputs():
        yield from arrays_of(before)


def rows_of(dataset: tf.data.Dataset) -> Rows:
    """Returns the elements of a dataset, with as much put off as can be."""
    make = _MAKERS.get(kind_of(dataset))
    made = make(dataset) if make is not None else None
    return made if made is not None else _as_it_comes(dataset)


def without_batches(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the rows of a dataset whose last stage makes batches of them.

    None if its elements are not what `batch` has made.
    """
    batching = _batching_of(dataset)
    if batching is None:
        return None
    (rows,) = batching._inputs()
    if not bool(batching._drop_remainder):
        return rows
    count, size = int(rows.cardinality()), int(batching._batch_size)
    return rows.take(count // size * size) if count >= 0 else None


def _as_it_comes(dataset: tf.data.Dataset) -> Rows:
    """Elements that stand for themselves: all ranks read them all."""
    return Rows(
        dataset,
        lambda row: row,
        is_light=_is_light(dataset),
        blocked_by=_name_of(dataset) if _has_work(dataset) else "",
    )


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
    if kind == "DirectedInterleave":
        return "`sample_from_datasets` or `choose_from_datasets`"
    return f"`{re.sub('(?<!^)(?=[A-Z])', '_', kind).lower()}`"


def _of_slices(dataset: Any) -> Rows | None:
    spec, tensors = dataset.element_spec, list(dataset._tensors)
    if _is_light(dataset) or not _is_dense(spec):
        return None

    def read(number: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(
            spec, [tf.gather(tensor, number) for tensor in tensors]
        )

    count = int(dataset.cardinality())
    return Rows(tf.data.Dataset.range(count), read, is_light=True)


def _of_map(dataset: Any) -> Rows | None:
    from tensorflow.python.data.util import structure

    function = dataset._map_func
    if _functions.is_stateful(function.function):
        return None
    (before,) = dataset._inputs()
    below = rows_of(before)

    def read(number: Any) -> Any:
        element = below.read(number)
        given = structure.to_tensor_list(before.element_spec, element)
        made = tf.nest.flatten(function.function(*given))
        return structure.from_compatible_tensor_list(
            function.output_structure, made
        )

    num_calls = int(getattr(dataset, "_num_parallel_calls", 1))
    return dataclasses.replace(
        below,
        read=read,
        has_work=below.has_work or not _functions.is_cheap(dataset),
        num_calls=_more_calls(below.num_calls, num_calls),
    )


def _of_shuffle(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    below = rows_of(before)
    if not below.is_light:
        return None  # a buffer of rows that are not made yet may be larger

    def shuffled(numbers: tf.data.Dataset) -> tf.data.Dataset:
        # `shuffle` would mix the global seed of now into a seed.
        variant = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=numbers._variant_tensor,
            buffer_size=dataset._buffer_size,
            seed=dataset._seed,
            seed2=dataset._seed2,
            seed_generator=tf.raw_ops.DummySeedGenerator(),
            reshuffle_each_iteration=bool(dataset._reshuffle_each_iteration),
            # Not `_common_args`: datasets of files have no name.
            **numbers._flat_structure,
        )
        made = tf.data.experimental.from_variant(variant, numbers.element_spec)
        # TensorFlow drops functions of a dataset that Python has dropped.
        made._hvd_input = numbers
        return made

    return below.ordered(shuffled, has_all=True)


def _of_batch(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    below = rows_of(before)
    if not (below.has_work and below.is_light):
        return None
    if not _is_dense(dataset.element_spec):
        return None

    def read(numbers: Any) -> Any:
        return shaped(below.read_batch(numbers), dataset.element_spec)

    def batched(numbers: tf.data.Dataset) -> tf.data.Dataset:
        return numbers.batch(
            dataset._batch_size, drop_remainder=bool(dataset._drop_remainder)
        )

    size, count = int(dataset._batch_size), int(before.cardinality())
    if count < 0 and below.count is None and below.num_rows is not None:
        count = below.num_rows
    if bool(dataset._drop_remainder):
        count = count // size * size
    return dataclasses.replace(
        below.ordered(batched),
        read=read,
        fetch=None,
        num_calls=1,
        count=lambda numbers: length_of(tf.nest.flatten(numbers)[0]),
        num_rows=count if count >= 0 else None,
    )


def _of_unbatch(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    rows = without_batches(before)
    return None if rows is None else rows_of(rows)


def _of_cache(dataset: Any) -> Rows | None:
    (before,) = dataset._inputs()
    below = rows_of(before).one_by_one()
    if dataset._filename.numpy():
        return None
    if not below.has_work:
        return below.ordered(lambda numbers: numbers.cache(), has_all=True)
    spec = before.element_spec
    if not (below.is_light and _is_dense(spec)):
        return None
    count = below.count
    # The order of the first time is kept. So places in it are numbers, too.
    return dataclasses.replace(
        below,
        numbers=below.numbers.cache().enumerate(),
        read=_remembering(below.read, spec),
        count=None if count is None else lambda number: count(number[1]),
    )


def _remembering(
    read: Callable[[Any], Any], spec: Any
) -> Callable[[tuple[tf.Tensor, Any]], Any]:
    """Returns what reads (place, number), and keeps what it has read."""
    specs = tf.nest.flatten(spec)
    kept = tf.lookup.experimental.MutableHashTable(
        tf.int64, tf.string, default_value=[""] * (len(specs) + 1)
    )

    def read_once(number: tuple[tf.Tensor, Any]) -> Any:
        place, of_row = number
        found = kept.lookup(place)
        # A cache that was not filled is made anew, in another order.
        name = tf.strings.join(
            [tf.io.serialize_tensor(part) for part in tf.nest.flatten(of_row)]
        )

        def known() -> Any:
            return tuple(
                tf.io.parse_tensor(found[index], each.dtype)
                for index, each in enumerate(specs)
            )

        def new() -> Any:
            made = tuple(tf.nest.flatten(read(of_row)))
            whole = [tf.io.serialize_tensor(tensor) for tensor in made]
            whole.append(name)
            with tf.control_dependencies([kept.insert(place, tf.stack(whole))]):
                return tuple(tf.identity(tensor) for tensor in made)

        is_known = tf.equal(found[-1], name)
        flat = tf.cond(is_known, known, new)
        return shaped(tf.nest.pack_sequence_as(spec, flat), spec)

    return read_once


def _of_zip(dataset: Any) -> Rows:
    parts = tf.nest.map_structure(
        lambda part: rows_of(part).one_by_one(), dataset._datasets
    )
    each = tf.nest.flatten(parts)

    def read(numbers: Any) -> Any:
        flat = [
            one.read(number)
            for one, number in zip(each, _shallow(parts, numbers), strict=True)
        ]
        return tf.nest.pack_sequence_as(parts, flat)

    return Rows(
        tf.data.Dataset.zip(tf.nest.map_structure(lambda p: p.numbers, parts)),
        read,
        is_light=all(one.is_light for one in each),
        has_work=any(one.has_work for one in each),
        num_calls=_more_calls(*(one.num_calls for one in each)),
        blocked_by=next((o.blocked_by for o in each if o.blocked_by), ""),
    )


def _of_concatenate(dataset: Any) -> Rows | None:
    first, second = (rows_of(part).one_by_one() for part in dataset._inputs())
    if not (first.is_light and second.is_light):
        return None
    if not (first.has_work or second.has_work):
        return None
    if not _is_dense(dataset.element_spec):
        return None

    def nothing(rows: Rows) -> Any:
        return tf.nest.map_structure(
            lambda spec: tf.zeros(
                [length or 0 for length in spec.shape], spec.dtype
            ),
            rows.numbers.element_spec,
        )

    def is_static(rows: Rows) -> bool:
        return all(
            spec.shape.is_fully_defined()
            for spec in tf.nest.flatten(rows.numbers.element_spec)
        )

    if not (is_static(first) and is_static(second)):
        return None

    def read(number: Any) -> Any:
        is_second, of_first, of_second = number
        made = tf.cond(
            is_second,
            lambda: tuple(tf.nest.flatten(second.read(of_second))),
            lambda: tuple(tf.nest.flatten(first.read(of_first))),
        )
        spec = dataset.element_spec
        return shaped(tf.nest.pack_sequence_as(spec, made), spec)

    numbers = first.numbers.map(
        as_it_is(lambda *n: (False, _one(n, first), nothing(second)))
    ).concatenate(
        second.numbers.map(
            as_it_is(lambda *n: (True, nothing(first), _one(n, second)))
        )
    )
    return Rows(
        numbers,
        read,
        is_light=True,
        has_work=True,
        num_calls=_more_calls(first.num_calls, second.num_calls),
        blocked_by=first.blocked_by or second.blocked_by,
    )


def _one(number: tuple[Any, ...], rows: Rows) -> Any:
    is_tuple = isinstance(rows.numbers.element_spec, tuple)
    return number if is_tuple else number[0]


def _counted(name: str) -> Callable[[Any], Rows]:
    """Returns the maker of a stage that counts elements."""

    def make(dataset: Any) -> Rows:
        (before,) = dataset._inputs()
        return rows_of(before).ordered(
            lambda numbers: getattr(numbers, name)(dataset._count)
        )

    return make


def _of_input(dataset: Any) -> Rows:
    (before,) = dataset._inputs()
    return rows_of(before)


def _of_records(dataset: Any) -> Rows | None:
    return _records.rows_of_records(dataset, rows_of)


def _of_files(dataset: Any) -> Rows | None:
    return _records.rows_of_files(dataset, rows_of)


# By class, without what is around its name.
_MAKERS: dict[str, Callable[[Any], Rows | None]] = {
    "Batch": _of_batch,
    "Cache": _of_cache,
    "Concatenate": _of_concatenate,
    "FlatMap": _of_files,
    "Interleave": _of_files,
    "Map": _of_map,
    "Options": _of_input,
    "ParallelBatch": _of_batch,
    "ParallelInterleave": _of_files,
    "ParallelMap": _of_map,
    "Prefetch": _of_input,
    "Records": lambda dataset: dataset.rows,
    "Restructured": _of_input,
    "Repeat": _counted("repeat"),
    "Shuffle": _of_shuffle,
    "Skip": _counted("skip"),
    "TFRecord": _of_records,
    "Take": _counted("take"),
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
    return _is_dense(specs) and all(map(is_small, specs))


def _is_dense(spec: Any) -> bool:
    return all(
        isinstance(each, tf.TensorSpec) and each.dtype != tf.variant
        for each in tf.nest.flatten(spec)
    )


def _shallow(parts: Any, numbers: Any) -> list[Any]:
    """Returns what of `numbers` belongs to each of the parts."""
    if isinstance(parts, Rows):
        return [numbers]
    keys = sorted(parts) if isinstance(parts, dict) else range(len(parts))
    return [one for key in keys for one in _shallow(parts[key], numbers[key])]


def _more_calls(*counts: int) -> int:
    return -1 if min(counts) < 0 else max(counts)
