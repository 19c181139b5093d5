"""`hvd.reducescatter` and `hvd.grouped_reducescatter`, as in `ops/`.

Dtypes and reductions are in `test_op_matrix.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

needs_two = pytest.mark.skipif("hvd.size() < 2", reason="needs 2 ranks")


def own_rows(num_rows: int) -> range:
    """Returns the rows of this rank; the first ranks have one more."""
    rank, size = hvd.rank(), hvd.size()
    small, num_larger = divmod(num_rows, size)
    begin = rank * small + min(rank, num_larger)
    return range(begin, begin + small + (rank < num_larger))


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 7, 100_003])
def test_rows_are_shared_out(run, rank, size, num_rows: int) -> None:
    x = np.arange(num_rows) % 1000 + rank
    result = run(lambda x: hvd.reducescatter(x, hvd.Sum), x)
    expected = [
        size * (i % 1000) + size * (size - 1) // 2 for i in own_rows(num_rows)
    ]
    assert result.tolist() == expected


def test_average_is_the_default(run, rank, size) -> None:
    result = run(hvd.reducescatter, np.full([size, 2], 2.0 * rank))
    assert result.tolist() == [[size - 1] * 2]


def test_average_of_integers_is_rounded_towards_zero(rank, size) -> None:
    result = hvd.reducescatter(tf.fill([size], -rank))
    assert result.numpy().tolist() == [-(size * (size - 1) // 2 // size)]


def test_groups_are_reduced(run, rank, size) -> None:
    def reduce(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return hvd.grouped_reducescatter([x, y], hvd.Max)

    x, y = np.full([size, 3], rank), np.arange(size + 1) * 1.5 + rank
    first, second = run(reduce, x, y)
    assert first.tolist() == [[size - 1] * 3]
    expected = [i * 1.5 + size - 1 for i in own_rows(size + 1)]
    assert second.tolist() == expected


def test_input_with_other_uses_keeps_its_value(run, rank) -> None:
    def reduce(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shifted = x + 1
        return hvd.reducescatter(shifted, hvd.Sum), shifted * 1

    _, kept = run(reduce, np.full([50], rank, "f4"))
    np.testing.assert_array_equal(kept, [rank + 1] * 50)


def test_shape_is_inferred() -> None:
    specs = [tf.TensorSpec([4, None, 3]), tf.TensorSpec(None)]

    @tf.function(input_signature=specs)
    def reduce(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        assert hvd.reducescatter(x).shape.as_list() == [None, None, 3]
        assert hvd.reducescatter(y).shape.rank is None
        a, b = hvd.grouped_reducescatter([x, y])
        assert a.shape.as_list() == [None, None, 3]
        assert b.shape.rank is None
        return x

    reduce.get_concrete_function()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tensor": 1.0}, "a scalar"),
        ({"tensor": [True]}, "bool"),
        ({"op": hvd.Adasum}, "Adasum"),
        ({"op": 7}, "op=7"),
        ({"prescale_factor": float("inf")}, "prescale_factor=inf"),
        ({"name": ""}, "name=''"),
    ],
    ids=str,
)
def test_raises_for_bad_arguments(arguments, text: str) -> None:
    arguments = {"tensor": [1.0], **arguments}
    tensor = arguments.pop("tensor")
    with pytest.raises(hvd.InvalidArgumentError, match=text) as raised:
        hvd.reducescatter(tensor, **arguments)
    assert isinstance(raised.value, tf.errors.InvalidArgumentError)
    with pytest.raises(hvd.InvalidArgumentError, match=text):
        hvd.grouped_reducescatter([tensor], **arguments)


@pytest.mark.parametrize("tensors", [[], None, [None], 3.0])
def test_raises_for_wrong_groups(tensors) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="tensors"):
        hvd.grouped_reducescatter(tensors)
    with pytest.raises(hvd.InvalidArgumentError, match="tensors"):
        hvd.grouped_allgather(tensors)


def test_raises_for_a_scalar_of_rank_unknown_while_tracing() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.reducescatter(x)

    with pytest.raises(hvd.HvdError, match="scalar"):
        reduce(tf.constant(1.0))


MISTAKES = {
    "shape": lambda x, last: hvd.reducescatter(x[: 3 - last], name="shape"),
    "dtype": lambda x, last: hvd.reducescatter(
        tf.cast(x, tf.float64) if last else x, name="dtype"
    ),
    "op": lambda x, last: hvd.reducescatter(
        x, hvd.Max if last else hvd.Sum, name="op"
    ),
    "prescale": lambda x, last: hvd.reducescatter(
        x, prescale_factor=0.5 if last else 1.0, name="prescale"
    ),
    "postscale": lambda x, last: hvd.reducescatter(
        x, postscale_factor=0.5 if last else 1.0, name="postscale"
    ),
    "kind": lambda x, last: (hvd.allgather if last else hvd.reducescatter)(
        x, name="kind"
    ),
    "members": lambda x, last: hvd.grouped_reducescatter(
        [x] * (2 + last), name="members"
    ),
    "gathered members": lambda x, last: hvd.grouped_allgather(
        [x] * (2 + last), name="gathered members"
    ),
    "gathered dtypes": lambda x, last: hvd.grouped_allgather(
        [x, tf.cast(x, tf.float64) if last else x], name="gathered dtypes"
    ),
}


@needs_two
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mismatch_is_an_error_on_all_ranks(rank, size, mistake: str) -> None:
    with pytest.raises(hvd.MismatchError) as raised:
        MISTAKES[mistake](tf.ones([3, 2]), rank == size - 1)
    assert isinstance(raised.value, tf.errors.FailedPreconditionError)
    assert f"on rank {size - 1}" in str(raised.value)
    assert mistake in str(raised.value)
    assert hvd.allreduce(1, hvd.Sum) == size
