"""Datasets of our own whose order is that of the epoch.

| Private name of TensorFlow | Used to |
|---|---|
| `Dataset.__init__`, `_inputs`, `_variant_tensor` | make a stage of our own |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import basics
from hvd_keras._job import membership

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class PassDataset(tf.data.Dataset):
    """A dataset that knows which pass over its rows begins.

    Args:
        made: Its rows; it calls `begin` once in each iteration.
        num_rows: How many there are.
    """

    def __init__(self, made: tf.data.Dataset, num_rows: int) -> None:
        # Of `hvd.shard`; None: each iteration is an epoch.
        self._epoch: int | None = None
        self._turn = 0  # iterations of the epoch so far
        # TensorFlow drops functions of a dataset that Python has dropped.
        self._made = counted(made, num_rows)
        super().__init__(self._made._variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._made.element_spec

    def _inputs(self) -> list[Any]:
        return []

    def begin_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of an epoch, and others its repeats."""
        self._epoch, self._turn = epoch, 0

    def begin(self) -> Any:
        """Returns the number of the pass that begins, two integers."""
        number = self._turn
        self._turn += 1
        if self._epoch is None:
            return np.array([number, 0])
        return np.array([self._epoch, number])


def counted(rows: tf.data.Dataset, num_rows: int) -> tf.data.Dataset:
    return rows.apply(tf.data.experimental.assert_cardinality(num_rows))


def begin_epoch(dataset: Any, epoch: int) -> None:
    """Has the next iteration over a dataset be the one of an epoch.

    That concerns what is behind a `PassDataset`.
    """
    for each in _all_in(dataset):
        each.begin_epoch(epoch)


def _all_in(dataset: Any) -> Iterator[PassDataset]:
    if isinstance(dataset, PassDataset):
        yield dataset
    for before in dataset._inputs():
        yield from _all_in(before)


def paths_of(files: Paths) -> list[str]:
    """Returns the paths that are meant; those of a pattern are sorted."""
    if isinstance(files, str | os.PathLike):
        path = os.fspath(files)
        found = sorted(tf.io.gfile.glob(path)) if set(path) & set("*?[") else []
        files = found or [path]
    paths = list(map(os.fspath, files))
    if not paths:
        raise ValueError("`files` must name a file. Received: an empty list.")
    return paths


def is_alone() -> bool:
    """Whether a rank must do for itself what ranks may share."""
    return (
        not basics.is_initialized()
        or membership.is_elastic()
        or membership.is_waiting()
    )
