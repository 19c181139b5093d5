"""A call that is wrong on one rank fails on all of them, at once."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

VALUES = np.ones(12, np.float32)
SLICES = tf.IndexedSlices(
    tf.ones([2, 3]), tf.constant([0, 1]), tf.constant([4, 3])
)
ERRORS = (hvd.InvalidArgumentError, TypeError, NotImplementedError)
FEW = 3.0  # seconds, of a machine with more ranks than cores

# A wrong call of one rank and the right one of the others. The arguments are
# made on all ranks.
CALLS = {
    "dtype": (
        lambda **how: hvd.allreduce(np.array(["x"]), **how),
        lambda **how: hvd.allreduce(VALUES, **how),
    ),
    "op": (
        lambda **how: hvd.allreduce(VALUES, 77, **how),
        lambda **how: hvd.allreduce(VALUES, **how),
    ),
    "factor": (
        lambda **how: hvd.allreduce(
            VALUES, prescale_factor=float("nan"), **how
        ),
        lambda **how: hvd.allreduce(VALUES, **how),
    ),
    "keyword": (
        lambda **how: hvd.allreduce(VALUES, average=True, **how),
        lambda **how: hvd.allreduce(VALUES, **how),
    ),
    "compression": (
        lambda **how: hvd.allreduce(VALUES, compression=3, **how),
        lambda **how: hvd.allreduce(VALUES, **how),
    ),
    "slices": (
        lambda **how: hvd.allreduce(SLICES, hvd.Max, **how),
        lambda **how: hvd.allreduce(SLICES, **how),
    ),
    "root": (
        lambda **how: hvd.broadcast(VALUES, 99, **how),
        lambda **how: hvd.broadcast(VALUES, 0, **how),
    ),
    "splits": (
        lambda **how: hvd.alltoall(VALUES, [99], **how),
        lambda **how: hvd.alltoall(VALUES, **how),
    ),
    "scalar": (
        lambda **how: hvd.allgather(np.float32(1), **how),
        lambda **how: hvd.allgather(VALUES, **how),
    ),
    "scatter": (
        lambda **how: hvd.reducescatter(VALUES, hvd.Adasum, **how),
        lambda **how: hvd.reducescatter(VALUES, **how),
    ),
    "group": (
        lambda **how: hvd.grouped_allreduce([VALUES, None], **how),
        lambda **how: hvd.grouped_allreduce([VALUES, VALUES], **how),
    ),
    "empty group": (
        lambda **how: hvd.grouped_allgather([], **how),
        lambda **how: hvd.grouped_allgather([VALUES], **how),
    ),
}
# Those whose names cannot be given.
OTHERS = {
    "object": (
        lambda: hvd.broadcast_object({"a": 1}, root_rank=99),
        lambda: hvd.broadcast_object({"a": 1}),
    ),
    "variables": (
        lambda: hvd.broadcast_variables([tf.Variable(VALUES)], root_rank=99),
        lambda: hvd.broadcast_variables([tf.Variable(VALUES)]),
    ),
    "no variables": (
        lambda: hvd.broadcast_variables([3]),
        lambda: hvd.broadcast_variables([tf.Variable(VALUES)]),
    ),
    "graph": (
        tf.function(lambda: hvd.allreduce(VALUES, 77)),
        tf.function(lambda: hvd.allreduce(VALUES)),
    ),
    "second call of a graph": (
        tf.function(lambda: hvd.broadcast(hvd.allreduce(VALUES), root_rank=99)),
        tf.function(lambda: hvd.broadcast(hvd.allreduce(VALUES), 0)),
    ),
    "XLA": (
        tf.function(lambda: hvd.broadcast(VALUES, 99), jit_compile=True),
        tf.function(lambda: hvd.broadcast(VALUES, 0), jit_compile=True),
    ),
}


def check_refused(wrong, right, bad: int) -> None:
    """Calls `wrong` on a rank and `right` on the others: all get an error."""
    is_bad = hvd.rank() == bad
    begin = time.perf_counter()
    with pytest.raises(
        (hvd.InvalidArgumentError, TypeError, NotImplementedError)
    ) as caught:
        (wrong if is_bad else right)()
    assert time.perf_counter() - begin < FEW
    if not is_bad:
        assert isinstance(caught.value, hvd.InvalidArgumentError)
        assert f"rank {bad} c" in str(caught.value)


def check_sums() -> None:
    """Nameless calls still pair."""
    for number in range(3):
        total = hvd.allreduce(np.float32(hvd.rank() + number), hvd.Sum)
        ranks = range(hvd.size())
        assert total == sum(rank + number for rank in ranks)


@pytest.mark.parametrize("bad", [0, hvd.size() - 1], ids="bad{}".format)
@pytest.mark.parametrize("name", [None, "x"])
@pytest.mark.parametrize("kind", CALLS)
def test_all_ranks_are_told_of_a_wrong_call(kind, name, bad) -> None:
    wrong, right = CALLS[kind]
    how = {} if name is None else {"name": f"{kind}/{name}"}
    check_refused(lambda: wrong(**how), lambda: right(**how), bad)
    check_sums()
    right(**how)  # the name serves again


@pytest.mark.parametrize("kind", OTHERS)
def test_all_ranks_are_told_of_what_has_no_name_of_its_own(kind) -> None:
    wrong, right = OTHERS[kind]
    check_refused(wrong, right, hvd.size() - 1)
    check_sums()
    right()
    check_sums()


def test_a_rank_that_is_ahead_is_told_call_by_call() -> None:
    wrong, right = CALLS["op"]
    is_bad = hvd.rank() == 0
    for _ in range(5):
        with pytest.raises(hvd.InvalidArgumentError):
            (wrong if is_bad else right)(name="ahead")
        if not is_bad:
            time.sleep(0.05)
    np.testing.assert_array_equal(right(name="ahead"), VALUES)


def test_ranks_that_are_all_wrong_wait_for_nobody() -> None:
    for kind, (wrong, right) in CALLS.items():
        begin = time.perf_counter()
        with pytest.raises(
            (ValueError, TypeError, hvd.HvdError, NotImplementedError)
        ):
            wrong(name=f"all/{kind}")
        assert time.perf_counter() - begin < FEW
        hvd.barrier()
        right(name=f"all/{kind}")


def test_a_wrong_call_after_another_rank_waits_for_it() -> None:
    wrong, right = CALLS["root"]
    if hvd.rank() == 0:
        time.sleep(0.3)
    check_refused(lambda: wrong(name="w"), lambda: right(name="w"), 0)


def test_a_call_of_some_ranks_is_told_to_those_alone(sets) -> None:
    own = sets["parity"]
    if own.size() > 1:
        check_refused(
            lambda: hvd.allreduce(VALUES, 77, process_set=own),
            lambda: hvd.allreduce(VALUES, process_set=own),
            own.ranks[0],
        )
    np.testing.assert_array_equal(
        hvd.allreduce(VALUES, process_set=own), VALUES
    )
    check_sums()
