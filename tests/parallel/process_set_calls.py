"""Calls that the tests of process sets share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras import _core


def remove_all() -> None:
    """Removes all sets but the global one."""
    for process_set_id in _core.process_set_ids():
        if process_set_id:
            hvd.remove_process_set(hvd.process_set_by_id(process_set_id))


def add_all(lists: list[list[int]]) -> list[hvd.ProcessSet]:
    return [hvd.add_process_set(ranks) for ranks in lists]


def partition(size: int, num_parts: int = 2) -> list[list[int]]:
    """Divides ranks by their remainder, without empty parts."""
    parts = [list(range(first, size, num_parts)) for first in range(num_parts)]
    return [part for part in parts if part]


def add_partition(size: int, num_parts: int = 2) -> list[hvd.ProcessSet]:
    if size == 1:
        return [hvd.global_process_set]
    return add_all(partition(size, num_parts))


def mine_of(sets: list[hvd.ProcessSet]) -> hvd.ProcessSet:
    (mine,) = [one for one in sets if one.included()]
    return mine


def total(name: str, value: float, process_set: hvd.ProcessSet) -> float:
    array = np.full(3, value, np.float32)
    process_set_id = process_set.process_set_id
    (result,) = _core.allreduce(
        name, [array], int(hvd.Sum), process_set_id=process_set_id
    )
    assert (result == result[0]).all()
    return float(result[0])


def meet(name: str = "meet") -> None:
    total(name, 0, hvd.global_process_set)


@pytest.fixture(scope="module", autouse=True)
def _dynamic_job() -> Iterator[None]:
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
    hvd.init()


@pytest.fixture(autouse=True)
def _no_set_is_left() -> Iterator[None]:
    yield
    remove_all()
