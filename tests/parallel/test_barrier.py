"""`hvd.barrier`, as `ops/barrier.py`."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras._values import calls

SECONDS = 0.3


def call_eagerly(process_set: hvd.ProcessSet) -> None:
    assert hvd.barrier(process_set=process_set) is None


def call_in_function(process_set: hvd.ProcessSet) -> None:
    @tf.function
    def step() -> None:
        hvd.barrier(process_set=process_set)

    step()


def call_in_graph(process_set: hvd.ProcessSet) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        barrier = hvd.barrier(process_set=process_set)
        assert isinstance(barrier, tf.Operation)
        with tf.control_dependencies([barrier]):
            after = tf.constant(1)
        assert session.run(after) == 1


def test_all_ways_have_one_count(rank) -> None:
    """As where a rank alone has imported TensorFlow by then."""
    for turn in range(4):
        if (turn + rank) % 2:
            calls.barrier(None, hvd.global_process_set)
        else:
            hvd.barrier()


@pytest.mark.parametrize(
    "call", [call_eagerly, call_in_function, call_in_graph]
)
def test_waits_for_the_last_rank(process_set, rank, call) -> None:
    hvd.barrier(process_set=process_set)
    begin = time.monotonic()
    if rank == process_set.ranks[-1]:
        time.sleep(SECONDS)
    call(process_set)
    assert time.monotonic() - begin > 0.9 * SECONDS


def test_runs_in_the_order_of_a_function(rank, size) -> None:
    """Side effects before the barrier come first, those after it last."""
    seen: list[str] = []

    def note(text: bytes) -> None:
        seen.append(text.decode())

    @tf.function
    def step() -> None:
        tf.numpy_function(note, ["before"], [])
        hvd.barrier()
        tf.numpy_function(note, ["after"], [])

    for _ in range(3):
        step()
    assert seen == ["before", "after"] * 3


def test_a_name_may_be_used_again() -> None:
    before = hvd.stats()["num_requests"]
    for _ in range(3):
        hvd.barrier(name="a name")
    assert hvd.stats()["num_requests"] - before == 3


@pytest.mark.parametrize("name", ["", 3])
def test_raises_for_a_bad_name(name) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="name"):
        hvd.barrier(name=name)


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_mismatch_with_another_collective(rank, size) -> None:
    name = "a barrier or not"
    call = (
        hvd.barrier if rank == 0 else lambda name: hvd.allreduce(1, name=name)
    )
    with pytest.raises(hvd.MismatchError, match="barrier on rank 0"):
        call(name=name)
    hvd.barrier()
