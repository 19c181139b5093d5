"""Elements of several datasets, as one dataset has them.

| Private name of TensorFlow | Used to |
|---|---|
| `_datasets` | know the parts of a `zip` |
| `_selector_input`, `_data_inputs`, `_stop_on_empty_dataset` | choose numbers \
as `sample_from_datasets` and `choose_from_datasets` choose rows |
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras.data._numbered import Rows, gives_parts, is_dense, shaped
from hvd_keras.data._tracing import unoptimized

RowsOf = Callable[[Any], Rows]


def of_zip(dataset: Any, rows_of: RowsOf) -> Rows:
    parts = tf.nest.map_structure(
        lambda part: rows_of(part).one_by_one(), dataset._datasets
    )
    each = tf.nest.flatten(parts)

    def reading(reads: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def read(numbers: Any) -> Any:
            own = _shallow(parts, numbers)
            flat = [
                read(number) for read, number in zip(reads, own, strict=True)
            ]
            return tf.nest.pack_sequence_as(parts, flat)

        return read

    reads_many = [one.read_many for one in each if one.read_many is not None]
    made = Rows(
        tf.data.Dataset.zip(tf.nest.map_structure(lambda p: p.numbers, parts)),
        reading([one.read for one in each]),
        read_many=reading(reads_many) if len(reads_many) == len(each) else None,
        is_light=all(one.is_light for one in each),
        has_work=any(one.has_work for one in each),
        num_calls=more_calls(*(one.num_calls for one in each)),
        blocked_by=next((o.blocked_by for o in each if o.blocked_by), ""),
    )
    return _with_equal_counts(made, parts, int(dataset.cardinality()))


def _with_equal_counts(made: Rows, parts: Any, cardinality: int) -> Rows:
    """Returns rows that are batches if the parts that are so are alike."""
    each = tf.nest.flatten(parts)
    batched = [n for n, one in enumerate(each) if one.count is not None]
    lengths = [each[n].lengths for n in batched]
    if not batched:
        return made
    first = batched[0]
    count = each[first].count

    def count_of(numbers: Any) -> tf.Tensor:
        return count(_shallow(parts, numbers)[first])

    found = None
    if all(one is not None and one.is_ordered for one in lengths):
        cut = {one.take(cardinality) for one in lengths}
        if len(cut) == 1 and cardinality != tf.data.UNKNOWN_CARDINALITY:
            (found,) = cut
    return dataclasses.replace(made, count=count_of, lengths=found)


def of_concatenate(dataset: Any, rows_of: RowsOf) -> Rows | None:
    first, second = (rows_of(part).one_by_one() for part in dataset._inputs())
    made = _either(
        (first, second),
        dataset.element_spec,
        lambda parts: parts[0].concatenate(parts[1]),
    )
    if made is None or first.lengths is None or second.lengths is None:
        return made
    lengths = first.lengths.concatenate(second.lengths)
    return dataclasses.replace(made, lengths=lengths)


def of_choice(dataset: Any, rows_of: RowsOf) -> Rows | None:
    parts = [rows_of(part).one_by_one() for part in dataset._data_inputs]
    made = _either(
        parts,
        dataset.element_spec,
        lambda numbers: type(dataset)(
            dataset._selector_input, numbers, dataset._stop_on_empty_dataset
        ),
    )
    # Rows may be left over, or not.
    return None if made is None else dataclasses.replace(made, lengths=None)


def _either(
    parts: Sequence[Rows],
    spec: Any,
    join: Callable[[list[tf.data.Dataset]], tf.data.Dataset],
) -> Rows | None:
    """Returns elements, each of one of some parts.

    Args:
        parts: The parts.
        spec: That of an element.
        join: Puts what stands for elements of parts into one order.

    Returns:
        None if they cannot be told by numbers, or it is not worth while.
    """
    if not (all(one.is_light for one in parts) and is_dense(spec)):
        return None
    if not any(one.has_work for one in parts):
        return None
    if not all(map(_is_static, parts)):
        return None
    nothing = [_nothing(one) for one in parts]

    def marked(index: int) -> tf.data.Dataset:
        is_tuple = gives_parts(parts[index].numbers.element_spec)

        @unoptimized
        def mark(*number: Any) -> Any:
            each: list[Any] = [part() for part in nothing]
            each[index] = number if is_tuple else number[0]
            return (tf.constant(index), *each)

        return parts[index].numbers.map(mark)

    def chosen(functions: list[Callable[[Any], Any]], number: Any) -> Any:
        which, *each = number
        branches = [
            functools.partial(
                lambda function, own: tuple(tf.nest.flatten(function(own))),
                function,
                own,
            )
            for function, own in zip(functions, each, strict=True)
        ]
        return tf.switch_case(which, branches)

    def read(number: Any) -> Any:
        made = chosen([one.read for one in parts], number)
        return shaped(tf.nest.pack_sequence_as(spec, made), spec)

    counts = [one.count for one in parts if one.count is not None]

    def count(number: Any) -> tf.Tensor:
        (found,) = chosen(counts, number)
        return found

    return Rows(
        join([marked(index) for index in range(len(parts))]),
        read,
        is_light=True,
        has_work=True,
        num_calls=more_calls(*(one.num_calls for one in parts)),
        count=count if len(counts) == len(parts) else None,
        blocked_by=next((o.blocked_by for o in parts if o.blocked_by), ""),
    )


def _is_static(rows: Rows) -> bool:
    return all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
        for spec in tf.nest.flatten(rows.numbers.element_spec)
    )


def _nothing(rows: Rows) -> Callable[[], Any]:
    """Returns what makes something of the form of what stands for a row."""
    return lambda: tf.nest.map_structure(
        lambda spec: tf.zeros(
            [length or 0 for length in spec.shape], spec.dtype
        ),
        rows.numbers.element_spec,
    )


def _shallow(parts: Any, numbers: Any) -> list[Any]:
    """Returns what of `numbers` belongs to each of the parts."""
    if isinstance(parts, Rows):
        return [numbers]
    keys = sorted(parts) if isinstance(parts, dict) else range(len(parts))
    return [one for key in keys for one in _shallow(parts[key], numbers[key])]


def more_calls(*counts: int) -> int:
    return -1 if min(counts) < 0 else max(counts)
