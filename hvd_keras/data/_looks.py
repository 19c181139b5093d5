"""Counts how often a script has looked at a dataset before it is shared.

What `shuffle` shuffles anew in each pass is in another order after a look, in
one process; so it has to be in what stands for it.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_keras._common.replacements import replace

_changing = threading.Lock()
_drawn: contextvars.ContextVar[tuple[int, list[Any]] | None] = (
    contextvars.ContextVar("drawn", default=None)
)


def count() -> None:
    """Counts the iterators that are made from now on."""
    replace(tf.data.Dataset, "__iter__", _counting)


@contextlib.contextmanager
def after(num_draws: int) -> Iterator[list[Any]]:
    """Has what follows a dataset be as after so many orders, besides looks.

    Yields:
        The datasets that something follows meanwhile.
    """
    followed: list[Any] = []
    token = _drawn.set((num_draws, followed))
    try:
        yield followed
    finally:
        _drawn.reset(token)


def are_redrawn() -> bool:
    """Whether orders are those of `after`."""
    return _drawn.get() is not None


def follow(dataset: Any, stand_in: tf.data.Dataset) -> None:
    """Lets `stand_in` shuffle as `dataset` does, after all looks at that."""
    num_draws, followed = _drawn.get() or (0, [])
    followed.append(dataset)
    for _ in range(_num_looks(dataset) + num_draws):
        iter(stand_in)
    with _changing:
        followers = getattr(dataset, "_hvd_followers", None)
        if followers is None:
            followers = dataset._hvd_followers = weakref.WeakSet()
        followers.add(stand_in)


def _num_looks(dataset: Any) -> int:
    return int(getattr(dataset, "_hvd_num_looks", 0))


def _counting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        if tf.executing_eagerly():
            for each in {id(one): one for one in _chain(self)}.values():
                each._hvd_num_looks = _num_looks(each) + 1
                with _changing:
                    followers = list(getattr(each, "_hvd_followers", ()))
                for follower in followers:
                    iter(follower)
        made: Iterator[Any] = original(self)
        return made

    return __iter__


def _chain(dataset: Any) -> Iterator[Any]:
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)
