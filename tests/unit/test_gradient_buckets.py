"""Gradients are cut into buckets, the last ones first."""

from __future__ import annotations

import random

import pytest

from hvd_keras._job import state
from hvd_keras._rendezvous import Topology
from hvd_keras._values.buckets import bucket_bytes, bucket_indices
from hvd_keras.config import Config


def test_the_last_gradients_go_first() -> None:
    assert bucket_indices([1, 1, 1, 1], 2) == [[3, 2], [1, 0]]


def test_a_large_gradient_has_a_bucket_of_its_own() -> None:
    assert bucket_indices([1, 100, 1, 1], 10) == [[3, 2], [1], [0]]


def test_no_gradients_make_no_bucket() -> None:
    assert bucket_indices([], 10) == []


@pytest.mark.parametrize("bucket_bytes", [0, 1, 10, 1000])
def test_every_gradient_is_in_one_bucket(bucket_bytes: int) -> None:
    generator = random.Random(1)
    sizes = [generator.randint(0, 30) for _ in range(200)]
    buckets = bucket_indices(sizes, bucket_bytes)
    assert [i for bucket in buckets for i in bucket] == [*range(199, -1, -1)]
    for bucket in buckets:
        total = sum(sizes[i] for i in bucket)
        assert total <= bucket_bytes or len(bucket) == 1


@pytest.mark.parametrize(
    ("local_size", "expected"), [(4, 8 << 20), (2, 2 << 20)]
)
def test_buckets_are_smaller_on_several_hosts(
    local_size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(rank=0, size=4, local_rank=0, local_size=local_size)
    monkeypatch.setattr(state, "_job", None)
    monkeypatch.setattr(state, "_config", Config())
    state.enter(topology, Config())
    assert bucket_bytes() == expected
    state.enter(topology, Config(bucket_bytes=7))
    assert bucket_bytes() == 7
