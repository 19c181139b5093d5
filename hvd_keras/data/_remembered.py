"""Rows that are kept when they have been read, as `cache` keeps them.

| Private name of TensorFlow | Used to |
|---|---|
| `_filename` | know the file of a `cache` |
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data import _stores
from hvd_keras.data._numbered import Rows, is_dense, shaped

RowsOf = Callable[[Any], Rows]


def of_cache(dataset: Any, rows_of: RowsOf) -> Rows | None:
    (before,) = dataset._inputs()
    below, path = rows_of(before).one_by_one(), dataset._filename.numpy()
    if not below.has_work:
        if path:
            return None
        return below.ordered(lambda numbers: numbers.cache(), below.lengths)
    spec = before.element_spec
    if not (below.is_light and is_dense(spec)):
        return None
    if path:
        kept = _stores.of_rank(os.fsdecode(path))
        read = _read_from(kept, below.read, spec)
        return dataclasses.replace(below, read=read, read_many=None)
    count = below.count
    # The order of the first time is kept. So places in it are numbers, too.
    return dataclasses.replace(
        below,
        numbers=below.numbers.cache().enumerate(),
        read=_remembering(below.read, spec),
        read_many=None,
        count=None if count is None else lambda number: count(number[1]),
    )


def _name_of(number: Any) -> tf.Tensor:
    """Returns a text that differs if what stands for a row does."""
    return tf.strings.join(
        [tf.io.serialize_tensor(part) for part in tf.nest.flatten(number)]
    )


def _read_from(
    store: _stores.Store, read: Callable[[Any], Any], spec: Any
) -> Callable[[Any], Any]:
    """Returns what reads a number, and keeps it in a file."""
    specs = tf.nest.flatten(spec)

    def find(name: Any) -> Any:
        return store.find(bytes(name))

    def keep(name: Any, data: Any) -> Any:
        store.keep(bytes(name), bytes(data))
        return name

    def read_once(number: Any) -> Any:
        name = _name_of(number)
        (found,) = call_on_arrays(find, [name], [tf.string])
        found = tf.ensure_shape(found, [])

        def known() -> Any:
            parts = tf.io.parse_tensor(found, tf.string)
            return tuple(
                tf.io.parse_tensor(parts[index], each.dtype)
                for index, each in enumerate(specs)
            )

        def new() -> Any:
            made = tuple(tf.nest.flatten(read(number)))
            whole = tf.stack([tf.io.serialize_tensor(part) for part in made])
            (kept,) = call_on_arrays(
                keep, [name, tf.io.serialize_tensor(whole)], [tf.string]
            )
            with tf.control_dependencies([kept]):
                return tuple(tf.identity(tensor) for tensor in made)

        flat = tf.cond(tf.strings.length(found) > 0, known, new)
        return shaped(tf.nest.pack_sequence_as(spec, flat), spec)

    return read_once


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
        name = _name_of(of_row)

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
