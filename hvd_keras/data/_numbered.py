"""Elements of a dataset, and what stands for them until they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.data import _rows
from hvd_keras.data._lengths import Lengths


@dataclasses.dataclass(frozen=True)
class Rows:
    """The elements of a dataset, and how to get them.

    Args:
        numbers: What stands for each element, in the order of the elements.
        read: Returns the element that something of `numbers` stands for; call
            it in a graph.
        fetch: What is done at once for numbers of any shape, in a graph; then
            `read` gets what it makes of a number. None: nothing.
        is_light: Whether `numbers` take little memory.
        has_work: Whether `read` does what the user's pipeline does.
        num_calls: How many calls of `read` may run at once.
        count: If the elements are batches, tells how many rows has the one that
            something of `numbers` stands for; call it in a graph.
        lengths: How many rows each of them has; None: unknown.
        read_many: Does what `read` does for numbers of any shape at once,
            without `fetch`. None: nothing does.
        blocked_by: The stage for which all ranks do work on all rows; "": none.
    """

    numbers: tf.data.Dataset
    read: Callable[[Any], Any]
    is_light: bool = False
    has_work: bool = False
    num_calls: int = 1
    count: Callable[[Any], tf.Tensor] | None = None
    lengths: Lengths | None = None
    blocked_by: str = ""
    fetch: Callable[[Any], Any] | None = None
    read_many: Callable[[Any], Any] | None = None

    def one_by_one(self) -> Rows:
        """Returns rows that `read` gets whole."""
        fetch, read = self.fetch, self.read
        if fetch is None:
            return self
        whole = as_it_is(lambda number: read(fetch(number)))
        return dataclasses.replace(self, read=whole, fetch=None)

    def for_elements(self, read: Callable[[Any], Any]) -> Callable[..., Any]:
        """Returns `read`, as `map` calls it for an element of `numbers`."""
        is_tuple = gives_parts(self.numbers.element_spec)
        return as_it_is(lambda *n: read(n if is_tuple else n[0]))

    def changed(
        self, rows: tf.data.Dataset, read: Callable[..., Any]
    ) -> tf.data.Dataset:
        """Returns `rows`, changed by `read`, which stands for that of this."""
        if self.num_calls == 1:  # a thread for that would cost more
            return rows.map(read)
        return rows.map(
            read, num_parallel_calls=self.num_calls, deterministic=True
        )

    def changed_all(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Returns what is read of `rows`, which are elements of `numbers`."""
        whole = self.one_by_one()
        return whole.changed(rows, whole.for_elements(whole.read))

    def read_batch(self, numbers: Any) -> Any:
        """Returns a batch of what is read of a batch of numbers, in a graph."""
        if self.read_many is not None:
            return self.read_many(numbers)
        count = length_of(tf.nest.flatten(numbers)[0])
        found = numbers if self.fetch is None else self.fetch(numbers)
        rows = self.changed(
            tf.data.Dataset.from_tensor_slices(found),
            self.for_elements(self.read),
        )
        batch = rows.batch(tf.maximum(count, 1))
        spec = batch.element_spec
        flat = tf.cond(
            count > 0,
            lambda: tuple(tf.nest.flatten(batch.get_single_element())),
            lambda: tuple(map(_rows.empty, tf.nest.flatten(spec))),
        )
        return shaped(tf.nest.pack_sequence_as(spec, flat), spec)

    def ordered(
        self,
        change: Callable[[tf.data.Dataset], tf.data.Dataset],
        lengths: Lengths | None = None,
    ) -> Rows:
        """Returns elements in another order, or fewer, or some again."""
        return dataclasses.replace(
            self,
            numbers=change(self.numbers),
            lengths=lengths,
        )


def is_dense(spec: Any) -> bool:
    return all(
        isinstance(each, tf.TensorSpec) and each.dtype != tf.variant
        for each in tf.nest.flatten(spec)
    )


def gives_parts(spec: Any) -> bool:
    """Whether functions of a dataset get the parts of an element one by one."""
    return type(spec) is tuple  # no named one


def length_of(tensor: tf.Tensor) -> tf.Tensor:
    return tf.shape(tensor, tf.int64)[0]


def shaped(element: Any, spec: Any) -> Any:
    return tf.nest.map_structure(
        lambda tensor, each: tf.ensure_shape(tensor, each.shape), element, spec
    )
