"""Every mismatch between ranks is an error on all of them, and harmless.

The error has our class and TensorFlow's. Its text names both values, the ranks
that hold them and the tensor. The engine works afterwards.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _native

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

Collective = Callable[[tf.Tensor, str], tf.Tensor]


@pytest.fixture(autouse=True)
def _engine_works_afterwards(rank: int, size: int) -> Iterator[None]:
    yield
    total = hvd.allreduce(rank, hvd.Sum, name="works afterwards")
    assert total == size * (size - 1) // 2


def group(*dtypes: str) -> Collective:
    return lambda x, name: hvd.grouped_allreduce(
        [tf.cast(x, dtype) for dtype in dtypes], name=name
    )


def raw(kind: str, **attributes: object) -> Collective:
    """Makes a call that our Python functions would refuse."""
    function = getattr(_native.ops(), f"horovod_{kind}")
    return lambda x, name: function(x, name, **attributes)


# The call of most ranks and the call of the last one, on a tensor of shape
# [2, 3], and how the text shows each of them.
MISTAKES: dict[str, tuple[Collective, Collective, str, str]] = {
    "shape": (
        lambda x, name: hvd.allreduce(x, name=name),
        lambda x, name: hvd.allreduce(x[:, :2], name=name),
        "[2, 3]",
        "[2, 2]",
    ),
    "number of dimensions": (
        lambda x, name: hvd.allreduce(x, name=name),
        lambda x, name: hvd.allreduce(x[0], name=name),
        "[2, 3]",
        "[3]",
    ),
    "shape of a broadcast": (
        lambda x, name: hvd.broadcast(x, 0, name=name),
        lambda x, name: hvd.broadcast(x[:1], 0, name=name),
        "[2, 3]",
        "[1, 3]",
    ),
    "shape of a row": (
        lambda x, name: hvd.allgather(x, name=name),
        lambda x, name: hvd.allgather(x[:, 1:], name=name),
        "[*, 3]",
        "[*, 2]",
    ),
    "dimensions of a row": (
        lambda x, name: hvd.allgather(x, name=name),
        lambda x, name: hvd.allgather(x[0], name=name),
        "[*, 3]",
        "[*]",
    ),
    "dtype": (
        lambda x, name: hvd.allreduce(x, name=name),
        lambda x, name: hvd.allreduce(tf.cast(x, tf.float64), name=name),
        "float32",
        "float64",
    ),
    "dtype of the same width": (
        lambda x, name: hvd.broadcast(x, 0, name=name),
        lambda x, name: hvd.broadcast(tf.cast(x, tf.int32), 0, name=name),
        "float32",
        "int32",
    ),
    "dtype of an allgather": (
        lambda x, name: hvd.allgather(x, name=name),
        lambda x, name: hvd.allgather(x > 0, name=name),
        "float32",
        "bool",
    ),
    "dtype of a member": (
        group("float32", "float32"),
        group("float32", "float16"),
        "float32",
        "float16",
    ),
    "number of members": (
        group("float32", "float32"),
        group("float32", "float32", "float32"),
        "2 tensors",
        "3 tensors",
    ),
    "reduce op": (
        lambda x, name: hvd.allreduce(x, hvd.Sum, name=name),
        lambda x, name: hvd.allreduce(x, hvd.Average, name=name),
        "Sum",
        "Average",
    ),
    "prescale": (
        lambda x, name: hvd.allreduce(x, name=name, prescale_factor=0.5),
        lambda x, name: hvd.allreduce(x, name=name),
        "0.5",
        "1",
    ),
    "postscale": (
        lambda x, name: hvd.allreduce(x, name=name),
        lambda x, name: hvd.allreduce(x, name=name, postscale_factor=0.25),
        "1",
        "0.25",
    ),
    "root rank": (
        lambda x, name: hvd.broadcast(x, 0, name=name),
        lambda x, name: hvd.broadcast(x, 1, name=name),
        "root_rank=0",
        "root_rank=1",
    ),
    "averaging": (
        raw("allgather", average=False),
        raw("allgather", average=True),
        "average=false",
        "average=true",
    ),
    "kind": (
        lambda x, name: hvd.allreduce(x, name=name),
        lambda x, name: hvd.broadcast(x, 0, name=name),
        "allreduce",
        "broadcast",
    ),
    "kind of gather": (
        lambda x, name: hvd.allgather(x, name=name),
        lambda x, name: hvd.allreduce(x, name=name),
        "allgather",
        "allreduce",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_an_error_on_all_ranks(run, rank, size, mistake) -> None:
    usual, unusual, usual_text, unusual_text = MISTAKES[mistake]
    collective = unusual if rank == size - 1 else usual
    name = f"mistake/{mistake}"
    x = np.ones([2, 3], "f4")
    begin = time.monotonic()
    for _ in range(2):  # the second time follows a failure of that name
        with pytest.raises(hvd.MismatchError) as raised:
            run(lambda x: collective(x, name), x)
        assert isinstance(raised.value, tf.errors.FailedPreconditionError)
        text = str(raised.value)
        assert name in text
        assert f"{usual_text} on rank" in text
        assert f"{unusual_text} on rank {size - 1}" in text
    assert time.monotonic() - begin < 10
    run(lambda x: usual(x, name), x)  # now the ranks agree


def test_mistake_after_the_ranks_have_agreed_before(rank, size) -> None:
    """The response cache must not hide a mistake."""
    name = "known to the cache"
    for num_elements in (3, 3, 3, 4, 3, 3):
        x = tf.ones([num_elements if rank == 0 else 3])
        if num_elements == 3:
            assert hvd.allreduce(x, hvd.Sum, name=name)[0] == size
            continue
        with pytest.raises(hvd.MismatchError) as raised:
            hvd.allreduce(x, hvd.Sum, name=name)
        assert "[4] on rank 0" in str(raised.value)


def test_a_name_used_twice_at_once_is_an_error_on_all_ranks(rank, size) -> None:
    name = "twice in flight"
    if rank == 0:
        time.sleep(0.5)  # the other ranks' calls wait for this rank
    num_calls = 2 if rank == size - 1 else 1
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(hvd.allreduce, tf.ones([2]), name=name)
            for _ in range(num_calls)
        ]
        errors = [call.exception() for call in calls]
    for error in errors:
        assert isinstance(error, hvd.exceptions.InvalidArgumentError)
        assert isinstance(error, tf.errors.InvalidArgumentError)
        assert f"'{name}'" in str(error)
        assert f"submitted twice by rank {size - 1}" in str(error)


def test_other_collectives_of_the_function_succeed(rank, size) -> None:
    results = [tf.Variable(0.0) for _ in range(5)]

    @tf.function
    def step() -> None:
        for i, result in enumerate(results):
            result.assign(hvd.allreduce(float(i), hvd.Sum, name=f"good {i}"))
        hvd.allreduce(tf.ones([rank + 1]), name="bad")

    with pytest.raises(hvd.MismatchError, match="'bad'"):
        step()
    for i in range(5):
        total = hvd.allreduce(float(i), hvd.Sum, name=f"good {i}")
        assert total == size * i
