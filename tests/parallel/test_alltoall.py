"""`hvd.alltoall`, as `ops/alltoall.py`; dtypes are in `test_op_matrix.py`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

needs_two = pytest.mark.skipif("hvd.size() < 2", reason="needs 2 ranks")


def test_rows_are_sent_in_equal_parts(run, rank, size) -> None:
    result = run(hvd.alltoall, np.arange(2 * size) + 100 * rank)
    expected = [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    assert result.tolist() == expected


def test_received_splits_are_returned_with_splits(run, rank, size) -> None:
    """Rank r sends s rows to rank s."""
    rows = np.repeat(np.arange(size), np.arange(size)) + 10 * rank
    output, received = run(hvd.alltoall, rows, np.arange(size))
    assert output.tolist() == [
        10 * r + rank for r in range(size) for _ in range(rank)
    ]
    assert received.dtype == np.int32
    assert received.tolist() == [rank] * size


def test_all_rows_may_go_to_one_rank(run, rank, size) -> None:
    splits = [0] * (size - 1) + [3]
    output, received = run(
        lambda x: hvd.alltoall(x, splits), np.full([3, 2], rank)
    )
    if rank == size - 1:
        assert output.tolist() == [[r, r] for r in range(size) for _ in "abc"]
        assert received.tolist() == [3] * size
    else:
        assert output.shape == (0, 2)
        assert received.tolist() == [0] * size


def test_splits_may_be_a_list_or_a_tensor(rank, size) -> None:
    x = tf.range(size)
    for splits in ([1] * size, (1,) * size, tf.ones([size], tf.int64)):
        output, received = hvd.alltoall(x, splits)
        assert output.numpy().tolist() == [rank] * size
        assert received.numpy().tolist() == [1] * size


def test_shape_is_inferred() -> None:
    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec(None)]

    @tf.function(input_signature=specs)
    def exchange(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        splits = tf.range(hvd.size())
        output, received = hvd.alltoall(x, splits)
        assert output.shape.as_list() == [None, 3]
        assert received.shape.as_list() == [None]
        assert hvd.alltoall(y).shape.rank is None
        return x

    exchange.get_concrete_function()


@pytest.mark.parametrize(
    ("tensor", "splits", "text"),
    [
        (np.ones(()), None, "a scalar"),
        (np.ones(6), [[1]], "vector"),
        (np.ones(6), [6.0], "float32"),
        (np.ones(6), "x", "string"),
        (np.ones(6), [1, "x"], "splits"),
        (np.ones(6), [1] * (hvd.size() + 1), "an entry for each"),
        (np.ones(6), [7] + [0] * (hvd.size() - 1), r"sum.*splits=\[7"),
        (np.ones(6), [5] + [0] * (hvd.size() - 1), "sum"),
        (np.ones(6), [-1] * hvd.size(), ">= 0"),
    ],
    ids=str,
)
def test_raises_for_bad_arguments(tensor, splits, text: str) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match=text) as raised:
        hvd.alltoall(tensor, splits, name="bad")
    assert isinstance(raised.value, tf.errors.InvalidArgumentError)
    assert isinstance(raised.value, ValueError)


@needs_two
def test_raises_when_rows_cannot_be_shared(size) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="divisible"):
        hvd.alltoall(np.ones(size + 1))


@needs_two
@pytest.mark.parametrize("bad", ["sum", "length", "negative", "rows"])
def test_raises_for_values_that_are_unknown_while_tracing(
    size, bad: str
) -> None:
    specs = [tf.TensorSpec([None]), tf.TensorSpec([None], tf.int64)]

    @tf.function(input_signature=specs)
    def exchange(x: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        if bad == "rows":
            return hvd.alltoall(x)
        return hvd.alltoall(x, splits)[0]

    splits = {
        "sum": [2] * size,
        "length": [1] * (size + 1),
        "negative": [size + 1, -1] + [0] * (size - 2),
        "rows": [],
    }[bad]
    x = tf.ones([size + (bad in ("length", "rows"))])
    with pytest.raises(hvd.HvdError) as raised:
        exchange(x, tf.constant(splits, tf.int64))
    assert isinstance(
        raised.value,
        tf.errors.InvalidArgumentError | tf.errors.FailedPreconditionError,
    )
    assert hvd.allreduce(1, hvd.Sum) == size  # the engine goes on


@needs_two
@pytest.mark.parametrize("what", ["row", "dimensions", "dtype"])
def test_mismatch_is_an_error_on_all_ranks(rank, size, what: str) -> None:
    last = rank == size - 1
    x = {
        "row": tf.ones([size, 2 + last]),
        "dimensions": tf.ones([size, 2] + [1] * last),
        "dtype": tf.cast(tf.ones([size]), tf.float64 if last else tf.float32),
    }[what]
    with pytest.raises(hvd.MismatchError, match=f"on rank {size - 1}"):
        hvd.alltoall(x, name=f"differs in {what}")
    assert hvd.allreduce(1, hvd.Sum) == size
