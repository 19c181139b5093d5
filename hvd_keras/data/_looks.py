"""Counts how often a script has looked at a dataset before it is shared.

What `shuffle` shuffles anew in each pass is in another order after a look, in
one process; so it has to be in what stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.replacements import replace


def count() -> None:
    """Counts the iterators that are made from now on."""
    replace(tf.data.Dataset, "__iter__", _counting)


def num_looks(dataset: tf.data.Dataset) -> int:
    """Returns how many iterators a program has made through a dataset."""
    return int(getattr(dataset, "_hvd_num_looks", 0))


def _counting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        if tf.executing_eagerly():
            for each in {id(one): one for one in _chain(self)}.values():
                each._hvd_num_looks = num_looks(each) + 1
        made: Iterator[Any] = original(self)
        return made

    return __iter__


def _chain(dataset: Any) -> Iterator[Any]:
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)
