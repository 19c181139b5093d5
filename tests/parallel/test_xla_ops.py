"""Collectives work in functions that XLA compiles as in other functions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import compat

pytestmark = pytest.mark.thorough(4)

Call = Callable[[tf.Tensor], Any]
needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

# Each rank computes these from its float32 tensor of shape [4, 3]. One name has
# characters that the text of a program must escape.
CALLS: dict[str, Call] = {
    "allreduce": lambda x: hvd.allreduce(x * 2.0, name="a"),
    "allreduce_max": lambda x: hvd.allreduce(x, hvd.Max, name='"\\ü\n'),
    "allreduce_adasum": lambda x: hvd.allreduce(x + 1.0, hvd.Adasum),
    "allreduce_factors": lambda x: hvd.allreduce(
        x, prescale_factor=0.1, postscale_factor=1 / 3
    ),
    "allreduce_scalar": lambda x: hvd.allreduce(x[1, 1], hvd.Sum),
    "allreduce_nothing": lambda x: hvd.allreduce(x[:0], hvd.Sum),
    "allreduce_slices": lambda x: tf.convert_to_tensor(
        hvd.allreduce(tf.IndexedSlices(x, tf.constant([3, 0, 3, 1]), [5, 3]))
    ),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce(
        [x, x[0, 0], tf.cast(x, tf.uint16), tf.cast(x, tf.bfloat16)], hvd.Sum
    ),
    "allreduce_bool": lambda x: hvd.allreduce(x > 4.0, hvd.Min),
    "broadcast": lambda x: hvd.broadcast(x, hvd.size() - 1),
    "allgather": lambda x: hvd.allgather(x),
    "grouped_allgather": lambda x: hvd.grouped_allgather(
        [x, tf.cast(x[:1], tf.int64), x[:0]]
    ),
    "reducescatter": lambda x: hvd.reducescatter(x, hvd.Sum),
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x, x[:1]]),
    "alltoall": lambda x: hvd.alltoall(x),
    "alltoall_splits": lambda x: hvd.alltoall(
        x, splits=[4 // hvd.size()] * hvd.size()
    ),
    "topology": lambda x: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op()],
    "twice": lambda x: hvd.allreduce(hvd.allreduce(x, hvd.Sum), hvd.Min),
    "branch": lambda x: tf.cond(
        tf.reduce_sum(x) > -1.0, lambda: hvd.allreduce(x), lambda: x
    ),
    "loop": lambda x: tf.while_loop(
        lambda i, x: i < 5,
        lambda i, x: (i + 1, hvd.allreduce(x, hvd.Sum) / 2.0),
        [0, x],
    ),
    "compression": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
}
DIFFERENTIABLE: dict[str, Call] = {
    "average": lambda x: hvd.allreduce(x * x, name="g.average"),
    "max": lambda x: hvd.allreduce(x * x, hvd.Max, name="g.max"),
    "product": lambda x: hvd.allreduce(x * x, hvd.Product, name="g.product"),
    "grouped": lambda x: hvd.grouped_allreduce([x, x[0]], hvd.Sum),
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "allgather": lambda x: hvd.allgather(x),
    "grouped_allgather": lambda x: hvd.grouped_allgather([x, x[:1]]),
    "reducescatter": lambda x: hvd.reducescatter(x),
    # 2 and 4 ranks share 5 rows and 1 row unevenly.
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter(
        [tf.concat([x, x[:1]], axis=0), x[:1]]
    ),
    "alltoall": lambda x: hvd.alltoall(x),
    "allgather as Horovod": lambda x: compat.allgather(x),
    "reducescatter as Horovod": lambda x: compat.reducescatter(x, op=hvd.Sum),
}


@pytest.fixture
def x(rank: int) -> tf.Tensor:
    return tf.reshape(tf.range(12.0), [4, 3]) + float(rank)


def check_equal(plain: Any, compiled: Any, name: str = "") -> None:
    for one, other in zip(
        tf.nest.flatten(plain), tf.nest.flatten(compiled), strict=True
    ):
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one.numpy(), other.numpy(), name)


def gradient_of(call: Call) -> Call:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.nest.flatten(call(x))
            total = sum(tf.reduce_sum(y**2) for y in outputs)
        return tape.gradient(total, x)

    return gradient


def in_function(call: Call, **options: Any) -> Call:
    return tf.function(call, autograph=False, **options)


@pytest.mark.parametrize("wrap", [lambda call: call, gradient_of])
def test_compiled_calls_equal_the_ops(
    wrap: Callable[[Call], Call], x: tf.Tensor
) -> None:
    calls = CALLS if wrap is not gradient_of else DIFFERENTIABLE

    def all_of_them(x: tf.Tensor) -> dict[str, Any]:
        return {name: wrap(call)(x) for name, call in calls.items()}

    # One program has all calls, because compiling is slow.
    plain = in_function(all_of_them)(x)
    compiled = in_function(all_of_them, jit_compile=True)(x)
    for name in calls:
        check_equal(plain[name], compiled[name], name)


def test_second_gradient_and_gradient_of_a_compiled_function(
    x: tf.Tensor, size: int
) -> None:
    call = DIFFERENTIABLE["average"]
    twice = gradient_of(gradient_of(call))
    check_equal(in_function(twice)(x), in_function(twice, jit_compile=True)(x))
    compiled = in_function(
        lambda x: hvd.allreduce(x, hvd.Sum), jit_compile=True
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = compiled(x)
    np.testing.assert_array_equal(
        tape.gradient(y, x).numpy(), np.full([4, 3], size)
    )


def test_lengths_may_be_unknown_while_tracing(x: tf.Tensor, size: int) -> None:
    def call(x: tf.Tensor) -> Any:
        grouped = hvd.grouped_allgather([x, tf.zeros([2])])
        more = tf.concat([x, x[:1]], axis=0)
        return (
            hvd.allgather(x),
            hvd.reducescatter(more, hvd.Sum),
            hvd.alltoall(x),
            hvd.allreduce(x, hvd.Sum),
            grouped,
        )

    options = {"input_signature": [tf.TensorSpec([None, None])]}
    plain = in_function(call, **options)
    compiled = in_function(call, jit_compile=True, **options)
    for rows in (size, 2 * size):
        some = tf.repeat(x[:1], rows, axis=0)
        check_equal(plain(some), compiled(some))


def test_a_function_is_traced_apart_for_xla(
    x: tf.Tensor,
) -> None:
    num_traces = 0

    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        nonlocal num_traces
        num_traces += 1
        return hvd.allreduce(x, hvd.Sum)

    expected = inner(x)
    for _ in range(2):
        compiled = in_function(lambda x: inner(x) * 2.0, jit_compile=True)
        check_equal(expected * 2.0, compiled(x))
        check_equal(expected, inner(x))
    assert num_traces == 2


@needs_peers
def test_ranks_with_and_without_xla_meet(
    x: tf.Tensor, rank: int, size: int
) -> None:
    def call(x: tf.Tensor) -> Any:
        return [
            hvd.allreduce(x, hvd.Sum),
            hvd.allreduce(x * 2.0, hvd.Sum),
            hvd.allgather(x, name="same"),
        ]

    total, double, rows = in_function(call, jit_compile=rank == 0)(x)
    np.testing.assert_array_equal(total * 2.0, double)
    np.testing.assert_array_equal(total.numpy()[0, 0], size * (size - 1) / 2)
    assert rows.shape == [4 * size, 3]


@needs_peers
def test_errors_are_those_of_the_op(x: tf.Tensor, rank: int) -> None:
    op = [hvd.Min, hvd.Max][rank % 2]
    messages = []
    for jit_compile in (False, True):
        compiled = in_function(
            lambda x: hvd.allreduce(x, op, name="mismatch"),
            jit_compile=jit_compile,
        )
        with pytest.raises(
            tf.errors.FailedPreconditionError, match="ranks disagree"
        ) as caught:
            compiled(x)
        assert isinstance(caught.value, hvd.MismatchError)
        # TensorFlow puts the node before the text, the function after it.
        found = re.search("allreduce 'mismatch': [^\n\\[]*", str(caught.value))
        assert found is not None
        messages.append(found[0].strip())
    assert messages[0] == messages[1]
    assert "hvd_keras.exceptions" not in str(caught.value)


@needs_peers
def test_rows_must_be_equal(x: tf.Tensor, rank: int) -> None:
    rows = 1 + rank % 2
    compiled = in_function(
        lambda x: hvd.allgather(x[:rows], name="rows"), jit_compile=True
    )
    with pytest.raises(hvd.MismatchError, match=r"\[1, 3\].*\[2, 3\] on rank"):
        compiled(x)
    hvd.barrier()  # the engine still works


@needs_peers
def test_calls_that_xla_cannot_run_are_refused_while_tracing(
    x: tf.Tensor,
) -> None:
    unknown = tf.TensorSpec(None)
    splits = [4, *[0] * (hvd.size() - 1)]
    calls: dict[str, tuple[Call, Any]] = {
        "`join`": (lambda x: hvd.join(), None),
        "`barrier`": (lambda x: hvd.barrier(), None),
        "tensor 'uneven'": (
            lambda x: hvd.alltoall(x, tf.identity(splits), name="uneven"),
            None,
        ),
        "known number of dimensions.*'shapeless'": (
            lambda x: hvd.allreduce(x, name="shapeless"),
            [unknown],
        ),
    }
    for text, (call, signature) in calls.items():
        compiled = in_function(
            call, jit_compile=True, input_signature=signature
        )
        with pytest.raises(NotImplementedError, match=text) as caught:
            compiled(x)
        assert "jit_compile=False" in str(caught.value)


def test_shapes_that_depend_on_values_are_refused(x: tf.Tensor) -> None:
    compiled = in_function(
        lambda x: hvd.allgather(x[x[:, 0] > 2.0], name="masked"),
        jit_compile=True,
    )
    # The lengths of other gathers are unknown because their argument's is.
    options = {"input_signature": [tf.TensorSpec([None, 3])]}
    for name in ("masked", "b", "c", "d"):
        in_function(
            lambda x, name=name: hvd.allgather(x, name=name),
            jit_compile=True,
            **options,
        ).get_concrete_function()
    text = (
        "such a tensor for one of allgather 'masked', 'd', 'c' and [0-9]+ more"
        ".*fixed number of rows.*`jit_compile=False`"
    )
    with pytest.raises(NotImplementedError, match=text) as caught:
        compiled(x)
    assert isinstance(caught.value, tf.errors.UnimplementedError)


def test_many_calls_at_once_meet_in_any_order(rank: int, size: int) -> None:
    """They run at once, in a different order on each rank."""
    factors = tf.constant(
        np.eye(256, dtype=np.float32)[::-1] * (rank + 1.0), tf.float32
    )
    num_calls = 12

    def call(x: tf.Tensor) -> list[tf.Tensor]:
        # The chains of products differ in length by rank.
        sums = []
        for i in range(num_calls):
            y = x * float(i + 1)
            for _ in range(2 * ((i * (rank + 1)) % 3)):
                y = factors @ y / (rank + 1.0)
            sums.append(hvd.allreduce(y, hvd.Sum, name=f"many.{i}"))
        return [y[0, 0] for y in sums]

    compiled = in_function(call, jit_compile=True)
    x = tf.eye(256)
    for run in range(20):
        if run % size == rank:
            time.sleep(0.002)
        sums = np.asarray(compiled(x))
        np.testing.assert_allclose(
            sums, size * np.arange(1.0, num_calls + 1), rtol=1e-6
        )
